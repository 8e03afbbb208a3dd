// What became of a job: its chains, where the time goes, and how the kernels were found.

import { getAll } from "./api.js";
import { element, failure, show, table } from "./dom.js";
import { count, duration, error, percent, time } from "./format.js";
import { chainCard, modelStrip, operators } from "./picture.js";
import { bars, downloads, points, steps, waterfall } from "./plot.js";
import { RULES } from "./rules.js";

const MOST_BARS = 24;
const MOST_SEARCHES = 6; // kernels whose candidates are shown
const MOST_CURVES = 3; // as many as can be told from each other

export function results(root, job, signal) {
  const { report } = job;
  if (!Array.isArray(report.chains)) return;
  const kernels = kernelsOf(report);
  const name = job.name ?? job.id.slice(0, 8);
  show(root, summary(report, kernels), chainsSection(report, name),
    element("h2", {}, "Where the time goes"), timeSection(report, kernels, name),
    kernels.length > 0 && [element("h2", {}, "How the kernels were found"), searchSection(kernels, name, signal)],
    tableSection(report), aloneSection(report));
}

// Every kernel that the module runs, once, with the chains that use it and in how many places.
function kernelsOf(report) {
  const found = new Map();
  report.chains.forEach((chain, at) => chain.kernels.forEach((kernel, part) => {
    const places = Math.max(1, chain.places.length);
    const known = found.get(kernel.key);
    if (known) {
      known.places += places;
      return;
    }
    const of = chain.kernels.length > 1 ? `, part ${part + 1} of ${chain.kernels.length}` : "";
    found.set(kernel.key, {
      ...kernel, places, href: `#/kernels/${kernel.key}`, title: `${at + 1} · ${chain.name}${of}`,
      seconds: kernel.measured_seconds ?? kernel.predicted_seconds,
    });
  }));
  return [...found.values()].sort((a, b) => b.seconds * b.places - a.seconds * a.places);
}

function summary(report, kernels) {
  const fused = report.chains.filter((chain) => chain.fused).length;
  const run = report.functions?.reduce((sum, f) => sum + f.seconds, 0);
  const tuned = report.functions?.filter((f) => f.tuned).reduce((sum, f) => sum + f.seconds, 0);
  const check = report.check ?? {};
  const found = [
    ["Chains fused", `${fused} of ${report.chains.length}`],
    ["Kernels", count(kernels.length)],
    ["One run", run ? time(run) : null],
    ["In tuned kernels", run ? percent(tuned / run) : null],
    ["Error against onnxruntime", check.error != null ? error(check.error) : null],
    ["Tuned in", duration(report.seconds?.tuning)],
    ["Built in", duration(report.seconds?.building)],
    ["Times are", report.times],
  ];
  return [
    element("h2", {}, "Result"),
    element("dl", { class: "facts" }, found.filter(([, words]) => words).map(([head, words]) =>
      element("div", {}, element("dt", {}, head), element("dd", {}, words)))),
    check.skipped && element("p", { class: "muted" }, `Not compared with onnxruntime: ${check.skipped}.`),
  ];
}

// --- the chains --------------------------------------------------------------------------------

function chainsSection(report, name) {
  const { outline } = report;
  const rows = () => outline.steps.map((step) => ({
    chain: step.chain === null ? "" : step.chain + 1, name: step.name, operators: operators(step), reason: step.reason ?? "",
  }));
  return [
    element("h2", {}, "Chains"),
    outline && downloads(modelStrip(report), `${name} model`, rows),
    report.chains.length === 0 && element("p", {}, "The model has no chain; TVM computes all of it."),
    element("div", { class: "chain-cards" }, report.chains.map((chain, at) => chainCard(chain, at + 1))),
    outline && restTable(outline),
  ];
}

// The operators in no chain, by the reasons.
function restTable({ steps: all }) {
  const reasons = new Map();
  for (const step of all.filter((one) => one.chain === null)) {
    const known = reasons.get(step.reason) ?? { operators: {}, first: step.name };
    for (const [name, n] of Object.entries(step.operators)) known.operators[name] = (known.operators[name] ?? 0) + n;
    reasons.set(step.reason, known);
  }
  if (!reasons.size) return null;
  return element("details", {},
    element("summary", {}, "Operators in no chain, and why"),
    table("Operators in no chain", ["Operators", "The first", "Why"],
      [...reasons].map(([reason, found]) => [operators(found), found.first, reason])));
}

// --- time --------------------------------------------------------------------------------------

