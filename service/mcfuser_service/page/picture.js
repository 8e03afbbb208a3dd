// The chains of a model as a picture: the order in which they run, and of each chain its operators
// in the frames of the kernels that compute them.

import { element } from "./dom.js";
import { count, time } from "./format.js";
import { downloads } from "./plot.js";
import { COLOUR, LINE, label, shape, sheet, widthOf, wrapped } from "./svg.js";

const WIDE = 300; // px, of a chain's picture
const TILE = 28;
const SOFT = "var(--accent-soft, #e6edfb)";

// --- the model, from its first operator to its last -------------------------------------------

// A tile for each chain, with its number, and a bar for the operators between two chains.
export function modelStrip(report) {
  const { steps, more } = report.outline;
  const page = sheet({ title: "The model, in the order in which it runs" });
  const marks = [];
  let x = 0, y = page.top;
  for (const step of steps) {
    const inChain = step.chain !== null;
    const wide = inChain ? TILE : 10;
    if (x + wide > page.width) [x, y] = [0, y + TILE + 8];
    const node = inChain ? chainTile(step, report.chains[step.chain], x, y) : restTile(x, y);
    page.svg.append(node);
    marks.push({ node, words: stepWords(step, report.chains), x: x + wide / 2, y: y + TILE / 2 });
    x += wide + 4;
  }
  y += TILE + LINE + 4;
  const key = "filled: fused; outlined: a kernel for each part; dashed: left to TVM; bar: operators in no chain";
  const lines = wrapped(more ? `${key}; ${count(more)} more are not shown` : key, page.width);
  lines.forEach((words, at) => page.svg.append(label(words, 0, y + LINE * at, { fill: COLOUR.faint })));
  return page.finish(y + LINE * lines.length - 4, `${steps.length} steps`, marks);
}

function chainTile(step, chain, x, y) {
  const kind = chain.fused ? "fused" : chain.kernels.length ? "apart" : "tvm";
  const box = { x: x + 0.75, y: y + 0.75, width: TILE - 1.5, height: TILE - 1.5, rx: 5, "stroke-width": 1.5 };
  const paint = {
    fused: { fill: COLOUR.accent, stroke: COLOUR.accent },
    apart: { fill: COLOUR.ground, stroke: COLOUR.accent },
    tvm: { fill: COLOUR.ground, stroke: COLOUR.faint, "stroke-dasharray": "3 3" },
  }[kind];
  const ink = { fused: "var(--on-accent, #fff)", apart: COLOUR.accent, tvm: COLOUR.faint }[kind];
  return shape("g", {}, shape("rect", { ...box, ...paint }),
    label(String(step.chain + 1), x + TILE / 2, y + TILE / 2 + 4, { fill: ink, "text-anchor": "middle" }));
}

function restTile(x, y) {
  return shape("g", {},
    shape("rect", { x, y, width: 10, height: TILE, fill: "transparent" }),
    shape("rect", { x: x + 3, y: y + 7, width: 4, height: TILE - 14, rx: 2, fill: COLOUR.faint, opacity: 0.6 }));
}

function stepWords(step, chains) {
  if (step.chain === null) return `${operators(step)}: ${step.reason}`;
  return `chain ${step.chain + 1}, ${step.name}: ${operators(step)}; ${chains[step.chain].reason}`;
}

// "2 reshape, add": the operators of a step.
export function operators(step) {
  return Object.entries(step.operators).map(([name, n]) => (n > 1 ? `${n} ${name}` : name)).join(", ");
}

// --- one chain -----------------------------------------------------------------------------------

// The picture of a chain, with its heading and buttons to save it.
export function chainCard(chain, number) {
  const name = `chain ${number} ${chain.name}`;
  const rows = nodesOf(chain).map((node) => ({ operator: node.text, kernel: node.kernel + 1 }));
  const places = chain.places.length;
  return element("article", { class: "chain-card" },
    element("h3", {}, `${number} · ${chain.name}`),
    element("p", { class: "muted" },
      [places > 1 && `in ${places} places`, chain.reason].filter(Boolean).join("; ")),
    downloads(chainPicture(chain, name), name, rows));
}

const OPERATOR = /^(\w+)\[(.*?)\] = (?:(sum|max|min)\[(.*?)\] )?(.*?)(?: where (.*))?$/s;
const PRODUCT = /^(?:\w+\()?([A-Za-z_]\w*)\[[^\]]*\]\)? \* (?:\w+\()?(?!\1\[)[A-Za-z_]\w*\[[^\]]*\]\)?$/;
const CASTS = new Set(["float16", "float32", "bfloat16", "float64", "int32", "int64", "int8", "uint8", "bool"]);

