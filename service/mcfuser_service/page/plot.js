// Figures: each function takes data and options and gives an element of SVG.
//
// Options of all: `title`, `width` (px, else what the window has room for), `empty` (what is said
// where there is nothing to show). An axis is { title, unit, scale: "linear" | "log", zero: false }:
// units of s, B, B/s, flop and flop/s get prefixes, and zero: false lets a linear axis begin
// elsewhere. Values that are missing or not finite, or not positive on a logarithmic axis, are left
// out, and the figure says how many.

import { framed } from "./axes.js";
import { isPlaced, quantity, scaleOf } from "./scale.js";
import { COLOUR, LINE, empty, label, shape, sheet, wrapped } from "./svg.js";

export { downloads } from "./downloads.js";
export { quantity } from "./scale.js";

const NOTHING = "There is nothing to show yet.";
const THICK = 12;  // px, of a bar
const COLOURS = [COLOUR.accent, COLOUR.faint, COLOUR.ink];

// Horizontal bars, each beneath its whole name: rows are { name, value, note?, href?, faint? }, and
// options have `unit` and `scale`.
export function bars(rows, options = {}) {
  const drawn = rows.map((row) => ({ ...row, words: [quantity(row.value, options.unit), row.note].filter(Boolean).join(", ") }));
  return drawBars(drawn, options, (count) => `${count} bars`);
}

// What pruning left: rows are { name, count }, in the order of the rules, the first one being the
// whole space. A paler bar is what a rule removed. The scale is logarithmic unless options say
// otherwise.
export function waterfall(rows, options = {}) {
  let before = null;
  const drawn = rows.map(({ name, count }) => {
    const removed = before === null || !before ? "" : before === count ? ", none removed" : `, ${share(1 - count / before)} removed`;
    const more = before !== null && count > before; // each candidate in several settings
    const row = { name, value: count, behind: before, words: more ? quantity(count) : `${quantity(count)} left${removed}` };
    before = count;
    return row;
  });
  if (drawn.length) drawn[0].words = quantity(drawn[0].value);
  return drawBars(drawn, { scale: "log", ...options }, (count) => `candidates after each of ${count} steps`);
}

function share(part) {
  const percent = part * 100;
  return percent > 99 && percent < 100 ? `${Math.min(99.99, Number(percent.toFixed(2)))} %` : `${Number(percent.toFixed(percent < 10 ? 1 : 0))} %`;
}

function drawBars(rows, options, summary) {
  const page = sheet(options);
  if (!rows.length) return empty(page, options.empty ?? NOTHING);
  const log = options.scale === "log";
  const values = rows.map((row) => row.value).filter((value) => isPlaced(value, options.scale));
  const scale = scaleOf(log ? [1, ...values] : [0, ...values], { scale: options.scale, unit: options.unit });
  const low = log && values.length && Math.min(...values) < 1 ? scaleOf(values, options).low : log ? 1 : 0;
  const at = (value) => log
    ? Math.max(0, Math.log(value / low) / Math.log(scale.high / low))
    : scale.at(Math.max(0, value)) - scale.at(0);
  const long = (value) => (isPlaced(value, options.scale) ? Math.max(1, at(value) * page.width) : 0);
  const marks = [];
  let y = page.top;
  for (const row of rows) {
    const group = shape("g");
    const value = wrapped(row.words, page.width / 2).join(" ");
    const names = wrapped(row.name, page.width - 12 - 7 * value.length);
    names.forEach((words, line) => group.append(label(words, 0, y + LINE * (line + 1) - 4)));
    group.append(label(value, page.width, y + LINE - 4, { fill: COLOUR.faint, "text-anchor": "end" }));
    y += LINE * names.length;
    const bar = { x: 0, y, height: THICK, rx: 2 };
    group.append(shape("rect", { ...bar, width: page.width, fill: "transparent" }));
    if (row.behind != null)
      group.append(shape("rect", { ...bar, width: long(row.behind), fill: COLOUR.accent, opacity: 0.22 }));
    group.append(shape("rect", { ...bar, width: long(row.value), fill: row.faint ? COLOUR.faint : COLOUR.accent }));
    page.svg.append(group);
    const x = Math.min(page.width - 8, long(row.value));
    marks.push({ node: group, words: `${row.name}: ${row.words}`, x, y: y + THICK / 2, href: row.href });
    y += THICK + 8;
  }
  if (log) {
    page.svg.append(label("bars are logarithmic", page.width, y + LINE - 4, { fill: COLOUR.faint, "text-anchor": "end" }));
    y += LINE;
  }
  return page.finish(y + 2, summary(rows.length), marks);
}

