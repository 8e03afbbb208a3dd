// One kernel: its chain, schedule, source and resources, and how its search found it.

import { getAll, getJson, save, saveBlob } from "./api.js";
import { ageOf } from "./cache.js";
import { element, failure, show, table } from "./dom.js";
import { bytes, count, error, moment, percent, time } from "./format.js";
import { lookup } from "./lookup.js";
import { rooflineSection, searchSection } from "./search.js";

const DIGITS = 16;
const KEY = /^[0-9a-f]{64}$/;

export async function view(root, { key, signal }) {
  if (!KEY.test(key)) throw new Error(`'${key.slice(0, 80)}' is no key of a kernel: a key has 64 digits, 0 to 9 and a to f.`);
  const path = `/v1/kernels/${encodeURIComponent(key)}`;
  const kernel = await getJson(path, { signal });
  const { items } = await getJson(`/v1/kernels?${new URLSearchParams({ q: key, limit: 1 })}`, { signal });
  const age = element("dd", {}, "…"), why = element("div", {});
  const later = element("div", {}, element("p", { class: "muted" }, "Reading the candidates …"));
  const roof = element("div", {}, element("p", { class: "muted" }, "Asking what the device can do …"));
  show(root,
    element("p", { class: "muted" }, element("a", { href: "#/cache" }, "Tuned kernels")),
    element("h1", {}, kernel.chain.name),
    facts(kernel, items[0], age), why,
    element("p", { class: "buttons" },
      element("button", { type: "button", click: () => save(path, `${key.slice(0, DIGITS)}.json`) }, "Record (JSON)"),
      element("button", { type: "button", click: () => saveSource(kernel) }, "Source"),
      element("button", { type: "button", click: () => save(`/v1/kernels/export?key=${key}`, `${key.slice(0, DIGITS)}.jsonl`) },
        "Schedule, to import elsewhere")),
    element("div", { class: "pair kernel-body" },
      element("section", {}, element("h2", {}, "Chain"), chain(kernel.chain),
        element("h2", {}, "Schedule"), schedule(kernel),
        element("h2", {}, "On the machine"), resources(kernel)),
      element("section", {}, element("h2", {}, "Source"),
        element("pre", { tabindex: 0, "aria-label": "Source" }, kernel.source || "The record has no source."))),
    element("h2", {}, "How it was found"), later,
    element("h2", {}, "Under the roofline"), roof,
    element("h2", {}, "Asked on the command line"),
    commands(key), explained(key, signal), made(kernel));
  tellAge(age, why, key, signal);
  fill(later, async () => searchSection(kernel, await getAll(`${path}/candidates?limit=500`, 20000, { signal })), signal);
  fill(roof, async () => rooflineSection(kernel, await getJson(`${path}/roofline`, { signal })), signal);
}

async function fill(node, make, signal) {
  try {
    show(node, await make());
  } catch (problem) {
    if (!signal.aborted) show(node, failure(problem));
  }
}

async function tellAge(age, why, key, signal) {
  try {
    const { items } = await getJson(`/v1/kernels/ages?key=${key}`, { signal });
    show(age, ageOf(items[0]));
    const reasons = items[0]?.reasons ?? [];
    if (reasons.length) show(why, element("p", { class: "muted" }, `It is ${items[0].age}: ${reasons.join("; ")}.`));
  } catch {
    if (!signal.aborted) show(age, "–");
  }
}

function facts(kernel, row, age) {
  const measured = kernel.measured != null;
  const found = [
    [measured ? "Measured" : "Predicted, not measured", time(measured ? kernel.measured : kernel.predicted)],
    measured && ["Predicted", time(kernel.predicted)],
    measured && ["Error against float64", error(kernel.error)],
    ["Device", kernel.device],
    row?.dtype && ["Type", row.dtype],
    ["Age", age],
    row && ["Kept since", moment(row.created)],
    ["Key", element("code", { title: kernel.key }, kernel.key.slice(0, DIGITS))],
  ].filter(Boolean);
  return element("dl", { class: "facts" }, found.map(([head, words]) => element("div", {},
    element("dt", {}, head), words instanceof Element && words.tagName === "DD" ? words : element("dd", {}, words))));
}

// --- what it is --------------------------------------------------------------------------------

