// The log of a job: read when it is opened, and again as the job goes on.

import { getText, pause } from "./api.js";
import { element, failure, show } from "./dom.js";

const LEAST = 2000; // milliseconds between two readings

export function logSection(path, name, signal) {
  const text = element("pre", { tabindex: 0, role: "region", "aria-label": `Log of ${name}` });
  const told = element("div", {});
  const node = element("details", { class: "log", toggle: () => node.open && read() },
    element("summary", {}, "Log"), told, text);
  let reading = false;
  let wanted = false;

  async function read() {
    wanted = true;
    if (reading) return;
    reading = true;
    while (wanted && node.open && !signal.aborted) {
      wanted = false;
      try {
        const words = await getText(`${path}/log`, { signal });
        const below = text.scrollTop + text.clientHeight >= text.scrollHeight - 8;
        show(told);
        if (text.textContent !== words) {
          text.textContent = words;
          if (below) text.scrollTop = text.scrollHeight;
        }
      } catch (error) {
        if (!signal.aborted) show(told, failure(error));
      }
      await pause(LEAST, signal);
    }
    reading = false;
  }

  return { node, changed: () => { if (node.open) read(); } };
}
