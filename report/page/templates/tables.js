// Tables: a click on a header sorts; long tables are cut until asked for.
{
  const key = (row, column) => {
    const cell = row.cells[column];
    return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent;
  };
  const missing = (row, column) => row.cells[column].textContent === "-";
  const compare = (a, b) => {
    if (typeof a === typeof b) return typeof a === "number" ? a - b : a.localeCompare(b);
    return typeof a === "number" ? -1 : 1;
  };
  const sort = (table, column) => {
    const header = table.tHead.rows[0].cells[column];
    const descending = header.getAttribute("aria-sort") === "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => missing(a, column) - missing(b, column)
      || compare(key(a, column), key(b, column)) * (descending ? -1 : 1));
    table.tBodies[0].append(...rows);
  };
  for (const table of document.querySelectorAll("table")) {
    [...table.tHead.rows[0].cells].forEach((header, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...header.childNodes);
      button.addEventListener("click", () => sort(table, column));
      header.append(button);
    });
  }
  for (const table of document.querySelectorAll("table.long")) {
    const more = document.createElement("button");
    more.type = "button";
    more.className = "cut-button";
    const cut = yes => {
      table.classList.toggle("cut", yes);
      more.textContent = yes ? `show all ${table.tBodies[0].rows.length} rows` : "show fewer rows";
      more.setAttribute("aria-expanded", String(!yes));
    };
    more.addEventListener("click", () => cut(!table.classList.contains("cut")));
    cut(true);
    table.after(more);
  }
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const folded of opened) folded.open = true;
  });
  addEventListener("afterprint", () => {
    for (const folded of opened) folded.open = false;
  });
}
