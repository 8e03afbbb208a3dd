// Posting a model: dropped, chosen with a button, or both with the keyboard.

import { getJson, request } from "./api.js";
import { element, failure, show } from "./dom.js";
import { bytes } from "./format.js";

const KINDS = ".onnx,.zip,.tar,.tar.gz,.tgz";
const LONGEST = 200; // characters of a job's name

// The form. `posted` is called with the job that the server has made of a model.
export function postForm(posted) {
  const file = element("input", {
    type: "file", name: "model", accept: KINDS, id: "model", class: "unseen", "aria-describedby": "chosen",
  });
  const chosen = element("p", { id: "chosen", class: "muted", role: "status" }, ABOUT);
  const zone = element("div", { class: "zone" },
    file, element("label", { for: "model", class: "button" }, "Choose a model"),
    element("span", { class: "muted" }, "or drop one here"), chosen);
  const fields = optionFields();
  const button = element("button", { class: "primary" }, "Compile");
  const told = element("div", {});
  const form = element("form", { class: "panel post", "aria-label": "Compile a model", novalidate: true },
    zone, element("div", { class: "fields" }, Object.values(fields)),
    element("p", { class: "buttons" }, button), told);
  file.addEventListener("change", () => tellChosen(file, chosen, fields));
  acceptDrops(zone, file, told);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    show(told);
    if (!file.files.length) {
      show(told, failure("Choose a model first: an ONNX file, or an archive of its folder."));
      file.focus();
      return;
    }
    button.disabled = true;
    show(told, element("p", { role: "status" }, `Sending ${bytes(file.files[0].size)} …`));
    try {
      posted(await post(file.files[0], new FormData(form)));
    } catch (error) {
      show(told, failure(error));
    } finally {
      button.disabled = false;
    }
  });
  return form;
}

const ABOUT = "An ONNX file; with weights in files beside it, a zip or tar of their folder.";

function optionFields() {
  const field = (words, control) => element("label", {}, words, control);
  const device = element("select", { name: "device" }, element("option", {}, "cpu"));
  getJson("/v1/devices").then((devices) => {
    show(device, devices.map(({ name }) => element("option", {}, name)));
  }, () => {}); // the CPU is there in any case, and posting tells what is wrong
  return {
    name: field("Name", element("input", { name: "name", maxlength: LONGEST, autocomplete: "off", placeholder: "the file's" })),
    device: field("Device", device),
    shape: field("Shapes", element("input", {
      name: "shape", autocomplete: "off", spellcheck: "false", placeholder: "input=1x128 mask=1x128",
    })),
    precision: field("Precision", element("select", { name: "precision" },
      element("option", { value: "" }, "the model's own"),
      element("option", { value: "fp16" }, "float16"), element("option", { value: "bf16" }, "bfloat16"),
      element("option", { value: "tf32" }, "TF32 on a GPU"))),
    timeout: field("Time limit", element("input", { name: "timeout", autocomplete: "off", placeholder: "60s, 5m or 1h" })),
  };
}

function tellChosen(file, chosen, fields) {
  const one = file.files[0];
  chosen.textContent = one ? `${one.name}, ${bytes(one.size)}` : ABOUT;
  const name = fields.name.querySelector("input");
  name.placeholder = one ? one.name : "the file's";
}

function acceptDrops(zone, file, told) {
  for (const kind of ["dragenter", "dragover"]) {
    zone.addEventListener(kind, (event) => {
      event.preventDefault();
      zone.classList.add("over");
    });
  }
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    show(told);
    if (event.dataTransfer.files.length !== 1) {
      show(told, failure("Drop one file: a model with weights in other files goes into a zip or tar."));
      return;
    }
    file.files = event.dataTransfer.files;
    file.dispatchEvent(new Event("change"));
  });
}

async function post(model, form) {
  const query = new URLSearchParams();
  for (const name of ["device", "precision", "timeout"]) {
    if (form.get(name).trim()) query.append(name, form.get(name).trim());
  }
  for (const shape of form.get("shape").split(/[\s,;]+/).filter(Boolean)) query.append("shape", shape);
  const name = (form.get("name").trim() || model.name).slice(0, LONGEST);
  if (name) query.append("name", name);
  const response = await request(`/v1/jobs?${query}`, {
    method: "POST", body: model, headers: { "Content-Type": "application/octet-stream" },
  });
  return response.json();
}