function timeSection(report, kernels, name) {
  const { functions } = report;
  const parts = [];
  if (functions?.length) {
    const whole = functions.reduce((sum, f) => sum + f.seconds, 0);
    const rows = functions.slice(0, MOST_BARS).map((f) => ({
      name: f.name, value: f.seconds, faint: !f.tuned,
      note: [percent(f.seconds / whole), f.calls > 1 && `${digitsOf(f.calls)} calls`].filter(Boolean).join(", "),
    }));
    parts.push(figure(bars(rows, { title: "Time of a run, by function", unit: "s" }), `${name} functions`, functions,
      "Measured one after another, all calls of a run together. Tuned kernels are coloured; TVM's functions are grey.",
      functions.length > MOST_BARS && `${functions.length - MOST_BARS} shorter ones are in the CSV.`));
  }
  if (kernels.length) {
    const rows = kernels.slice(0, MOST_BARS).map((k) => ({
      name: k.title, value: k.seconds * k.places, href: k.href, note: k.places > 1 && `${k.places} places`,
    }));
    parts.push(figure(bars(rows, { title: "Time by kernel, in all its places", unit: "s" }), `${name} kernels`,
      kernels.map((k) => ({ kernel: k.title, key: k.key, places: k.places, seconds: k.seconds })),
      "As each kernel was timed alone; a bar leads to its kernel."));
    parts.push(rooflineFigure(kernels, name));
  }
  const [first, ...others] = parts.filter(Boolean);
  return first ? element("div", { class: "pair" }, first, element("div", { class: "stack" }, others))
    : element("p", { class: "muted" }, "Nothing was timed: no chain has a kernel, and the module was not run here.");
}

function rooflineFigure(kernels, name) {
  const placed = kernels.filter((k) => k.work && k.work.operations > 0);
  if (!placed.length) return null;
  const roofs = new Map(placed.map(({ work }) => [work.peak, { name: "peak", peak: work.peak, bandwidth: work.bandwidth }]));
  const point = (k) => ({
    name: k.title, x: k.work.operations / k.work.bytes, y: k.work.operations / k.seconds, href: k.href,
  });
  const series = [
    { name: "measured", points: placed.filter((k) => k.measured_seconds != null).map(point) },
    { name: "predicted", faint: true, points: placed.filter((k) => k.measured_seconds == null).map(point) },
  ].filter((one) => one.points.length);
  const svg = points(series, {
    title: "Roofline",
    x: { title: "operations a byte", unit: "flop/B", scale: "log" },
    y: { title: "operations a second", unit: "flop/s", scale: "log" },
    roofs: [...roofs.values()],
  });
  const beyond = placed.some((k) => k.measured_seconds != null && k.work.operations / k.seconds > 1.1 * k.work.peak);
  const rows = placed.map((k) => ({ kernel: k.title, operations: k.work.operations, bytes: k.work.bytes, seconds: k.seconds }));
  return figure(svg, `${name} roofline`, rows,
    "Inputs and outputs are counted once. What fits a cache can be above the slope of memory.",
    beyond && "Kernels are above the peak: it is what the device’s probe reached, and less where the machine was busy.");
}

// --- the searches -------------------------------------------------------------------------------

function searchSection(kernels, name, signal) {
  const drawing = element("div", {});
  const draw = (at) => {
    const kernel = kernels[at];
    const rows = Object.entries(kernel.candidates).map(([rule, left]) => ({ name: RULES[rule] ?? rule, count: left }));
    if (!rows.length) {
      show(drawing, element("p", { class: "muted" }, "It was built as a lock has it, without a search."));
      return;
    }
    rows.push({ name: "tried", count: kernel.trials });
    show(drawing, figure(waterfall(rows, { title: `Candidates of ${kernel.title}` }), `${name} pruning`, rows));
  };
  draw(0);
  const choice = element("select", { change: (event) => draw(event.target.selectedIndex) },
    kernels.map((kernel) => element("option", {}, kernel.title)));
  const figures = element("div", { class: "searches" }, element("p", { class: "muted" }, "Reading the candidates …"));
  drawCandidates(figures, kernels, name, signal);
  return element("div", { class: "pair" },
    element("div", {}, element("label", { class: "inline" }, "Kernel", choice), drawing), figures);
}

// What is kept of the candidates of the kernels that take longest.
async function drawCandidates(root, kernels, name, signal) {
  const found = [];
  try {
    for (const kernel of kernels.slice(0, MOST_SEARCHES)) {
      found.push({ kernel, tried: await getAll(`/v1/kernels/${kernel.key}/candidates?limit=500`, 2000, { signal }) });
    }
  } catch (failed) {
    if (!signal.aborted) show(root, failure(failed));
    return;
  }
  show(root, bestFigure(found, name), predictedFigure(found, kernels, name));
}