function chain(document) {
  const axes = Object.entries(document.axes).map(([name, extent]) =>
    [element("code", {}, name), Array.isArray(extent) ? extent.join(" to ") : count(extent)]);
  const tensors = Object.entries(document.tensors).map(([name, tensor]) =>
    [element("code", {}, name), element("code", {}, (tensor.shape ?? []).join(", ")), tensor.dtype ?? "",
      document.outputs.includes(name) ? "output" : ""]);
  return [
    element("pre", { tabindex: 0, "aria-label": "Operators", class: "operators" }, document.operators.join("\n")),
    element("div", { class: "small-tables" },
      table("Axes", ["Axis", { title: "Extent", number: true }], axes),
      table("Tensors", ["Tensor", "Axes", "Type", ""], tensors)),
  ];
}

function schedule(kernel) {
  const split = kernel.split ? `${kernel.split} in ${kernel.parts} parts` : null;
  const rows = [
    ["Loops", element("code", {}, kernel.expression)],
    ...Object.entries(kernel.tiles).map(([axis, tile]) => [`Tile of ${axis}`, count(tile)]),
    split && ["Split", split],
    ...Object.entries(kernel.lowering).map(([name, value]) => [words(name), String(value)]),
  ].filter(Boolean);
  return properties("Schedule", rows);
}

// Names and their values.
function properties(label, rows) {
  return element("div", { class: "scroll properties", tabindex: 0, role: "region", "aria-label": label },
    element("table", {}, element("tbody", {}, rows.map(([name, value]) => element("tr", {},
      element("th", { scope: "row" }, name), element("td", { class: "number" }, value))))));
}

function words(name) {
  return name.replaceAll("_", " ");
}

// Registers, shared memory and spills as the compiler told them, the occupancy that follows from
// them, and how the device was while it was measured.
function resources(kernel) {
  const rows = Object.entries(kernel.resources ?? {}).map(([name, value]) =>
    [words(name), /bytes|shared|spill|local|memory/.test(name) ? bytes(value) : count(value)]).concat(occupancy(kernel));
  const state = Object.entries(kernel.conditions ?? {}).filter(([, value]) => typeof value !== "object" || value === null)
    .map(([name, value]) => [words(name), String(value)]);
  if (!rows.length && !state.length)
    return element("p", { class: "muted" }, "The record has no resources: compilers for a CPU tell none, and nothing was measured.");
  return [
    rows.length > 0 && properties("Resources", rows),
    state.length > 0 && [element("h3", {}, "While it was timed"), properties("While it was timed", state)],
  ];
}

// How many of its blocks share a multiprocessor, where that is known: CPUs have no such number.
function occupancy({ occupancy: found }) {
  if (!found) return [];
  const bound = ["threads", "blocks"].includes(found.bound) ? `${found.bound} that it holds` : found.bound;
  return [
    ["threads of a block", count(found.threads)],
    ["blocks of a multiprocessor at a time", count(found.blocks)],
    ["bounded by", bound],
    ["occupancy", percent(found.fraction)],
  ];
}

function made(kernel) {
  const rows = [
    ...Object.entries(kernel.made?.toolchain ?? kernel.versions ?? {}),
    kernel.made && ["generator's sources", kernel.made.sources],
  ].filter(Boolean).map(([name, version]) => [name, element("code", {}, String(version))]);
  return element("details", {}, element("summary", {}, "Made with"), properties("Made with", rows),
    kernel.missed && element("p", { class: "muted" }, `It was tuned because no kept kernel was used: ${kernel.missed}.`));
}

// --- asking about it ---------------------------------------------------------------------------

function commands(key) {
  const short = key.slice(0, DIGITS);
  return element("ul", { class: "commands" },
    [`mcfuser cache explain ${key}`, `mcfuser cache show ${short} --candidates 20 --source`].map((line) => {
      const copy = element("button", {
        type: "button", class: "quiet", "aria-label": `Copy: ${line}`,
        click: async () => {
          await navigator.clipboard.writeText(line);
          copy.textContent = "Copied";
        },
      }, "Copy");
      return element("li", {}, element("code", {}, line), copy);
    }));
}

// The answer of the first command, from the server.
function explained(key, signal) {
  const answer = element("div", { "aria-live": "polite" });
  const ask = element("button", {
    type: "button",
    click: () => {
      ask.disabled = true;
      show(answer, element("p", { class: "muted" }, "Asking …"));
      fill(answer, async () => lookup(await getJson(`/v1/kernels/explain?chain=${key}`, { signal })), signal)
        .then(() => { ask.disabled = false; });
    },
  }, "Ask this server");
  return element("div", {}, ask, answer);
}

function saveSource(kernel) {
  const ending = /^\s*(@|import |from |def )/m.test(kernel.source) ? "py" : "txt";
  saveBlob(new Blob([kernel.source], { type: "text/plain;charset=utf-8" }), `${kernel.key.slice(0, DIGITS)}.${ending}`);
}