// Points of series { name, points: [{ x, y, name, href? }], faint?, bad? }. Options have the axes x
// and y, and may have `diagonal` (the line on which both are equal, with these words), or `roofs`,
// each { name, peak, bandwidth }: of a device, in flop/s and B/s, over flop/B.
export function points(series, options = {}) {
  const roofs = options.roofs ?? [];
  const placed = (p) => isPlaced(p.x, options.x?.scale) && isPlaced(p.y, options.y?.scale);
  const shown = series.flatMap((one) => one.points).filter(placed);
  if (!shown.length && !roofs.length) return empty(sheet(options), options.empty ?? NOTHING);
  let xs = shown.map((p) => p.x), ys = shown.map((p) => p.y);
  if (options.diagonal) xs = ys = [...xs, ...ys];
  for (const roof of roofs) {
    const ridge = roof.peak / roof.bandwidth;
    xs = [...xs, ridge / 10, ridge * 4];
    ys = [...ys, roof.peak, roof.peak / 20];
  }
  const keys = series.filter((one) => one.points.length).map((one, at) => ({ name: one.name, draw: (x, y) => dot(one, at, x, y) }));
  const frame = framed(options, xs, ys, keys);
  if (options.diagonal) drawDiagonal(frame, options.diagonal);
  for (const roof of roofs) drawRoof(frame, roof);
  const marks = drawDots(frame, series, options);
  return finished(frame, series, marks);
}

function drawDots(frame, series, options) {
  const marks = [];
  series.map((one, at) => [one, at]).reverse().forEach(([one, at]) => { // the first on top
    for (const point of one.points) {
      const place = frame.place(point.x, point.y);
      if (place === null) continue;
      const node = dot(one, at, ...place);
      frame.svg.append(node);
      marks.push({ node, words: told(point, options), x: place[0], y: place[1], href: point.href });
    }
  });
  return marks.sort((a, b) => a.x - b.x || a.y - b.y);
}

function told(point, { x = {}, y = {} }) {
  const pair = [[x, point.x], [y, point.y]].map(([axis, value]) => `${axis.title ?? ""} ${quantity(value, axis.unit)}`.trim());
  return [point.name, ...pair].filter(Boolean).join(", ");
}

// The mark of a series: a disc, then a ring, then a square; what is bad is a cross.
function dot(one, at, x, y) {
  const colour = one.bad ? COLOUR.bad : one.faint ? COLOUR.faint : COLOURS[at % COLOURS.length];
  const group = shape("g", {}, shape("circle", { cx: x, cy: y, r: 7, fill: "transparent" }));
  if (one.bad) {
    const cross = `M${x - 3.5} ${y - 3.5}l7 7m0 -7l-7 7`;
    group.append(shape("path", { d: cross, fill: "none", stroke: colour, "stroke-width": 1.6 }));
  } else if (one.faint || at % COLOURS.length === 1) {
    group.append(shape("circle", { cx: x, cy: y, r: 3, fill: COLOUR.ground, stroke: colour, "stroke-width": 1.4 }));
  } else if (at % COLOURS.length === 2) {
    group.append(shape("rect", { x: x - 3, y: y - 3, width: 6, height: 6, fill: colour }));
  } else {
    group.append(shape("circle", { cx: x, cy: y, r: 3.5, fill: colour, "fill-opacity": 0.75 }));
  }
  return group;
}

function drawDiagonal(frame, words) {
  const low = Math.max(frame.x.low, frame.y.low), high = Math.min(frame.x.high, frame.y.high);
  const [from, to] = [frame.place(low, low), frame.place(high, high)];
  if (from === null || to === null) return;
  const ends = { x1: from[0], y1: from[1], x2: to[0], y2: to[1] };
  frame.svg.append(
    shape("line", { ...ends, stroke: COLOUR.faint, "stroke-dasharray": "4 4" }),
    label(words, to[0] - 30, to[1] + 5, { fill: COLOUR.faint, "text-anchor": "end" }));
}

