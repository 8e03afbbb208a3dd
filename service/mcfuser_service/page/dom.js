// Elements of the document. Texts are text nodes, so that no name of a model becomes HTML.

const SVG = "http://www.w3.org/2000/svg";

// An element with attributes and children (elements, texts, lists of them; null and false are left
// out). An attribute whose value is a function listens to the event of its name; one that is true
// has no value; null and false leave it out.
export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

// The same for an element of SVG.
export function drawn(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value == null || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  append(node, children);
  return node;
}

function append(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child != null && child !== false) node.append(child instanceof Node ? child : String(child));
  }
}

// Puts children in the place of all that a node has.
export function show(node, ...children) {
  node.replaceChildren();
  append(node, children);
}

// A table that scrolls by itself where it is too wide. `columns` are its headings: texts, or
// {title, number}; `rows` are lists of cells, of which the first heads its row.
export function table(label, columns, rows) {
  const heads = columns.map((c) => (typeof c === "string" ? { title: c } : c));
  const style = (n) => (heads[n].number ? "number" : null);
  return element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
    element("table", {},
      element("thead", {}, element("tr", {}, heads.map((head, n) =>
        element("th", { scope: "col", class: style(n) }, head.title)))),
      element("tbody", {}, rows.map((cells) => element("tr", {}, cells.map((cell, n) =>
        n === 0 ? element("th", { scope: "row", class: style(n) }, cell)
          : element("td", { class: style(n) }, cell)))))));
}

// A sentence about something that went wrong, told at once by screen readers.
export function failure(error) {
  return element("p", { role: "alert", class: "problem" },
    error instanceof Error ? error.message : String(error));
}