// What a chain's text says of an operator: its result, what it does, and what it reads.
function parsed(text) {
  const found = OPERATOR.exec(text);
  if (!found) return { out: text.split("[")[0], axes: "", kind: "map", reads: [] };
  const [, out, axes, reduce, over, body] = found;
  const reads = [...new Set([...text.slice(text.indexOf("=")).matchAll(/([A-Za-z_]\w*)\[/g)].map((m) => m[1]))]
    .filter((name) => name !== reduce);
  return { out, axes, reads, kind: kindOf(reduce, over, body) };
}

function kindOf(reduce, over, body) {
  if (reduce === "sum" && PRODUCT.test(body)) return `product over ${over}`;
  if (reduce) return `${reduce} over ${over}`;
  const calls = [...new Set([...body.matchAll(/([a-z_]\w*)\(/g)].map((m) => m[1]))].filter((name) => !CASTS.has(name));
  return calls.length ? calls.slice(0, 3).join(", ") : "map";
}

// The operators of a chain with the number of their kernel (0 where TVM computes them all), and their
// layer within it: an operator is below all that it reads.
function nodesOf(chain) {
  const made = new Map();
  const cut = chain.cut?.length ? chain.cut : chain.kernels.map((kernel) => kernel.operators.length);
  const ends = cut.map((_, at) => cut.slice(0, at + 1).reduce((sum, n) => sum + n, 0));
  return chain.operators.map((text, at) => {
    const kernel = Math.max(0, ends.findIndex((end) => at < end));
    const node = { ...parsed(text), text, kernel };
    const inside = node.reads.map((name) => made.get(name)).filter((other) => other?.kernel === kernel);
    node.layer = inside.length ? 1 + Math.max(...inside.map((other) => other.layer)) : 0;
    node.above = node.reads.map((name) => made.get(name)).filter(Boolean);
    node.inputs = node.reads.filter((name) => !made.has(name));
    made.set(node.out, node);
    return node;
  });
}

function chainPicture(chain, name) {
  const page = sheet({ width: WIDE });
  const nodes = nodesOf(chain);
  const frames = chain.kernels.length || 1;
  const edges = shape("g", { fill: "none", stroke: COLOUR.faint, "stroke-width": 1.2 });
  const boxes = shape("g");
  const marks = [];
  let y = 1;
  for (let at = 0; at < frames; at += 1) {
    const inside = nodes.filter((node) => node.kernel === at);
    if (!inside.length) continue;
    const top = y;
    y += LINE + 10;
    for (let layer = 0; layer <= Math.max(...inside.map((node) => node.layer)); layer += 1) {
      y = placeLayer(inside.filter((node) => node.layer === layer), y, boxes, marks) + 14;
    }
    page.svg.append(...frame(chain, at, top, y - top - 2));
    y += 14;
  }
  for (const node of nodes) for (const other of node.above) edges.append(arrow(other, node));
  page.svg.append(edges, boxes);
  return page.finish(y - 12, `${name}: ${nodes.length} operators in ${frames} kernels`, marks);
}

// The frame of a kernel, with its time.
function frame(chain, at, y, height) {
  const kernel = chain.kernels[at];
  const seconds = kernel?.measured_seconds ?? kernel?.predicted_seconds;
  const predicted = kernel && kernel.measured_seconds == null ? " predicted" : "";
  const words = kernel ? `kernel ${at + 1}, ${time(seconds)}${predicted}` : "left to TVM";
  const paint = kernel ? { fill: SOFT, stroke: COLOUR.accent }
    : { fill: "none", stroke: COLOUR.faint, "stroke-dasharray": "4 4" };
  return [
    shape("rect", { x: 0.75, y, width: WIDE - 1.5, height, rx: 7, "stroke-width": 1.5, ...paint }),
    label(words, 10, y + LINE, { fill: kernel ? COLOUR.accent : COLOUR.faint }),
  ];
}

const EDGE = 10; // px between boxes, and beside them

// Draws the operators of a layer beside each other; gives the lower end of the lowest.
function placeLayer(nodes, y, into, marks) {
  const wide = (WIDE - EDGE * (nodes.length + 1)) / nodes.length;
  let bottom = y;
  nodes.forEach((node, at) => {
    node.x = EDGE + at * (wide + EDGE);
    node.wide = wide;
    node.top = y;
    const lines = [[node.kind, COLOUR.ink, "600"], [`${node.out}[${node.axes}]`, COLOUR.ink, ""]];
    if (node.inputs.length) lines.push([`reads ${node.inputs.join(", ")}`, COLOUR.faint, ""]);
    const group = shape("g");
    const texts = lines.map(([words, fill, weight], line) =>
      label(fitted(words, wide - 14, weight), node.x + 7, y + LINE * (line + 1), { fill, "font-weight": weight || null }));
    node.bottom = y + LINE * lines.length + 7;
    const box = { x: node.x, y, width: wide, height: node.bottom - y, rx: 5, fill: COLOUR.ground, stroke: COLOUR.line };
    group.append(shape("rect", box), ...texts);
    into.append(group);
    marks.push({ node: group, words: node.text, x: node.x + 14, y: y + 14 });
    bottom = Math.max(bottom, node.bottom);
  });
  return bottom;
}

// A text that is cut where there is no room for it; the whole one can be read as the mark's words.
function fitted(words, width, weight) {
  if (widthOf(words, weight) <= width) return words;
  let end = words.length;
  while (end > 1 && widthOf(`${words.slice(0, end)}…`, weight) > width) end -= 1;
  return `${words.slice(0, end)}…`;
}

function arrow(from, to) {
  const x1 = from.x + from.wide / 2, x2 = to.x + to.wide / 2;
  const y1 = from.bottom, y2 = to.top, bend = Math.min(30, (y2 - y1) / 2);
  const d = `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}m-3 -5l3 5l3 -5`;
  const through = from.kernel !== to.kernel; // its value goes through memory
  return shape("path", { d, "stroke-dasharray": through ? "4 3" : null });
}
