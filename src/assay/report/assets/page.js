"use strict";

/* Tables: a click on a header, or Enter on it, sorts by that column; again, the other way. Missing values stay last. */
const sortKey = (row, column) => row.cells[column].dataset.sort;

function sortBy(header) {
  const table = header.closest("table");
  const body = table.tBodies[0];
  const column = header.cellIndex;
  const numeric = header.classList.contains("number");
  const direction = header.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  const compare = (a, b) => (numeric ? Number(a) - Number(b) : a.localeCompare(b, undefined, { numeric: true }));
  const rows = Array.from(body.rows).sort((one, other) => {
    const a = sortKey(one, column);
    const b = sortKey(other, column);
    if (a === "" || b === "") return (a === "") - (b === "");
    return direction * compare(a, b);
  });
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
  body.append(...rows);
}

for (const button of document.querySelectorAll("th > button")) {
  button.addEventListener("click", () => sortBy(button.parentElement));
}

/* Tables wider than the page: the style sheet fades the edge behind which there is more, and a line says to scroll. */
function markEdges(box) {
  const hidden = box.scrollWidth - box.clientWidth;
  box.classList.toggle("wide", hidden > 1);
  box.classList.toggle("more", hidden - box.scrollLeft > 1);
}

const sizes = new ResizeObserver((changes) => changes.forEach((change) => markEdges(change.target)));
for (const box of document.querySelectorAll("div.table")) {
  box.addEventListener("scroll", () => markEdges(box), { passive: true });
  sizes.observe(box);
}

/* Charts: `ast` interprets Vega's expressions instead of compiling them, so the page needs no 'unsafe-eval'.
   Colours of text and axes are the style sheet's, so that dark mode and print need no second drawing. */
const options = {
  mode: "vega-lite",
  ast: true,
  renderer: "svg",
  config: { background: "transparent" },
  actions: { export: true, source: false, compiled: false, editor: false },
};

for (const figure of document.querySelectorAll("figure.chart")) {
  const target = figure.querySelector(".plot");
  const spec = JSON.parse(figure.querySelector("script").textContent);
  vegaEmbed(target, spec, { ...options, downloadFileName: figure.dataset.name }).catch((error) => {
    target.textContent = `This chart could not be drawn: ${error.message}`;
    console.error(error);
  });
}
