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

/* Columns beyond a table's first are folded; without scripts they are all there. */
for (const button of document.querySelectorAll("button.unfold")) {
  const words = button.textContent;
  button.addEventListener("click", () => {
    const open = button.getAttribute("aria-expanded") !== "true";
    button.setAttribute("aria-expanded", String(open));
    button.textContent = open ? "Fewer columns" : words;
    document.getElementById(button.getAttribute("aria-controls")).classList.toggle("whole", open);
  });
}

/* A table that is wider than its column says so while there is more to its right: a hint above, a shadow at the edge. */
const boxes = Array.from(document.querySelectorAll(".block .table"));
const cue = (box) => box.closest(".block").classList.toggle("wider", box.scrollWidth - box.clientWidth - box.scrollLeft > 2);
const resized = new ResizeObserver(() => boxes.forEach(cue));
for (const box of boxes) {
  resized.observe(box);
  resized.observe(box.firstElementChild); // columns fold and unfold
  box.addEventListener("scroll", () => cue(box), { passive: true });
}

/* On paper, the notes of tables are open. */
const notes = document.querySelectorAll("details.note");
window.addEventListener("beforeprint", () => notes.forEach((note) => { note.dataset.was = note.open; note.open = true; }));
window.addEventListener("afterprint", () => notes.forEach((note) => { note.open = note.dataset.was === "true"; }));

/* Contents: the entry of the section in view is marked, the last one whose top has passed a quarter of the window. */
const entries = Array.from(document.querySelectorAll('nav a[href^="#"]'), (link) => ({
  link,
  section: document.getElementById(link.getAttribute("href").slice(1)),
})).filter((entry) => entry.section);

function markPlace() {
  const passed = entries.filter((entry) => entry.section.getBoundingClientRect().top < window.innerHeight / 4);
  const bottom = window.innerHeight + window.scrollY >= document.documentElement.scrollHeight - 2;
  const here = bottom && window.scrollY > 0 ? entries[entries.length - 1] : passed[passed.length - 1] || entries[0];
  for (const entry of entries) {
    if (entry !== here) {
      entry.link.removeAttribute("aria-current");
    } else if (!entry.link.hasAttribute("aria-current")) {
      entry.link.setAttribute("aria-current", "true");
      const list = entry.link.closest("ol");
      list.scrollTo({ left: entry.link.offsetLeft - list.offsetLeft - 16 });
    }
  }
}

let waiting = false;
window.addEventListener(
  "scroll",
  () => {
    if (entries.length && !waiting) requestAnimationFrame(() => { waiting = false; markPlace(); });
    waiting = true;
  },
  { passive: true },
);
if (entries.length) markPlace();

/* Charts fill their column. `ast` interprets Vega's expressions instead of compiling them, so the page needs no
   'unsafe-eval'. Colours of text and axes are the style sheet's, so that dark mode and print need no second drawing. */
const HEIGHT = 240;
const CARD = { least: 120, most: 240, around: 84 };
const PANEL = { least: 230, axes: 66 };
const LETTER = { page: 6.5, card: 5.9 };
const SYMBOL = 32;

const panelsOf = (spec) => spec.hconcat || spec.vconcat;
const isPicture = (spec) => (panelsOf(spec) ? panelsOf(spec).some(isPicture) : Boolean(spec.mark && spec.mark.type === "image"));
const isMap = (spec) => Boolean(spec.mark && spec.mark.type === "rect");

/* Legends have as many columns as there is room for; on a card, one that names a single series is left out. */
function withLegends(spec, room, card) {
  const encoding = { ...spec.encoding };
  for (const channel of ["color", "shape"]) {
    const own = encoding[channel];
    if (!own || own.field !== "series" || !own.legend) continue;
    const names = own.scale.domain;
    const widest = Math.max(...names.map((name) => String(name).length)) * (card ? LETTER.card : LETTER.page) + SYMBOL;
    const columns = Math.max(1, Math.min(names.length, Math.floor(room / widest)));
    const legend = { ...own.legend, columns, labelLimit: Math.max(80, room - SYMBOL) };
    encoding[channel] = { ...own, legend: card && names.length === 1 ? null : legend };
  }
  const layer = spec.layer && spec.layer.map((one) => withLegends(one, room, card));
  return { ...spec, ...(spec.encoding && { encoding }), ...(layer && { layer }) };
}

/* The height in pixels of bars, which is given per bar: Vega fits only charts of a known height to a width. */
function barsHeight(spec, { height, datasets, card }) {
  const bars = spec.layer[0];
  const { name, values } = bars.data || spec.data;
  const labels = new Set((values || datasets[name]).map((row) => row.label)).size;
  const groups = bars.encoding.yOffset ? bars.encoding.color.scale.domain.length : 1;
  const count = labels * groups;
  return Math.min(count * (card ? 40 : groups > 1 ? 19 : 26), Math.max(height, count * 14));
}

