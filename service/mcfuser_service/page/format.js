// Numbers, times and sizes as people read them.

// A short time with its unit: 812 ns, 12.4 µs, 3.21 ms, 1.50 s. null is a dash.
export function time(seconds) {
  if (seconds == null || !Number.isFinite(seconds)) return "–";
  const [scale, unit] = timeUnit(seconds);
  return `${digits(seconds / scale)} ${unit}`;
}

// The seconds of the unit in which a time is best written, and the unit's name: for figures, all of
// whose times have one unit.
export function timeUnit(seconds) {
  if (seconds === 0 || seconds >= 1) return [1, "s"];
  if (seconds >= 1e-3) return [1e-3, "ms"];
  return seconds >= 1e-6 ? [1e-6, "µs"] : [1e-9, "ns"];
}

// Three digits, so many as mean something in a measured time.
export function digits(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e6 || size < 1e-3) return value.toExponential(1);
  if (size >= 100) return count(Math.round(value));
  return value.toFixed(size >= 10 ? 1 : size >= 1 ? 2 : 3);
}

// A whole number with thin spaces between thousands.
export function count(value) {
  if (value == null) return "–";
  return String(value).replace(/\B(?=(\d{3})+$)/g, " ");
}

export function bytes(value) {
  if (value == null) return "–";
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let n = 0;
  for (; value >= 1024 && n < units.length - 1; n += 1) value /= 1024;
  return `${n === 0 ? count(value) : value.toFixed(1)} ${units[n]}`;
}

export function percent(part) {
  return part == null ? "–" : `${(100 * part).toFixed(part < 0.0995 ? 1 : 0)} %`;
}

// How long something takes or took: 8 s, 2 min 05 s, 1 h 12 min.
export function duration(seconds) {
  if (seconds == null || !Number.isFinite(seconds)) return "–";
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return seconds < 9.95 ? `${Math.max(0, seconds).toFixed(1)} s` : `${whole} s`;
  const two = (n) => String(n).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
}

// A moment of the server (ISO 8601) in the reader's time.
export function moment(words) {
  return words == null ? "–" : new Date(words).toLocaleString(undefined, {
    year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit",
  });
}

// A relative error: 6.1e-7.
export function error(value) {
  return value == null ? "–" : value === 0 ? "0" : value.toExponential(1);
}
