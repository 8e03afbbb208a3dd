// The jobs: those that there are, the newest first, and posting another one.

import { getJson, pause } from "./api.js";
import { element, failure, show } from "./dom.js";
import { duration, moment } from "./format.js";
import { postForm } from "./post.js";
import { isOver, nameOf, stageOf } from "./stage.js";

const PAGE = 25;
const STATES = ["queued", "running", "done", "failed", "cancelled"];

export async function view(root, { signal }) {
  const list = new JobList();
  show(root,
    element("h1", {}, "Compile a model"),
    postForm((job) => { location.hash = `#/jobs/${job.id}`; }),
    element("h2", {}, "Jobs"),
    list.node);
  await list.refresh(signal);
  watch(list, signal);
}

async function watch(list, signal) {
  while (!signal.aborted) {
    await pause(list.busy ? 1500 : 5000, signal);
    if (signal.aborted) return;
    if (document.visibilityState === "visible") await list.refresh(signal);
  }
}

// A table whose rows are changed where they are, so that the focus stays where it is.
class JobList {
  constructor() {
    this.rows = new Map();
    this.most = PAGE;
    this.body = element("tbody");
    this.told = element("div", {});
    this.state = element("select", { change: () => this.refresh() },
      element("option", { value: "" }, "all"), STATES.map((state) => element("option", {}, state)));
    this.older = element("button", { type: "button", hidden: true, click: () => {
      this.most += PAGE;
      this.refresh();
    } }, "Show older jobs");
    const heads = ["Name", "State", "Progress", "Device", "Posted", "Took"];
    this.node = element("section", { "aria-label": "Jobs" },
      element("div", { class: "toolbar" }, element("label", { class: "inline" }, "Show", this.state)),
      this.told,
      element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "All jobs" },
        element("table", { class: "jobs" },
          element("thead", {}, element("tr", {}, heads.map((head) =>
            element("th", { scope: "col", class: classOf(head) }, head)))), this.body)),
      element("p", { class: "buttons" }, this.older));
  }

  get busy() {
    return [...this.rows.values()].some(({ job }) => !isOver(job));
  }

  async refresh(signal) {
    const query = new URLSearchParams({ limit: Math.min(500, this.most) });
    if (this.state.value) query.append("state", this.state.value);
    try {
      const { items, next } = await getJson(`/v1/jobs?${query}`, { signal });
      this.older.hidden = next === null || this.most >= 500;
      show(this.told, items.length === 0 && element("p", { class: "muted" }, this.state.value
        ? `No job is ${this.state.value}.` : "No model has been posted yet."));
      this.body.closest("table").hidden = items.length === 0;
      this.update(items);
    } catch (error) {
      if (error.name !== "AbortError") show(this.told, failure(error));
    }
  }

  update(items) {
    const wanted = new Set(items.map((job) => job.id));
    for (const [id, row] of this.rows) {
      if (wanted.has(id)) continue;
      row.node.remove();
      this.rows.delete(id);
    }
    items.forEach((job, at) => {
      const row = this.rows.get(job.id) ?? new JobRow(job);
      this.rows.set(job.id, row);
      row.update(job);
      if (this.body.children[at] !== row.node) this.body.insertBefore(row.node, this.body.children[at] ?? null);
    });
  }
}

function classOf(head) {
  return head === "Took" ? "number wide" : ["Device", "Posted"].includes(head) ? "wide" : null;
}

class JobRow {
  constructor(job) {
    this.job = job;
    this.link = element("a", { href: `#/jobs/${job.id}` });
    this.state = element("span", { class: "state" });
    this.progress = element("td", { class: "progress" });
    this.took = element("td", { class: "number wide" });
    this.node = element("tr", {},
      element("th", { scope: "row" }, this.link), element("td", {}, this.state), this.progress,
      element("td", { class: "wide" }, job.device), element("td", { class: "wide" }, moment(job.created)), this.took);
  }

  update(job) {
    this.job = job;
    setText(this.link, nameOf(job));
    setText(this.state, job.state);
    this.state.dataset.state = job.state;
    setText(this.took, took(job));
    const words = progressOf(job);
    if (this.progress.textContent !== words) this.progress.textContent = words;
  }
}

function setText(node, words) {
  if (node.textContent !== words) node.textContent = words;
}

function took(job) {
  if (!job.started) return "–";
  const end = job.finished ? new Date(job.finished) : Date.now();
  return duration((end - new Date(job.started)) / 1000);
}

function progressOf(job) {
  if (job.problem) return job.problem.title ?? job.problem.detail;
  if (job.state !== "running") return "";
  return stageOf(job);
}
