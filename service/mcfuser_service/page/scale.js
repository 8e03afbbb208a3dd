// Axes without their drawing: scales, round ticks, and numbers as people read them.

import { count as grouped } from "./format.js";

const PREFIXES = ["n", "µ", "m", "", "k", "M", "G", "T", "P", "E"];
const BASE = PREFIXES.indexOf("");
const PREFIXED = new Set(["s", "B", "B/s", "flop/s", "flop"]);
const STEPS = [1, 2, 5, 10];

// Whether a value can be placed on a scale: null, NaN and the infinities cannot, nor can zero and
// negative numbers on a logarithmic one.
export function isPlaced(value, scale = "linear") {
  return typeof value === "number" && Number.isFinite(value) && (scale !== "log" || value > 0);
}

// A number with its unit and three digits: 0.0000123 and "s" give "12.3 µs". A missing one is "–".
export function quantity(value, unit = "") {
  if (typeof value !== "number" || !Number.isFinite(value)) return "–";
  if (!unit && Number.isInteger(value)) return grouped(value);
  const power = PREFIXED.has(unit) ? prefix(value) : 0;
  const shown = digits(value / 1000 ** power);
  if (Math.abs(Number(shown)) >= 1000 && PREFIXED.has(unit) && BASE + power + 1 < PREFIXES.length)
    return `${digits(value / 1000 ** (power + 1))} ${PREFIXES[BASE + power + 1]}${unit}`;
  return unit ? `${shown} ${PREFIXES[BASE + power]}${unit}` : shown;
}

function plain(value) {
  return Number.isInteger(value) ? grouped(value) : String(value);
}

// The power of 1000 of a value's prefix.
function prefix(value) {
  if (value === 0) return 0;
  const power = Math.floor(Math.log10(Math.abs(value)) / 3 + 1e-9);
  return Math.max(-BASE, Math.min(PREFIXES.length - 1 - BASE, power));
}

function digits(value) {
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-4)) return value.toExponential(2);
  if (size >= 100) return String(Math.round(value));
  return String(Number(value.toPrecision(3)));
}

// The least step of 1, 2 or 5 times a power of ten with which a span has at most `count` steps.
function stepOf(span, count) {
  const least = span / count;
  const power = 10 ** Math.floor(Math.log10(least));
  return power * STEPS.find((step) => step * power >= least * (1 - 1e-9));
}

function multiples(low, high, step) {
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at++)
    found.push(Number((at * step).toPrecision(12)));
  return found;
}

function linear(values, zero, count) {
  let low = Math.min(...ends(values)), high = Math.max(...ends(values));
  if (zero) [low, high] = [Math.min(0, low), Math.max(0, high)];
  if (low === high) [low, high] = low === 0 ? [0, 1] : [Math.min(0, 2 * low), Math.max(0, 2 * low)];
  const step = stepOf(high - low, count);
  low = Math.floor(low / step + 1e-9) * step;
  high = Math.ceil(high / step - 1e-9) * step;
  return { low, high, ticks: multiples(low, high, step) };
}

// Math.min and Math.max take no more arguments than the stack has room for.
function ends(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

function logarithmic(values, count) {
  let [low, high] = ends(values);
  if (low === high) [low, high] = [low / 2, high * 2];
  if (high / low <= 5) {  // the powers of ten are too far apart: the ticks of a linear scale
    const step = stepOf(high - low, count);
    const below = Math.floor(low / step + 1e-9) * step;
    const first = below > 0 ? below : low;
    const last = Math.ceil(high / step - 1e-9) * step;
    return { low: first, high: last, ticks: multiples(first, last, step) };
  }
  const [first, last] = [rounded(low, -1), rounded(high, 1)];
  const decades = Math.log10(last / first);
  const mantissas = decades <= count / 3 ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil(decades / count));
  const ticks = [];
  for (let power = Math.floor(Math.log10(first)); power <= Math.ceil(Math.log10(last)); power++) {
    if (power % every !== 0) continue;
    for (const mantissa of mantissas) {
      const tick = Number(`${mantissa}e${power}`);
      if (tick >= first * (1 - 1e-9) && tick <= last * (1 + 1e-9)) ticks.push(tick);
    }
  }
  return { low: first, high: last, ticks };
}

// The nearest 1, 2 or 5 times a power of ten that is not above (-1) or not below (1) a value.
function rounded(value, direction) {
  const power = Math.floor(Math.log10(value));
  const near = [power - 1, power, power + 1].flatMap((p) => [1, 2, 5].map((m) => Number(`${m}e${p}`)));
  return direction < 0
    ? Math.max(...near.filter((n) => n <= value * (1 + 1e-9)))
    : Math.min(...near.filter((n) => n >= value * (1 - 1e-9)));
}

// The scale of an axis { title, unit, scale: "linear" | "log", zero: false } over the values that
// can be placed on it: `at` gives a value's place from 0 to 1, `ticks` are { value, words }, and
// `words` is the title, with the unit where the ticks have none. `count` is about how many ticks
// there are. Without values the scale goes from 0 to 1, or from 1 to 10.
export function scaleOf(values, axis = {}, count = 5) {
  const log = axis.scale === "log", unit = axis.unit ?? "";
  const placed = values.filter((value) => isPlaced(value, axis.scale));
  const given = placed.length ? placed : log ? [1, 10] : [0, 1];
  const { low, high, ticks } = log ? logarithmic(given, count) : linear(given, axis.zero !== false, count);
  const at = log
    ? (value) => Math.log(value / low) / Math.log(high / low)
    : (value) => (value - low) / (high - low);
  const power = PREFIXED.has(unit) ? prefix(Math.max(Math.abs(low), Math.abs(high))) : 0;
  const shownUnit = unit && `${PREFIXES[BASE + power]}${unit}`;
  const tell = (value) => (log || !unit
    ? quantity(value, PREFIXED.has(unit) ? unit : "")
    : plain(Number((value / 1000 ** power).toPrecision(6))));
  const inTitle = log && PREFIXED.has(unit) ? "" : shownUnit;
  const words = [axis.title, inTitle && `(${inTitle})`].filter(Boolean).join(" ");
  return { low, high, at, words, ticks: ticks.map((value) => ({ value, words: tell(value) })) };
}