// The best candidate so far of each search, as a multiple of the best of all.
function bestFigure(found, name) {
  const series = [], rows = [];
  for (const { kernel, tried } of found) {
    if (series.length === MOST_CURVES) break;
    const line = bestSoFar(tried.map((one) => (one.failed ? null : one.measured)));
    if (!line.length) continue;
    const best = line.at(-1).y;
    series.push({ name: kernel.title, points: line.map(({ x, y }) => ({ x, y: y / best, name: `${kernel.title}, ${time(y)}` })) });
    rows.push(...line.map(({ x, y }) => ({ kernel: kernel.title, candidate: x, seconds: y })));
  }
  if (!series.length) return element("p", { class: "muted" }, "No measured candidates of these kernels are kept here.");
  const svg = steps(series, {
    title: "Best so far", x: { title: "candidates measured" }, y: { title: "time, as a multiple of the best", zero: false },
  });
  return figure(svg, `${name} searches`, rows, found.length > series.length && "Of the searched kernels that take longest.");
}

function predictedFigure(found, kernels, name) {
  const tried = found.flatMap(({ kernel, tried: every }) => every
    .filter((one) => one.measured != null && one.predicted != null)
    .map((one) => ({ name: `a candidate of ${kernel.title}`, x: one.predicted, y: one.measured, href: kernel.href })));
  const chosen = kernels.filter((k) => k.measured_seconds != null && k.predicted_seconds != null)
    .map((k) => ({ name: k.title, x: k.predicted_seconds, y: k.measured_seconds, href: k.href }));
  if (!tried.length && !chosen.length) return null;
  const series = [{ name: "chosen", points: chosen }, { name: "candidates", faint: true, points: tried }];
  const svg = points(series.filter((one) => one.points.length), {
    title: "Predicted against measured", diagonal: "equal",
    x: { title: "predicted", unit: "s", scale: "log" }, y: { title: "measured", unit: "s", scale: "log" },
  });
  const rows = [...chosen, ...tried].map((one) => ({ kernel: one.name, predicted: one.x, measured: one.y }));
  return figure(svg, `${name} predictions`, rows, "The model ranks candidates; only what is measured decides.");
}

// The points at which a better one was found, and the end; `times` are null where a candidate failed.
export function bestSoFar(times) {
  const line = [];
  times.forEach((seconds, at) => {
    if (seconds != null && seconds > 0 && (line.length === 0 || seconds < line.at(-1).y)) line.push({ x: at + 1, y: seconds });
  });
  if (line.length && line.at(-1).x < times.length) line.push({ x: times.length, y: line.at(-1).y });
  return line;
}

// --- tables --------------------------------------------------------------------------------------

function tableSection(report) {
  if (!report.chains.length) return null;
  return [
    element("h2", {}, "Every chain"),
    table("Every chain",
      ["Chain", "Kernels", { title: "Time", number: true }, { title: "Unfused", number: true }, { title: "Error", number: true }, "Result"],
      report.chains.map((chain, at) => [
        `${at + 1} · ${chain.name}${chain.places.length > 1 ? ` (×${chain.places.length})` : ""}`,
        chain.kernels.length ? chain.kernels.map((kernel) =>
          element("a", { class: "code kernel", href: `#/kernels/${kernel.key}` }, candidate(kernel))) : "TVM’s",
        time(chain.fused_seconds), time(chain.unfused_seconds),
        error(largest(chain.kernels.map((kernel) => kernel.error))),
        `${chain.fused ? "fused, " : ""}${chain.reason}`,
      ])),
  ];
}

function candidate(kernel) {
  const tiles = Object.entries(kernel.tiles).map(([axis, size]) => `${axis}=${size}`).join(" ");
  return `${kernel.expression} ${tiles}${kernel.split ? ` ${kernel.split}/${kernel.parts}` : ""}`;
}

function largest(errors) {
  const known = errors.filter((value) => value != null);
  return known.length ? Math.max(...known) : null;
}

// The products that share no kernel with another one, by the reasons.
function aloneSection(report) {
  const reasons = new Map();
  for (const product of report.products ?? []) {
    if (product.reason == null) continue;
    reasons.set(product.reason, [...(reasons.get(product.reason) ?? []), product.name]);
  }
  if (!reasons.size) return null;
  return element("details", {},
    element("summary", {}, "Products that share no kernel, and why"),
    table("Products that share no kernel", ["Products", "Why"], [...reasons].map(([reason, names]) =>
      [names.length > 8 ? `${names.slice(0, 8).join(", ")} and ${names.length - 8} more` : names.join(", "), reason])));
}

function figure(svg, name, rows, ...notes) {
  const made = downloads(svg, name, rows);
  const words = notes.filter(Boolean).join(" ");
  if (words) made.append(element("figcaption", {}, element("span", { class: "note" }, words)));
  return made;
}

function digitsOf(calls) {
  return Number.isInteger(calls) ? count(calls) : calls.toFixed(1);
}
