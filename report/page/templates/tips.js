// Tooltips: whatever has data-tip shows it under the pointer.
{
  const tip = document.getElementById("tip");
  const show = event => {
    const target = event.target instanceof Element && event.target.closest("[data-tip]");
    tip.hidden = !target;
    if (!target) return;
    tip.textContent = target.dataset.tip;
    const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
    const below = event.clientY + 18;
    const fits = below + tip.offsetHeight < innerHeight - 8;
    tip.style.left = Math.max(8, left) + "px";
    tip.style.top = (fits ? below : event.clientY - tip.offsetHeight - 12) + "px";
  };
  document.addEventListener("pointermove", show);
  document.addEventListener("pointerdown", show);
  document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
  document.addEventListener("keydown", event => { if (event.key === "Escape") tip.hidden = true; });
}
