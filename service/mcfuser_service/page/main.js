// The frame of the page: which view stands at which address, the key, light and dark.
//
// A view is a module with `async function view(root, parameters)`, which fills `root`; `parameters`
// has the parts of the address by name, `query` (URLSearchParams of what follows a "?" in the
// fragment) and `signal`, which is aborted when the view is left. The view's h1 names the page.

import { askForKeys } from "./api.js";
import { element, failure, show } from "./dom.js";

const VIEWS = [
  { path: /^\/$/, names: [], load: () => import("./jobs.js") },
  { path: /^\/jobs\/([^/]+)$/, names: ["id"], load: () => import("./job.js") },
  { path: /^\/cache$/, names: [], load: () => import("./cache.js") },
  { path: /^\/kernels\/([^/]+)$/, names: ["key"], load: () => import("./kernel.js") },
];
const content = document.getElementById("content");
let left = new AbortController();

function find(path) {
  for (const { path: pattern, names, load } of VIEWS) {
    const found = pattern.exec(path);
    if (!found) continue;
    const values = found.slice(1).map((part) => decoded(part));
    return { load, parameters: Object.fromEntries(names.map((name, n) => [name, values[n]])) };
  }
  return null;
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

async function open(first) {
  left.abort();
  left = new AbortController();
  const { signal } = left;
  const [path, query = ""] = (location.hash.slice(1) || "/").split("?", 2);
  if (!path.startsWith("/")) return; // a link inside the page
  markNavigation(path);
  const root = element("div", { class: "view" });
  try {
    const found = find(path);
    if (found === null) throw new Error(`This page has no view '${path.slice(0, 100)}'.`);
    const { view } = await found.load();
    if (signal.aborted) return;
    show(content, root);
    await view(root, { ...found.parameters, query: new URLSearchParams(query), signal });
  } catch (error) {
    if (signal.aborted) return;
    show(content, element("h1", {}, "Not shown"), failure(error));
  }
  if (signal.aborted) return;
  const title = content.querySelector("h1");
  document.title = title ? `${title.textContent} – mcfuser` : "mcfuser";
  content.removeAttribute("aria-busy");
  if (!first && !content.contains(document.activeElement)) content.focus({ preventScroll: true });
  if (!first) scrollTo(0, 0);
}

function markNavigation(path) {
  const at = path === "/" || path.startsWith("/jobs") ? "#/" : "#/cache";
  for (const link of document.querySelectorAll("header nav a")) {
    if (link.getAttribute("href") === at) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  content.setAttribute("aria-busy", "true");
}

// --- the key ---------------------------------------------------------------------------------

const dialog = document.getElementById("key");

askForKeys((why) => new Promise((given) => {
  document.getElementById("key-why").textContent = why;
  const field = dialog.querySelector("input");
  field.value = "";
  dialog.returnValue = "";
  dialog.showModal();
  field.focus();
  dialog.addEventListener("close", () => {
    given(dialog.returnValue === "use" ? field.value.trim() : null);
  }, { once: true });
}));

// --- light and dark --------------------------------------------------------------------------

const THEME = "mcfuser.theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const toggle = document.getElementById("theme");

function shownTheme() {
  return document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light");
}

function paint() {
  const kept = localStorage.getItem(THEME);
  if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept;
  else delete document.documentElement.dataset.theme;
  const other = shownTheme() === "dark" ? "light" : "dark";
  toggle.textContent = other === "dark" ? "Dark" : "Light";
  toggle.setAttribute("aria-label", `Show the page in ${other} colours`);
}

toggle.addEventListener("click", () => {
  const wanted = shownTheme() === "dark" ? "light" : "dark";
  if (wanted === (system.matches ? "dark" : "light")) localStorage.removeItem(THEME);
  else localStorage.setItem(THEME, wanted);
  paint();
});
system.addEventListener("change", paint);

paint();
addEventListener("hashchange", () => open(false));
open(true);
