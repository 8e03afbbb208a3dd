// Figures and tables as files: SVG with the colours it is shown in, PNG, CSV.

import { saveBlob } from "./api.js";
import { element } from "./dom.js";

const SCALE = 2;  // pixels of a PNG for each of the page
const PAINTED = ["fill", "stroke", "fill-opacity", "stroke-width", "stroke-dasharray", "opacity"];
const FORMULA = /^[=+\-@\t\r]/;

// The figure with buttons beneath it: as SVG, as PNG, and its data as CSV. `rows` are objects with
// equal keys, or a function that gives them. `name` is that of the files.
export function downloads(svg, name, rows) {
  const file = fileName(name);
  const button = (words, make) => element("button", {
    type: "button",
    class: "quiet",
    "aria-label": `Download ${name} as ${words}`,
    click: async () => saveBlob(await make(), `${file}.${words.toLowerCase()}`),
  }, words);
  return element("figure", {}, svg, element("div", { class: "downloads" },
    button("SVG", () => new Blob([painted(svg)], { type: "image/svg+xml" })),
    button("PNG", () => pixels(svg)),
    rows && button("CSV", () => csvFile(typeof rows === "function" ? rows() : rows))));
}

export function fileName(name) {
  return name.replace(/[^A-Za-z0-9._-]+/g, "-").replace(/^[-.]+|-+$/g, "").slice(0, 100) || "figure";
}

// The figure as text, in the colours that the page has now, on its ground.
export function painted(svg) {
  const copy = svg.cloneNode(true);
  const shown = [...svg.querySelectorAll("*")], made = [...copy.querySelectorAll("*")];
  shown.forEach((node, at) => {
    const style = getComputedStyle(node);
    made[at].removeAttribute("style");
    for (const name of PAINTED) {
      const value = style.getPropertyValue(name);
      if (value && value !== "1" && value !== "none" || name === "fill") made[at].setAttribute(name, value);
    }
  });
  copy.querySelectorAll(".plot-words").forEach((node) => node.remove());
  copy.removeAttribute("style");
  copy.removeAttribute("tabindex");
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  const ground = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  ground.setAttribute("width", "100%");
  ground.setAttribute("height", "100%");
  ground.setAttribute("fill", getComputedStyle(document.body).backgroundColor);
  copy.prepend(ground);
  return new XMLSerializer().serializeToString(copy);
}

async function pixels(svg) {
  const picture = new Image();
  const source = URL.createObjectURL(new Blob([painted(svg)], { type: "image/svg+xml" }));
  try {
    picture.src = source;
    await picture.decode();
    const canvas = document.createElement("canvas");
    canvas.width = Math.round(svg.viewBox.baseVal.width * SCALE);
    canvas.height = Math.round(svg.viewBox.baseVal.height * SCALE);
    canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
    return await new Promise((done) => canvas.toBlob(done, "image/png"));
  } finally {
    URL.revokeObjectURL(source);
  }
}

export function csvFile(rows) {
  return new Blob([csv(rows)], { type: "text/csv;charset=utf-8" });
}

// Rows as RFC 4180 has them. A text that a spreadsheet would take for a formula begins with an
// apostrophe; numbers are left as they are, and what is missing is empty.
export function csv(rows) {
  const names = rows.length ? Object.keys(rows[0]) : [];
  return [names, ...rows.map((row) => names.map((name) => row[name]))]
    .map((row) => row.map(cell).join(",") + "\r\n").join("");
}

function cell(value) {
  if (value == null) return "";
  if (typeof value === "number") return Number.isFinite(value) ? String(value) : "";
  const words = String(value);
  const safe = FORMULA.test(words) ? `'${words}` : words;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}
