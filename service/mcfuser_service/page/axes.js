// The frame of a figure with two axes: its ticks, lines and titles, and where values are in it.

import { isPlaced, scaleOf } from "./scale.js";
import { COLOUR, LINE, label, shape, sheet, widthOf, wrapped } from "./svg.js";

const TALL = 260;  // px, of the area in which values are drawn
const RIGHT = 14;
const GAP = 8;

// Figures begin with their sheet, a legend of `keys` ({ name, draw: (x, y) => element }) and axes
// over the values of x and y. Gives the sheet with `place` ([x, y] in px of a pair of values, null
// for one that cannot be placed), the area's edges, and `end`, the figure's height.
export function framed(options, xs, ys, keys) {
  const page = sheet(options);
  const y = scaleOf(ys, options.y, 6);
  const legend = drawLegend(page, keys);
  const top = page.top + legend + LINE + GAP;
  const left = Math.max(...y.ticks.map((tick) => widthOf(tick.words)), 12) + GAP;
  const right = page.width - RIGHT, bottom = top + (options.height ?? TALL);
  const x = scaleOf(xs, options.x, Math.max(2, Math.min(7, Math.floor((right - left) / 70))));
  const across = (value) => left + x.at(value) * (right - left);
  const up = (value) => bottom - y.at(value) * (bottom - top);
  drawTicks(page.svg, { x, y, across, up, left, right, top, bottom });
  page.svg.append(label(y.words, 0, top - GAP - 3, { fill: COLOUR.faint }));
  const titles = wrapped(x.words, right);
  titles.forEach((words, at) => page.svg.append(
    label(words, right, bottom + LINE * (at + 2) + 2, { fill: COLOUR.faint, "text-anchor": "end" })));
  const place = (a, b) =>
    isPlaced(a, options.x?.scale) && isPlaced(b, options.y?.scale) ? [across(a), up(b)] : null;
  return { ...page, x, y, place, left, right, top, bottom, end: bottom + LINE * (titles.length + 1) + GAP };
}

function drawTicks(svg, { x, y, across, up, left, right, top, bottom }) {
  const line = (x1, y1, x2, y2, stroke) => svg.append(shape("line", { x1, y1, x2, y2, stroke }));
  for (const { value, words } of y.ticks) {
    line(left, up(value), right, up(value), COLOUR.line);
    svg.append(label(words, left - GAP + 2, up(value) + 4, { fill: COLOUR.faint, "text-anchor": "end" }));
  }
  let free = -Infinity;  // where the last words of the x axis ended
  for (const { value, words } of x.ticks) {
    const at = across(value), wide = widthOf(words);
    line(at, bottom, at, bottom + 4, COLOUR.faint);
    if (at - wide / 2 < free) continue;
    const centre = Math.min(at, right + RIGHT - wide / 2);
    svg.append(label(words, centre, bottom + LINE + 2, { fill: COLOUR.faint, "text-anchor": "middle" }));
    free = centre + wide / 2 + GAP;
  }
  line(left, bottom, right, bottom, COLOUR.faint);
}

// Draws what each key stands for; gives the height of that. One key alone needs no legend.
function drawLegend(page, keys) {
  if (keys.length < 2) return 0;
  let x = 0, y = page.top;
  for (const { name, draw } of keys) {
    const wide = 18 + widthOf(name) + 14;
    if (x > 0 && x + wide > page.width) [x, y] = [0, y + LINE];
    page.svg.append(draw(x + 6, y + 6), label(name, x + 18, y + 10));
    x += wide;
  }
  return y - page.top + LINE + 4;
}
