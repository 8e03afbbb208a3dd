// The kernels that are kept: searched and ordered by the server, whose ages follow.

import { getJson, pause, request } from "./api.js";
import { element, failure, show } from "./dom.js";
import { count, moment, time } from "./format.js";
import { lookupForm } from "./lookup.js";

const PAGE = 50;
const AGES = 50; // asked for together
const PATIENCE = 180; // milliseconds without a keystroke after which a search begins
const COLUMNS = [
  { title: "Chain", order: "chain" },
  { title: "Time", order: "time", number: true },
  { title: "Device", order: "device" },
  { title: "Type", order: "dtype" },
  { title: "Age" },
  { title: "Kept since", order: "created", first: "desc" },
];

export async function view(root, { query, signal }) {
  const list = new KernelList(query, signal);
  const devices = await getJson("/v1/devices", { signal });
  list.offerDevices(devices);
  show(root,
    element("h1", {}, "Tuned kernels"),
    list.node,
    element("h2", {}, "Why is there no kernel for a chain?"),
    lookupForm(devices, signal));
  await list.search();
}

class KernelList {
  constructor(query, signal) {
    this.signal = signal;
    this.under = new AbortController(); // what is under way for the search before
    const order = COLUMNS.some((one) => one.order === query.get("sort")) ? query.get("sort") : "created";
    const up = query.has("order") ? query.get("order") === "asc" : order !== "created";
    this.asked = { q: query.get("q") ?? "", device: query.get("device") ?? "", order, up };
    this.field = element("input", {
      type: "search", name: "q", value: this.asked.q, autocomplete: "off", spellcheck: "false", maxlength: 200,
      placeholder: "name, device, type, or key", input: () => this.typed(),
    });
    this.device = element("select", { name: "device", change: () => this.ask({ device: this.device.value }) });
    this.heads = COLUMNS.map((column) => this.head(column));
    this.body = element("tbody");
    this.standing = element("p", { role: "status", class: "muted" });
    this.told = element("div", {});
    this.more = element("button", { type: "button", hidden: true, click: () => this.extend() }, "Show more");
    this.node = element("div", { class: "kernels" },
      element("form", { class: "toolbar", role: "search", submit: (event) => event.preventDefault() },
        element("label", { class: "search" }, "Search", this.field),
        element("label", {}, "Device", this.device)),
      this.told,
      element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Tuned kernels" },
        element("table", {}, element("thead", {}, element("tr", {}, this.heads)), this.body)),
      this.standing, element("p", { class: "buttons" }, this.more));
  }

  head({ title, order, number, first }) {
    const style = number ? "number" : null;
    if (!order) return element("th", { scope: "col", class: style }, title);
    const turn = () => this.ask({ order, up: this.asked.order === order ? !this.asked.up : first !== "desc" });
    return element("th", { scope: "col", class: style, "data-order": order },
      element("button", { type: "button", click: turn }, title));
  }

  offerDevices(devices) {
    const names = [...new Set([...devices.map((one) => one.name), this.asked.device].filter(Boolean))];
    show(this.device, element("option", { value: "" }, "all"), names.map((name) => element("option", {}, name)));
    this.device.value = this.asked.device;
  }

  async typed() {
    this.under.abort();
    this.under = new AbortController();
    const { signal } = this.under;
    await pause(PATIENCE, signal);
    if (!signal.aborted && !this.signal.aborted) this.ask({ q: this.field.value });
  }

  ask(changed) {
    this.asked = { ...this.asked, ...changed };
    const { q, device, order, up } = this.asked;
    const words = new URLSearchParams({ ...(q && { q }), ...(device && { device }), sort: order, order: up ? "asc" : "desc" });
    history.replaceState(null, "", `#/cache?${words}`);
    return this.search();
  }

  async search() {
    this.under.abort();
    this.under = new AbortController();
    for (const head of this.heads) {
      if (head.dataset.order === this.asked.order) head.setAttribute("aria-sort", this.asked.up ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    }
    const { q, device, order, up } = this.asked;
    const words = new URLSearchParams({
      ...(q.trim() && { q: q.trim() }), ...(device && { device }), sort: order, order: up ? "asc" : "desc", limit: PAGE,
    });
    this.next = `/v1/kernels?${words}`;
    await this.extend(true);
  }

  // Shows a page more; a search that finds little is continued until it has a page, or is over.
  async extend(anew = false) {
    const { signal } = this.under;
    const stopped = () => signal.aborted || this.signal.aborted;
    let wanted = PAGE;
    let replace = anew;
    this.more.hidden = true;
    this.node.setAttribute("aria-busy", "true");
    try {
      show(this.told);
      while (this.next && wanted > 0) {
        const page = await getJson(this.next, { signal });
        if (stopped()) return;
        if (replace && (page.items.length || !page.next)) {
          show(this.body);
          replace = false;
        }
        this.next = page.next;
        wanted -= page.items.length;
        const rows = page.items.map((kernel) => this.row(kernel));
        this.body.append(...rows.map((row) => row.node));
        this.tellAges(rows, signal);
        if (this.next && wanted > 0) this.standing.textContent = "Searching …";
      }
      this.tellCount();
    } catch (error) {
      if (!stopped()) show(this.told, failure(error));
    } finally {
      if (!stopped()) this.node.removeAttribute("aria-busy");
    }
  }

  tellCount() {
    const shown = this.body.rows.length;
    const searched = this.asked.q.trim() || this.asked.device;
    this.more.hidden = !this.next;
    if (shown) this.standing.textContent = this.next ? `The first ${count(shown)} are shown.` : `${count(shown)} ${shown === 1 ? "kernel" : "kernels"}`;
    else this.standing.textContent = searched ? "No kernel has all of these words." : "No kernel is kept yet: compile a model, or run mcfuser tune.";
  }

  row(kernel) {
    const age = element("td", {}, element("span", { class: "muted" }, "…"));
    const measured = kernel.measured != null;
    const node = element("tr", {},
      element("th", { scope: "row" },
        element("a", { href: `#/kernels/${kernel.key}` }, kernel.chain),
        element("span", { class: "code muted expression" }, kernel.expression)),
      element("td", { class: "number" }, time(measured ? kernel.measured : kernel.predicted),
        !measured && element("span", { class: "muted note" }, "predicted")),
      element("td", {}, kernel.device),
      element("td", {}, kernel.dtype || "–"),
      age,
      element("td", { class: "when" }, moment(kernel.created)));
    return { key: kernel.key, node, age };
  }

  async tellAges(rows, signal) {
    for (let first = 0; first < rows.length; first += AGES) {
      const some = rows.slice(first, first + AGES);
      const found = new Map();
      try {
        const words = new URLSearchParams(some.map((row) => ["key", row.key]));
        const { items } = await (await request(`/v1/kernels/ages?${words}`, { signal })).json();
        for (const item of items) found.set(item.key, item);
      } catch {
        if (signal.aborted) return; // the list is whole without the ages, too
      }
      for (const row of some) show(row.age, ageOf(found.get(row.key)));
    }
  }
}

// A kernel's age, as a word whose reasons are told with it.
export function ageOf(found) {
  if (!found) return element("span", { class: "muted" }, "–");
  return element("span", { class: "age", "data-age": found.age, title: found.reasons.join("; ") || null }, found.age);
}
