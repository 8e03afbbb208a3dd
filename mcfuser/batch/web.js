"use strict";
const table = document.getElementById("entries");
const body = table.tBodies[0];
for (const head of table.tHead.rows[0].cells) {
  head.querySelector("button").addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const at = head.cellIndex, numbers = head.dataset.kind === "number";
    const order = (one, two) => {
      const a = one.cells[at], b = two.cells[at];
      if (!numbers) return a.textContent.localeCompare(b.textContent) * (up ? 1 : -1);
      if (!("value" in a.dataset) || !("value" in b.dataset))
        return ("value" in b.dataset) - ("value" in a.dataset);
      return (Number(a.dataset.value) - Number(b.dataset.value)) * (up ? 1 : -1);
    };
    body.append(...[...body.rows].sort(order));
  });
}
const boxes = [...document.querySelectorAll("input.filter")];
const filter = () => {
  const shown = new Set(boxes.filter((box) => box.checked).map((box) => box.value));
  for (const row of body.rows) row.hidden = !shown.has(row.dataset.state);
};
boxes.forEach((box) => box.addEventListener("change", filter));
const open = () => {
  const entry = location.hash && document.getElementById(location.hash.slice(1));
  if (entry && entry.tagName === "DETAILS") {
    entry.open = true;
    entry.querySelector("summary").focus();
  }
};
addEventListener("hashchange", open);
/* by then the browser has moved to the entry, which takes the focus away */
addEventListener("load", open);
