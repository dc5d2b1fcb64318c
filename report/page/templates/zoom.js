// Timelines: all of a group show the same part of the iteration.
{
  const NUMBERED = 28; // pixels; narrower spans carry no number
  const EDGED = 3; // pixels; the edges of narrower spans would hide them
  const SMALLEST = 1e-4; // of the whole
  const svg = "http://www.w3.org/2000/svg";
  const percent = element => name => parseFloat(element.getAttribute(name) || "0") / 100;

  const seconds = value => {
    const scales = [[1, "s"], [1e-3, "ms"], [1e-6, "us"], [1e-9, "ns"]];
    const [scale, unit] = scales.find(([scale]) => value >= 0.9995 * scale) || [1, "s"];
    return `${Number((value / scale).toPrecision(6))} ${unit}`;
  };
  const ticks = (start, end, most) => {
    const least = (end - start) / most;
    const power = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 5, 10].map(f => f * power).find(s => s >= least * 0.999999);
    const found = [];
    for (let i = Math.ceil(start / step - 1e-9); i * step <= end * (1 + 1e-12); i++) found.push(i * step);
    return found;
  };
  const element = (name, attributes, text) => {
    const made = document.createElementNS(svg, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text) made.textContent = text;
    return made;
  };

  for (const group of document.querySelectorAll(".timelines")) {
    const whole = Number(group.dataset.seconds);
    const drawings = [...group.querySelectorAll("svg.spans")];
    const grids = drawings.map(drawing => drawing.querySelector(".grid"));
    const axis = group.querySelector("svg.axis");
    const rects = [...group.querySelectorAll("svg.spans rect")].map(rect => {
      const at = percent(rect);
      return { rect, x: at("x"), width: at("width") };
    });
    const numbers = [...group.querySelectorAll("svg.spans .number")].map(text => {
      const at = percent(text);
      return { text, x: at("x"), width: at("data-width") };
    });
    let start = 0, span = 1;

    const draw = () => {
      const place = x => `${(100 * (x - start) / span).toFixed(4)}%`;
      const pixels = axis.getBoundingClientRect().width;
      for (const { rect, x, width } of rects) {
        rect.setAttribute("x", place(x));
        rect.setAttribute("width", `${100 * width / span}%`);
        rect.classList.toggle("thin", width / span * pixels < EDGED);
      }
      for (const { text, x, width } of numbers) {
        text.setAttribute("x", place(x));
        text.classList.toggle("small", width / span * pixels < NUMBERED);
      }
      const marks = ticks(start * whole, (start + span) * whole, Math.max(2, pixels / 110));
      const lines = () => marks.map(s => {
        const x = place(s / whole);
        return element("line", { x1: x, x2: x, y1: 0, y2: "100%" });
      });
      for (const grid of grids) grid.replaceChildren(...lines());
      axis.replaceChildren(...marks.map(s => {
        const share = (s / whole - start) / span;
        const anchor = share < 0.03 ? "start" : share > 0.96 ? "end" : "middle";
        return element("text", { x: place(s / whole), y: 12, "text-anchor": anchor }, s > 0 ? seconds(s) : "0 s");
      }));
    };
    const show = (from, length) => {
      span = Math.min(1, Math.max(SMALLEST, length));
      start = Math.min(1 - span, Math.max(0, from));
      draw();
    };
    const zoom = (factor, at = 0.5) => show(start + at * span * (1 - factor), span * factor);
    const acts = {
      in: () => zoom(0.6),
      out: () => zoom(1 / 0.6),
      left: () => show(start - span / 4, span),
      right: () => show(start + span / 4, span),
      all: () => show(0, 1),
    };
    const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 0: "all" };

    for (const button of group.querySelectorAll("[data-zoom]")) {
      button.addEventListener("click", () => acts[button.dataset.zoom]());
    }
    group.addEventListener("keydown", event => {
      const act = acts[keys[event.key]];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      act();
    });
    group.addEventListener("dblclick", event => {
      if (!event.target.closest("button")) acts.all();
    });
    for (const drawing of drawings) {
      drawing.addEventListener("wheel", event => {
        const focused = group.contains(document.activeElement);
        if (!(event.ctrlKey || event.metaKey || focused)) return;
        event.preventDefault();
        const box = drawing.getBoundingClientRect();
        if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) show(start + span * event.deltaX / box.width, span);
        else zoom(Math.exp(event.deltaY / 400), (event.clientX - box.left) / box.width);
      }, { passive: false });
      drawing.addEventListener("pointerdown", event => {
        if (event.button !== 0) return;
        const from = start, x = event.clientX, width = drawing.getBoundingClientRect().width;
        const move = moved => show(from - span * (moved.clientX - x) / width, span);
        const stop = () => {
          drawing.classList.remove("moving");
          drawing.removeEventListener("pointermove", move);
        };
        drawing.setPointerCapture(event.pointerId);
        drawing.classList.add("moving");
        drawing.addEventListener("pointermove", move);
        drawing.addEventListener("pointerup", stop, { once: true });
        drawing.addEventListener("pointercancel", stop, { once: true });
        group.focus({ preventScroll: true });
      });
    }
    let width = 0;
    new ResizeObserver(() => {
      const now = axis.getBoundingClientRect().width;
      if (now !== width) show(start, span);
      width = now;
    }).observe(group);
  }
}