/* A spec drawn for so many pixels: panels side by side while they are wide enough, else one below the other. */
function fitted(spec, frame) {
  if (isPicture(spec)) return spec;
  const { room, height } = frame;
  if (panelsOf(spec)) {
    const { hconcat, vconcat, ...rest } = spec;
    const parts = hconcat || vconcat;
    const columns = hconcat && room / parts.length >= PANEL.least ? parts.length : 1;
    const share = room / columns - PANEL.axes;
    const inner = (part) => fitted(part, { ...frame, room: panelsOf(part) ? room : share });
    return { ...rest, concat: parts.map(inner), columns };
  }
  if (isMap(spec)) {
    const side = Math.min(room - 130, 1.5 * height);
    return { ...spec, width: side, height: side };
  }
  const tall = typeof spec.height === "number" ? height : barsHeight(spec, frame);
  return { ...withLegends(spec, frame.legends, frame.card), width: room, height: tall };
}

/* On a card: the first panel, without its title, and without zooming, which would catch the reader's scrolling. */
function onCard(spec, frame) {
  if (isPicture(spec)) return spec;
  if (panelsOf(spec)) {
    const { datasets, config, params } = spec;
    const first = panelsOf(spec)[0];
    const names = new Set([first.name, ...(first.layer || []).map((layer) => layer.name)]);
    const own = (params || []).filter((param) => param.views.some((view) => names.has(view)));
    const seen = own.map((param) => ({ ...param, views: param.views.filter((view) => names.has(view)) }));
    return onCard({ ...first, datasets, config, params: seen }, frame);
  }
  const { title, ...rest } = spec;
  const params = (spec.params || []).filter((param) => param.select.type !== "interval");
  const legend = { ...spec.config.legend, labelFontSize: 11, symbolSize: 55 };
  const axis = { ...spec.config.axis, labelFontSize: 11, titleFontSize: 11, titleLimit: Math.max(frame.height, 200) };
  return fitted({ ...rest, params, config: { ...spec.config, legend, axis } }, frame);
}

const font = getComputedStyle(document.documentElement).fontFamily;

async function draw(target) {
  const card = target.closest(".card") !== null;
  const room = target.clientWidth;
  target.dataset.width = room;
  const [role, words] = [target.getAttribute("role"), target.getAttribute("aria-label")];
  const spec = JSON.parse(document.getElementById(target.dataset.chart).textContent);
  const left = Math.min(CARD.most, Math.max(CARD.least, target.clientHeight - CARD.around));
  const frame = { room, legends: room, height: card ? left : HEIGHT, datasets: spec.datasets, card };
  const sized = card ? onCard(spec, frame) : fitted(spec, frame);
  const single = sized.layer || (sized.mark && !isMap(sized) && !isPicture(sized));
  const options = {
    mode: "vega-lite",
    ast: true,
    renderer: "svg",
    actions: card ? false : { export: true, source: false, compiled: false, editor: false },
    downloadFileName: target.dataset.name,
  };
  const config = { ...sized.config, aria: false, font, background: "transparent" };
  const autosize = single ? { autosize: { type: "fit-x", contains: "padding" } } : {};
  await vegaEmbed(target, { ...sized, ...autosize, config }, options);
  /* Read out as one thing, with the words of the page: not as hundreds of marks. */
  target.setAttribute("role", role);
  target.setAttribute("aria-label", words);
  target.querySelector("svg.marks").setAttribute("aria-hidden", "true");
}

/* One after the other, so that the page answers meanwhile; again where the window made a column wider or narrower. */
let drawing = Promise.resolve();
function drawAll() {
  drawing = drawing.then(async () => {
    const plots = Array.from(document.querySelectorAll(".plot"));
    const changed = plots.filter((plot) => Math.abs(plot.clientWidth - Number(plot.dataset.width || 0)) > 8);
    for (const target of changed) target.replaceChildren();  // a card's chart takes what its text leaves
    for (const target of changed) {
      await draw(target).catch((error) => {
        target.textContent = `This chart could not be drawn: ${error.message}`;
        console.error(error);
      });
      await new Promise((done) => setTimeout(done));
    }
    document.documentElement.classList.add("drawn");
  });
}

drawAll();
let later = 0;
window.addEventListener("resize", () => {
  clearTimeout(later);
  document.documentElement.classList.remove("drawn");
  later = setTimeout(drawAll, 200);
});
