// How a kernel's search found it: what pruning left, the candidates that were tried, the best so
// far; and where the kernel is under its device's roofline.

import { element, show, table } from "./dom.js";
import { count, error, time } from "./format.js";
import { downloads, points, steps, waterfall } from "./plot.js";
import { RULES } from "./rules.js";

const ROWS = 25; // candidates of the table, before all are asked for
const SECONDS = { unit: "s", scale: "log" };

export function searchSection(kernel, tried) {
  const name = kernel.chain.name;
  const right = tried.filter((one) => one.measured != null);
  const rows = tried.map((one, at) => ({ number: at + 1, ...flat(one) }));
  return [
    element("p", {}, standing(kernel, tried, right)),
    element("div", { class: "pair" },
      pruning(kernel, name),
      right.length > 0 && best(tried, name, rows),
      right.some((one) => one.predicted != null) && predicted(right, name, rows)),
    failures(kernel),
    tried.length > 0 && candidateTable(kernel, tried),
  ];
}

function standing(kernel, tried, right) {
  const search = kernel.budget ?? {};
  const ended = { settled: "It went on until nothing better was found.", trials: `It was cut short by trials=${search.trials}.`,
    time: `It was cut short after ${search.seconds} s.` }[search.ended] ?? "";
  if (!tried.length) {
    return kernel.measured == null
      ? "No candidate was measured: the model chose this one, and a search on the device replaces it."
      : "The candidates of this search were not kept.";
  }
  return `${count(tried.length)} candidates were tried, and ${count(tried.length - right.length)} of them failed. ${ended}`;
}

function pruning(kernel, name) {
  const rows = Object.entries(kernel.stages ?? {}).map(([rule, left]) => ({ name: RULES[rule] ?? rule, count: left }));
  return rows.length > 0 && downloads(waterfall(rows, { title: "Candidates left by each rule" }), `${name} pruning`, rows);
}

function best(tried, name, rows) {
  let least = Infinity;
  const line = [];
  tried.forEach((one, at) => {
    if (one.measured == null || one.measured >= least) return;
    least = one.measured;
    line.push({ x: at + 1, y: least, name: `best so far, ${words(one)}` });
  });
  const svg = steps([
    { name: "best so far", points: line },
    { name: "a candidate", points: tried.map((one, at) => ({ x: at + 1, y: one.measured, name: words(one) })), dots: true, faint: true },
  ], { title: "Best so far", x: { title: "candidates, in the order in which they were tried" }, y: { title: "measured", ...SECONDS } });
  return downloads(svg, `${name} candidates`, rows);
}

function predicted(right, name, rows) {
  const chosen = right.reduce((a, b) => (b.measured < a.measured ? b : a));
  const point = (one) => ({ x: one.predicted, y: one.measured, name: words(one) });
  const svg = points([
    { name: "the fastest", points: [point(chosen)] },
    { name: "other candidates", points: right.filter((one) => one !== chosen).map(point), faint: true },
  ], {
    title: "Predicted against measured", diagonal: "equal",
    x: { title: "predicted", ...SECONDS }, y: { title: "measured", ...SECONDS },
  });
  return downloads(svg, `${name} predictions`, rows);
}

function failures(kernel) {
  const rows = Object.entries(kernel.failed ?? {}).sort((a, b) => b[1] - a[1]).map(([why, number]) => [why, count(number)]);
  return rows.length > 0 && element("details", {}, element("summary", {}, "Why candidates failed"),
    table("Why candidates failed", ["Reason", { title: "Candidates", number: true }], rows));
}

// --- the candidates ----------------------------------------------------------------------------

function candidateTable(kernel, tried) {
  const numbered = tried.map((one, at) => ({ ...one, number: at + 1 }));
  const sorted = numbered.sort((a, b) => (a.measured ?? Infinity) - (b.measured ?? Infinity));
  const knobs = Object.keys(tried[0].lowering).filter((name) => new Set(tried.map((one) => String(one.lowering[name]))).size > 1);
  const failed = tried.some((one) => one.failed);
  const columns = [{ title: "Tried as", number: true }, { title: "Measured", number: true }, { title: "Predicted", number: true },
    { title: "Error", number: true }, "Loops", "Tiles", ...knobs.map((name) => ({ title: name.replaceAll("_", " "), number: true })), ...(failed ? ["Failed"] : [])];
  const place = element("div", {});
  const draw = (most) => {
    const rows = sorted.slice(0, most).map((one) => [
      count(one.number), time(one.measured), time(one.predicted), error(one.error),
      element("code", {}, one.expression + (one.split ? `, ${one.split} in ${one.parts} parts` : "")),
      element("code", {}, tiles(one)),
      ...knobs.map((name) => String(one.lowering[name])),
      ...(failed ? [one.failed ?? ""] : []),
    ]);
    show(place, table("Candidates, the fastest first", columns, rows), most < sorted.length && element("p", { class: "buttons" },
      element("button", { type: "button", click: () => draw(Infinity) }, `Show all ${count(sorted.length)}`)));
  };
  draw(ROWS);
  return element("div", { class: "candidates" }, element("h3", {}, "Candidates, the fastest first"), place);
}

function tiles(one) {
  return Object.entries(one.tiles).map(([axis, tile]) => `${axis}=${tile}`).join(" ");
}

function words(one) {
  const knobs = Object.entries(one.lowering).map(([name, value]) => `${name}=${value}`).join(" ");
  return `${one.expression} ${tiles(one)} ${knobs}`;
}

function flat({ lowering, tiles: sizes, ...one }) {
  const named = (prefix, values) => Object.fromEntries(Object.entries(values).map(([name, value]) => [`${prefix} ${name}`, value]));
  return { ...one, ...named("tile", sizes), ...named("knob", lowering) };
}

// --- the roofline ------------------------------------------------------------------------------

export function rooflineSection(kernel, found) {
  const known = found.kernels.filter((one) => one.operations > 0 && one.seconds > 0);
  if (!known.length || found.peak === null) return element("p", { class: "muted" }, `What ${found.device} can do is not known here.`);
  const point = (one) => ({
    name: one.measured ? one.chain : `${one.chain}, predicted`, x: one.operations / one.bytes, y: one.operations / one.seconds,
    href: one.key === kernel.key ? null : `#/kernels/${one.key}`,
  });
  const own = known.filter((one) => one.key === kernel.key), others = known.filter((one) => one.key !== kernel.key);
  const svg = points([
    { name: "this kernel", points: own.map(point) },
    { name: `others on ${found.device}`, points: others.map(point), faint: true },
  ], {
    title: `Roofline of ${found.device}`,
    x: { title: "operations a byte", unit: "flop/B", scale: "log" },
    y: { title: "operations a second", unit: "flop/s", scale: "log" },
    roofs: [{ name: "peak", peak: found.peak, bandwidth: found.bandwidth }],
  });
  const note = (own[0]?.measured ? "" : " Its time is predicted.")
    + (found.device === "cpu" ? " This CPU was probed once, by this server; on a busy machine it looks slower than it is." : "");
  return [
    downloads(svg, `${kernel.chain.name} roofline`, known),
    element("p", { class: "muted" }, `Inputs and outputs are counted once; what fits a cache can be above the slope of memory. The peak is that of this kernel's types.${note}`),
  ];
}
