"use strict";
// Press a heading to sort by it, again to turn the order round. Without scripts the worst comes first.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const value = (row, column) => {
    const cell = row.cells[column];
    return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent;
  };
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const first = column === 0 ? "ascending" : "descending";
    const other = column === 0 ? "descending" : "ascending";
    const order = head.getAttribute("aria-sort") === first ? other : first;
    const sign = order === "ascending" ? 1 : -1;
    const compare = (a, b) => typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true });
    const rows = [...table.tBodies[0].rows].sort((a, b) => sign * compare(value(a, column), value(b, column)));
    heads.forEach((h) => h.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", order);
    table.tBodies[0].append(...rows);
  }));
}
// On paper everything is read.
const folds = [...document.querySelectorAll("main > details")];
let closed = [];
addEventListener("beforeprint", () => {
  closed = folds.filter((fold) => !fold.open);
  closed.forEach((fold) => (fold.open = true));
});
addEventListener("afterprint", () => closed.forEach((fold) => (fold.open = false)));
