// One job: what it is doing while it runs, and what became of it.

import { events, getJson, request, save, sentence } from "./api.js";
import { element, failure, show } from "./dom.js";
import { bytes, duration, moment } from "./format.js";
import { LivePanel } from "./live.js";
import { logSection } from "./log.js";
import { results } from "./results.js";
import { isOver, nameOf, stageOf } from "./stage.js";

export async function view(root, { id, signal }) {
  const path = `/v1/jobs/${encodeURIComponent(id)}`;
  const page = new JobPage(root, path, signal, await getJson(path, { signal }));
  await page.update(page.job);
  page.follow();
}

class JobPage {
  constructor(root, path, signal, job) {
    this.path = path;
    this.signal = signal;
    this.job = job;
    this.shownAs = null; // the state that the page's body is drawn for
    this.title = element("h1", {}, nameOf(job));
    this.state = element("span", { class: "state" });
    this.stage = element("span", {});
    this.facts = element("dl", { class: "facts" });
    this.buttons = element("p", { class: "buttons" });
    this.told = element("div", {});
    this.body = element("div", {});
    this.log = logSection(path, nameOf(job), signal);
    show(root, this.title,
      element("p", { role: "status", class: "standing" }, this.state, " ", this.stage),
      this.told, this.buttons, this.facts, this.body, this.log.node);
  }

  // The events that are kept come first: what was measured before the page was opened is in the curve.
  async follow() {
    const shown = this.job.version;
    try {
      while (!isOver(this.job) && !this.signal.aborted) {
        for await (const event of events(`${this.path}/events?after=0`, this.signal, (open) => this.connected(open))) {
          if (event.kind === "gap") continue; // the job as it is comes next
          const job = JSON.parse(event.data);
          if (job.version <= shown) {
            this.recall(job);
            continue;
          }
          await this.update(job);
          // it may have been tried again while the connection was broken
          if (isOver(this.job) && isOver(await getJson(this.path, { signal: this.signal }))) return;
        }
      }
    } catch (error) {
      if (!this.signal.aborted) show(this.told, failure(error));
    }
  }

  // Says that the server is gone, and takes it back when it is there again.
  connected(open) {
    if (open || isOver(this.job)) show(this.told);
    else show(this.told, element("p", { class: "muted" }, "The connection broke off; trying again."));
  }

  // Adds what the job was at an earlier version, if that is of the attempt which is shown.
  recall(job) {
    const isShown = this.job.state === "running" && job.state === "running" && job.started === this.job.started;
    if (isShown && job.progress) this.live.note(job.progress);
  }

  async update(job) {
    this.job = job;
    this.state.textContent = job.state;
    this.state.dataset.state = job.state;
    const words = standing(job);
    if (this.stage.textContent !== words) this.stage.textContent = words;
    if (this.shownAs !== job.state) {
      this.shownAs = job.state;
      this.drawButtons();
      if (isOver(job)) await this.drawEnd();
      else this.drawRunning();
      show(this.facts, facts(this.job));
    }
    if (job.state === "running") this.live.update(job);
    this.log.changed(isOver(job));
  }

  drawRunning() {
    this.live = new LivePanel();
    show(this.body, this.job.state === "running" && this.live.node);
  }

  async drawEnd() {
    if (this.job.state === "done" && !this.job.report && !this.job.removed) {
      this.job = await getJson(this.path, { signal: this.signal });
      this.drawButtons(); // events do not say whether it is signed
    }
    const { problem, report, removed } = this.job;
    show(this.body,
      problem && element("section", { class: "panel", "aria-label": "Why it failed" },
        element("h2", {}, problem.title ?? "It failed"), failure(sentence(problem.detail))),
      removed && element("p", {}, `Its results were removed on ${moment(removed)}; post the model again to have them.`));
    if (report && !removed) {
      const drawn = element("div", {});
      this.body.append(drawn);
      results(drawn, this.job, this.signal);
    }
  }

  drawButtons() {
    const { job } = this;
    const button = (words, act, primary) =>
      element("button", { type: "button", class: primary ? "primary" : null, click: (event) => this.act(event.target, act) }, words);
    show(this.buttons,
      job.state === "done" && job.module && button("Download the module", () => save(job.module.href, "module.so"), true),
      job.state === "done" && button("Download the report", () => save(`${this.path}/report`, "report.json")),
      job.attestation && button("Download the attestation", () => save(job.attestation.href, "module.intoto.jsonl")),
      !isOver(job) && button("Cancel", () => this.cancel()),
      ["failed", "cancelled"].includes(job.state) && !job.removed && button("Try again", () => this.retry(), true));
  }

  async act(button, act) {
    button.disabled = true;
    show(this.told);
    try {
      await act();
    } catch (error) {
      show(this.told, failure(error));
    } finally {
      button.disabled = false;
    }
  }

  async cancel() {
    await request(this.path, { method: "DELETE" });
    await this.update(await getJson(this.path));
    this.title.focus();
  }

  async retry() {
    const job = await (await request(`${this.path}/retry`, { method: "POST" })).json();
    if (job.id !== this.job.id) {
      location.hash = `#/jobs/${job.id}`; // the same work was posted since
      return;
    }
    await this.update(job);
    this.follow();
  }
}

function standing(job) {
  if (job.state === "running") return stageOf(job);
  if (job.state === "queued") return job.due ? `waits until ${moment(job.due)}` : "waits for a worker";
  if (job.state === "done") return `in ${duration(seconds(job.started, job.finished))}`;
  return "";
}

function seconds(from, to) {
  return from && to ? (new Date(to) - new Date(from)) / 1000 : null;
}

function facts(job) {
  const { shape = [], precision, timeout, trials, seed } = job.options;
  const found = {
    Device: job.device,
    Posted: moment(job.created),
    Model: bytes(job.model.bytes),
    Module: job.module && bytes(job.module.bytes),
    Shapes: shape.join(" "),
    Precision: precision,
    "Time limit": timeout && duration(timeout),
    "Trials a chain": trials,
    Seed: seed || null,
    Attempts: job.attempts > 1 ? job.attempts : null,
    "Posted by": job.posted_by,
  };
  return Object.entries(found).filter(([, value]) => value).map(([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, value)));
}
