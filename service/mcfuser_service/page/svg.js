// The parts of which figures are drawn: elements of SVG, wrapped text, marks that can be read one by
// one with the keyboard.

const SPACE = "http://www.w3.org/2000/svg";
const FONT = "system-ui, sans-serif";
const PAINTS = new Set(["fill", "stroke"]);
export const SIZE = 12;  // px, of all text
export const LINE = 16;

// The page's colours; they are followed when it turns dark.
export const COLOUR = {
  ground: "var(--ground, Canvas)",
  ink: "var(--text, CanvasText)",
  faint: "var(--faint, GrayText)",
  line: "var(--grid, #8883)",
  accent: "var(--accent, #2f6fc4)",
  bad: "var(--bad, #b3261e)",
};

// An element of SVG. Colours may be custom properties of the page; text becomes text nodes.
export function shape(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SPACE, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value == null) continue;
    if (PAINTS.has(name)) node.style.setProperty(name, value);
    else node.setAttribute(name, typeof value === "number" ? round(value) : value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

function round(value) {
  return String(Number(value.toFixed(2)));
}

export function label(words, x, y, attributes = {}) {
  return shape("text", { x, y, fill: COLOUR.ink, ...attributes }, words);
}

const pen = document.createElement("canvas").getContext("2d");

// The width of a text in a figure, px.
export function widthOf(words, weight = "") {
  pen.font = `${weight} ${SIZE}px ${FONT}`.trim();
  return pen.measureText(words).width;
}

// A text in lines that are at most so wide: broken at spaces where there are any, and else anywhere.
export function wrapped(words, width, weight = "") {
  const lines = [];
  let line = "";
  for (const word of String(words).split(/(?<=\s)/)) {
    if (widthOf(line + word.trimEnd(), weight) <= width) {
      line += word;
      continue;
    }
    if (line) lines.push(line);
    line = "";
    for (const letter of word) {
      if (line && widthOf((line + letter).trimEnd(), weight) > width) {
        lines.push(line);
        line = "";
      }
      line += letter;
    }
  }
  if (line || !lines.length) lines.push(line);
  return lines.map((one) => one.trimEnd());
}

// An empty figure with its title, `width` px wide: `top` is where its drawing begins. `finish`
// sets its height, what is said of it to those who do not see it, and its marks
// ({ node, words, x, y, href? }).
export function sheet(options) {
  const room = document.documentElement.clientWidth - 48;
  const width = options.width ?? Math.max(260, Math.min(640, room));
  const svg = shape("svg", {
    class: "plot", role: "img", "font-family": FONT, "font-size": SIZE, "text-rendering": "optimizeLegibility",
  });
  const lines = options.title ? wrapped(options.title, width, "600") : [];
  lines.forEach((line, at) => svg.append(label(line, 0, LINE * (at + 1) - 3, { "font-weight": 600 })));
  const top = lines.length ? lines.length * LINE + 8 : 4;
  const finish = (height, summary, marks = []) => {
    svg.setAttribute("viewBox", `0 0 ${round(width)} ${round(height)}`);
    svg.setAttribute("width", round(width));
    svg.setAttribute("height", round(height));
    svg.style.setProperty("max-width", "100%");
    svg.style.setProperty("height", "auto");
    const words = [options.title, summary].filter(Boolean).join(": ");
    svg.setAttribute("aria-label", words);
    if (marks.length) makeReadable(svg, marks, words, width, height);
    return svg;
  };
  return { svg, width, top, finish };
}

// A figure in which there is nothing.
export function empty({ svg, top, finish }, words) {
  svg.append(label(words, 0, top + LINE, { fill: COLOUR.faint }));
  return finish(top + 2 * LINE, words);
}

// Lets people read marks: each has its words as a title; the figure is one stop of the tab key, in
// which arrows, Home and End go from mark to mark, Enter follows a mark's link and Escape leaves.
function makeReadable(svg, marks, summary, width, height) {
  const box = shape("g", { class: "plot-words", "pointer-events": "none" });
  let current = -1;
  const show = (at) => {
    box.replaceChildren();
    marks[current]?.node.classList.remove("plot-current");
    current = at;
    const mark = marks[at];
    svg.setAttribute("aria-label", mark ? `${mark.words} (${at + 1} of ${marks.length}; ${summary})` : summary);
    if (!mark) return;
    mark.node.classList.add("plot-current");
    box.append(...boxOf(mark, width, height));
  };
  const keys = {
    ArrowRight: () => Math.min(marks.length - 1, current + 1),
    ArrowDown: () => Math.min(marks.length - 1, current + 1),
    ArrowLeft: () => Math.max(0, current - 1),
    ArrowUp: () => Math.max(0, current - 1),
    Home: () => 0,
    End: () => marks.length - 1,
    Escape: () => -1,
  };
  marks.forEach((mark, at) => {
    mark.node.classList.add("plot-mark");
    mark.node.append(shape("title", {}, mark.words));
    mark.node.addEventListener("click", () => (mark.href ? follow(mark.href) : show(at)));
    if (mark.href) mark.node.style.setProperty("cursor", "pointer");
  });
  svg.setAttribute("tabindex", "0");
  svg.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "Enter" && marks[current]?.href) follow(marks[current].href);
    const next = Object.hasOwn(keys, event.key) ? keys[event.key]() : null;
    if (next === null) return;
    event.preventDefault();
    show(next);
  });
  svg.addEventListener("blur", () => show(-1));
  svg.append(box);
}

function follow(href) {
  if (href.startsWith("#")) location.hash = href;
}

// The words of a mark in a box beside it, within the figure, with a ring around the mark.
function boxOf(mark, width, height) {
  const lines = wrapped(mark.words, Math.min(width - 16, 320));
  const wide = Math.max(...lines.map((line) => widthOf(line))) + 12;
  const high = lines.length * LINE + 8;
  const left = Math.max(0, Math.min(width - wide, mark.x + 10));
  const above = mark.y - high - 10;
  const top = above >= 0 ? above : Math.max(0, Math.min(height - high, mark.y + 10));
  const rows = lines.map((line, at) => label(line, left + 6, top + LINE * (at + 1)));
  const back = { x: left, y: top, width: wide, height: high, rx: 3, fill: COLOUR.ground, stroke: COLOUR.ink };
  const ring = { cx: mark.x, cy: mark.y, r: 6, fill: "none", stroke: COLOUR.ink, "stroke-width": 1.5 };
  return [shape("circle", ring), shape("rect", back), ...rows];
}
