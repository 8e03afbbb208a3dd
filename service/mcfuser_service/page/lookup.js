// Asks the server which kept kernel a chain would use, and why none.

import { getJson } from "./api.js";
import { element, failure, show } from "./dom.js";

const TYPES = ["float32", "float16", "bfloat16"];
const KEY = /\b([0-9a-f]{64})\b/;
const SHOWN = 16; // digits of a key

// A form for a chain, a device and a type, with the answer beneath it.
export function lookupForm(devices, signal) {
  const answer = element("div", { "aria-live": "polite", class: "answer" });
  const button = element("button", { class: "primary" }, "Ask");
  const submit = async (event) => {
    event.preventDefault();
    const asked = new URLSearchParams(new FormData(event.currentTarget));
    button.disabled = true;
    show(answer, element("p", { class: "muted" }, "Asking: the first question about a device takes some seconds."));
    try {
      show(answer, lookup(await getJson(`/v1/kernels/explain?${asked}`, { signal })));
    } catch (error) {
      if (!signal.aborted) show(answer, failure(error));
    }
    button.disabled = false;
  };
  return element("div", {},
    element("form", { class: "toolbar lookup", submit },
      element("label", { class: "search" }, "Chain, or the key of a chain or kernel",
        element("input", { name: "chain", required: true, autocomplete: "off", spellcheck: "false", maxlength: 1000, placeholder: "attention:12,512,512,64,64" })),
      element("label", {}, "Device",
        element("select", { name: "device" }, devices.map((one) => element("option", {}, one.name)))),
      element("label", {}, "Type",
        element("select", { name: "dtype" }, TYPES.map((name) => element("option", {}, name)))),
      button),
    answer);
}

// The answer of /v1/kernels/explain: its sentences, with links to the kernels that they name.
export function lookup(found) {
  const kept = new Set([found.kernel, ...found.nearest.map((one) => one.key)]);
  return element("ul", { class: "sentences", "data-answer": found.answer },
    found.sentences.map((sentence) => element("li", {}, linked(sentence, kept))));
}

function linked(sentence, kept) {
  return sentence.split(KEY).map((part) => {
    if (!KEY.test(part)) return part;
    const digits = element("code", { title: part }, `${part.slice(0, SHOWN)}…`);
    return kept.has(part) ? element("a", { href: `#/kernels/${part}` }, digits) : digits;
  });
}