// A roof: what memory allows up to the ridge, and then the peak.
function drawRoof(frame, { name, peak, bandwidth }) {
  const { x, y } = frame, ridge = peak / bandwidth;
  const start = Math.max(x.low, y.low / bandwidth);
  const corners = [[start, start * bandwidth], [Math.max(ridge, start), peak], [x.high, peak]];
  const places = corners.map((pair) => frame.place(...pair)).filter(Boolean);
  if (places.length < 3) return;
  const path = places.map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join(" ");
  const right = { fill: COLOUR.faint, "text-anchor": "end" };
  const slope = `${quantity(bandwidth, "B/s")}`, ceiling = [name, quantity(peak, "flop/s")].filter(Boolean).join(", ");
  const half = [(places[0][0] + places[1][0]) / 2, (places[0][1] + places[1][1]) / 2];
  frame.svg.append(
    shape("polyline", { points: path, fill: "none", stroke: COLOUR.ink, "stroke-width": 1.5 }),
    label(ceiling, frame.right, places[2][1] - 6, right),
    label(slope, half[0] - 8, half[1] - 4, right));
}

// Lines of steps: series { name, points: [{ x, y, name? }], dots?, faint?, bad? }, where each value
// holds until the next; those with `dots` are points alone. Best so far is such a line over the
// candidates that it is the best of. The axis x goes on to its `until`, and the lines then end with
// their last points: they are not complete.
export function steps(series, options = {}) {
  const placed = (p) => isPlaced(p.x, options.x?.scale) && isPlaced(p.y, options.y?.scale);
  const shown = series.flatMap((one) => one.points).filter(placed);
  if (!shown.length) return empty(sheet(options), options.empty ?? NOTHING);
  const keys = series.filter((one) => one.points.length)
    .map((one, at) => ({ name: one.name, draw: (x, y) => (one.dots ? dot(one, at, x, y) : stroke(one, at, [[x - 6, y], [x + 7, y]])) }));
  const until = options.x?.until;
  const xs = shown.map((p) => p.x).concat(until ?? []);
  const frame = framed(options, xs, shown.map((p) => p.y), keys);
  const marks = drawDots(frame, series.map((one) => (one.dots ? one : { ...one, points: [] })), options);
  series.forEach((one, at) => {
    if (one.dots) return;
    const corners = [];
    for (const point of one.points) {
      const place = frame.place(point.x, point.y);
      if (place === null) continue;
      if (corners.length) corners.push([place[0], corners.at(-1)[1]]);
      corners.push(place);
      const node = shape("circle", { cx: place[0], cy: place[1], r: 7, fill: "transparent" });
      marks.push({ node, words: told({ ...point, name: point.name ?? one.name }, options), x: place[0], y: place[1] });
    }
    if (!corners.length) return;
    const [x, y] = corners.at(-1);
    if (until == null) frame.svg.append(stroke(one, at, [...corners, [frame.right, y]]));
    else frame.svg.append(stroke(one, at, corners), shape("circle", { cx: x, cy: y, r: 3, fill: COLOURS[at % COLOURS.length] }));
  });
  frame.svg.append(...marks.filter((mark) => !mark.node.isConnected && !mark.node.parentNode).map((mark) => mark.node));
  return finished(frame, series, marks.sort((a, b) => a.x - b.x));
}

function stroke(one, at, corners) {
  const colour = one.faint ? COLOUR.faint : COLOURS[at % COLOURS.length];
  const path = corners.map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join(" ");
  return shape("polyline", { points: path, fill: "none", stroke: colour, "stroke-width": 2, "pointer-events": "none" });
}

function finished(frame, series, marks) {
  const every = series.reduce((sum, one) => sum + one.points.length, 0);
  const missing = every - marks.length;
  let end = frame.end;
  if (missing > 0) {
    const words = `${missing} of ${every} have no place on these axes`;
    frame.svg.append(label(words, frame.right, end + LINE - 6, { fill: COLOUR.faint, "text-anchor": "end" }));
    end += LINE;
  }
  const said = `${marks.length} points, ${frame.y.words || "values"} against ${frame.x.words || "values"}`;
  return frame.finish(end, missing > 0 ? `${said}; ${missing} more have no place on these axes` : said, marks);
}
