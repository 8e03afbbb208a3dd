// A job while it runs: how far its search is, and the best candidate so far.

import { element, show } from "./dom.js";
import { count, duration, time } from "./format.js";
import { steps } from "./plot.js";
import { stageOf } from "./stage.js";

const DRAWN = 500; // milliseconds between two drawings of the curve, at least

export class LivePanel {
  constructor() {
    this.search = null;
    this.points = [];
    this.drawn = -DRAWN;
    this.timer = null;
    this.bar = element("progress", { "aria-label": "Candidates of this search that were measured" });
    this.chain = element("p", { class: "chain" });
    this.values = {};
    this.facts = ["Candidates", "Compiled", "Measured", "Failed", "Best so far", "Time left"].map((name) => {
      this.values[name] = element("dd", {}, "–");
      return element("div", { hidden: name !== "Time left" }, element("dt", {}, name), this.values[name]);
    });
    this.curve = element("div", { class: "curve" });
    this.node = element("section", { class: "panel live", "aria-label": "Progress" },
      this.chain, this.bar, element("dl", { class: "facts" }, this.facts), this.curve);
  }

  update(job) {
    const progress = job.progress;
    if (!progress) return;
    const { candidates, chain } = progress;
    const { total, compiled, measured, failed } = candidates;
    this.chain.textContent = chain ? `${stageOf(job)}: ${chain.name}` : stageOf(job);
    this.bar.hidden = !total;
    this.bar.max = total || 1;
    this.bar.value = Math.min(total, measured);
    for (const fact of this.facts) fact.hidden = !total && fact !== this.facts.at(-1);
    this.curve.hidden = !total;
    const words = {
      Candidates: `${count(total)} at most`,
      Compiled: count(compiled),
      Measured: count(measured),
      Failed: count(failed),
      "Best so far": time(progress.best_seconds),
      "Time left": progress.seconds_left === null ? "not known yet" : `about ${duration(progress.seconds_left)}`,
    };
    for (const [name, value] of Object.entries(words)) {
      if (this.values[name].textContent !== value) this.values[name].textContent = value;
    }
    this.note(progress);
  }

  // Adds to the curve; another search begins another one.
  note(progress) {
    const { measured, total } = progress.candidates;
    const chain = progress.chain;
    const last = this.points.at(-1);
    const search = chain && total ? `${chain.number} ${chain.name}` : this.search;
    if (search !== this.search || (last && measured < last.x && measured > 0)) {
      this.search = search;
      this.points = [];
    }
    if (chain && progress.best_seconds !== null && measured > 0) {
      const point = { x: measured, y: progress.best_seconds };
      if (this.points.at(-1)?.x === measured) this.points.pop();
      this.points.push(point);
    }
    if (this.points.length > 0) this.drawSoon(total);
  }

  drawSoon(total) {
    this.total = total;
    this.timer ??= setTimeout(() => this.draw(), Math.max(0, this.drawn + DRAWN - performance.now()));
  }

  draw() {
    this.timer = null;
    this.drawn = performance.now();
    const measured = this.points.at(-1)?.x;
    if (measured === undefined) return;
    show(this.curve, steps([{ name: "best so far", points: this.points }], {
      title: "Best so far",
      height: 160,
      x: { title: "candidates measured", until: Math.min(this.total, Math.max(20, Math.round(1.5 * measured))) },
      y: { title: "time of the best", unit: "s" },
    }));
  }
}
