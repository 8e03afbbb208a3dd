// Requests to the server that this page comes from.

const KEY = "mcfuser.key";

// What the server refused, as a sentence; `status` is HTTP's and 0 where no answer came, `kind` the
// last part of the problem's type.
export class RequestError extends Error {
  constructor(detail, status, kind) {
    super(detail);
    this.status = status;
    this.kind = kind;
  }
}

let asker = null;
let asking = null;

// `ask` is called with a sentence where the server wants a key, and promises one that is typed in,
// or null. Requests wait for it, and are sent again.
export function askForKeys(ask) {
  asker = ask;
}

async function otherKey(why) {
  asking ??= asker(why).finally(() => { asking = null; });
  const key = await asking;
  if (key) sessionStorage.setItem(KEY, key);
  return Boolean(key);
}

export function hasKey() {
  return sessionStorage.getItem(KEY) !== null;
}

// The answer to a request. Raises RequestError where it is no success.
export async function request(path, options = {}) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const headers = { ...options.headers, ...(key && { Authorization: `Bearer ${key}` }) };
    let response;
    try {
      response = await fetch(path, { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new RequestError("The server does not answer.", 0, "silent");
    }
    if (response.ok) return response;
    const problem = await described(response);
    if (problem.status !== 401 || asker === null) throw problem;
    // another request may have been given a key while this one was under way
    if (sessionStorage.getItem(KEY) === key && !(await otherKey(problem.message))) throw problem;
  }
}

async function described(response) {
  let body = {};
  try {
    body = await response.json();
  } catch {
    // a proxy's answer, perhaps: its status alone is told
  }
  const detail = typeof body.detail === "string" ? body.detail
    : `the server answered with status ${response.status}`;
  const kind = String(body.type ?? "").split(":").pop();
  return new RequestError(sentence(detail), response.status, kind);
}

// A detail as the server writes it, as a sentence.
export function sentence(detail) {
  const words = detail.trim();
  return words.charAt(0).toUpperCase() + words.slice(1) + (/[.!?]$/.test(words) ? "" : ".");
}

export async function getJson(path, options) {
  return (await request(path, options)).json();
}

export async function getText(path, options) {
  return (await request(path, options)).text();
}

// All items of a paged address, in the order of its pages; `most` bounds them.
export async function getAll(path, most = 10000, options = {}) {
  const items = [];
  for (let next = path; next && items.length < most;) {
    const page = await getJson(next, options);
    items.push(...page.items);
    next = page.next;
  }
  return items.slice(0, most);
}

// Saves what an address holds under a name. A link cannot send a key, so with one it is fetched.
export async function save(path, name) {
  if (!hasKey()) {
    saveFrom(path, name);
    return;
  }
  saveBlob(await (await request(path)).blob(), name);
}

export function saveBlob(blob, name) {
  const url = URL.createObjectURL(blob);
  saveFrom(url, name);
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

function saveFrom(href, name) {
  const link = document.createElement("a");
  link.href = href;
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
}

const AGAIN = 2000; // milliseconds before a stream that broke off is asked for again

// The server-sent events of an address, as {kind, data, id}, in an asynchronous iterator. It goes on
// after the last event where the stream breaks off, and ends where the server says so (204), or
// `signal` is aborted. EventSource does the same, but sends no key. `told` hears true while the
// stream is open, and false while it is not.
export async function* events(path, signal, told = () => {}) {
  let last = null;
  let wait = AGAIN;
  while (!signal.aborted) {
    try {
      const headers = { Accept: "text/event-stream", ...(last !== null && { "Last-Event-ID": last }) };
      const response = await request(path, { headers, signal, cache: "no-store" });
      if (response.status === 204) return;
      told(true);
      for await (const event of parsed(response.body)) {
        wait = event.retry ?? wait;
        last = event.id ?? last;
        if (event.data !== null) yield event;
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof RequestError && error.status >= 400 && error.status < 500
        && error.status !== 429) throw error;
    }
    told(false);
    await pause(wait, signal);
  }
}

// The events of a stream of bytes, as the standard reads them.
async function* parsed(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      text = (text + value).replaceAll("\r\n", "\n");
      for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
        yield event(text.slice(0, end));
        text = text.slice(end + 2);
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // it is closed already, where the stream has ended
  }
}

function event(block) {
  const found = { kind: "message", data: null, id: null, retry: null };
  for (const line of block.split("\n")) {
    const [, name, value] = /^([^:]*):? ?(.*)$/.exec(line);
    if (name === "event") found.kind = value;
    else if (name === "data") found.data = found.data === null ? value : `${found.data}\n${value}`;
    else if (name === "id") found.id = value;
    else if (name === "retry" && /^\d+$/.test(value)) found.retry = Number(value);
  }
  return found;
}

// A promise that is kept after so many milliseconds, or as soon as `signal` is aborted.
export function pause(milliseconds, signal) {
  return new Promise((done) => {
    const timer = setTimeout(done, milliseconds);
    signal?.addEventListener("abort", () => { clearTimeout(timer); done(); }, { once: true });
  });
}
