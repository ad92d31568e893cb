// Requests to the gateway, all with the session's cookie and proof; errors as `ApiError`; streams that come back after a cut.

import { session } from "./session.js";

const ANSWER_MS = 30_000; // a request without an answer for so long has failed
const SILENCE_MS = 40_000; // a stream sends a comment every few seconds: so long without any, it is cut
const RETRY_MS = [500, 1000, 2000, 4000, 8000];
const SIGNED_OUT = "This session has ended, was revoked or has expired. Sign in again.";
const CODE_PREFIX = "code_";

let leaving = new AbortController(); // of the session: ends its streams

export class ApiError extends Error {
  // `status` 0: no answer came. `field`: the place in the request, or empty. `retry`: in seconds, if the gateway told.
  // `mistakes`: all of a specification, each with its field and reason.
  constructor(status, field, reason, retry = 0, mistakes = []) {
    super(field ? `${field}: ${reason}` : reason);
    Object.assign(this, { name: "ApiError", status, field, reason, retry, mistakes });
  }
}

// The JSON of an answer. `body`: a value that is sent as JSON, or a string with its `type`.
export async function api(path, { method = "GET", body, type, headers = {}, signal } = {}) {
  const sent = { ...headers };
  if (body !== undefined) sent["Content-Type"] = type || "application/json";
  const bound = AbortSignal.timeout(ANSWER_MS);
  const content = body === undefined || typeof body === "string" ? body : JSON.stringify(body);
  const signals = signal ? AbortSignal.any([signal, bound]) : bound;
  const response = await request(path, { method, headers: sent, body: content, signal: signals });
  try {
    return response.status === 204 ? null : await response.json();
  } catch (error) {
    throw broken(error, signal);
  }
}

// The items of a list, page by page: an answer that goes on names its next page in `Link`.
export async function* pagesOf(path, { signal }) {
  while (path) {
    const response = await request(path, { signal: AbortSignal.any([signal, AbortSignal.timeout(ANSWER_MS)]) });
    yield await response.json();
    path = /<([^>]*)>; rel="next"/.exec(response.headers.get("Link") ?? "")?.[1];
  }
}

// The answer itself, for logs and downloads; a refusal is thrown. Without a bound of its own: give it a `signal`.
export async function request(path, { method = "GET", headers = {}, body, signal } = {}) {
  const { proof } = session;
  let response;
  try {
    response = await fetch(path, {
      method, body, signal, cache: "no-store", credentials: "same-origin",
      headers: { ...headers, "X-Weft-Session": proof },
    });
  } catch (error) {
    throw broken(error, signal);
  }
  if (response.ok) return response;
  const refusal = await refusalOf(response);
  if (refusal.status === 401 && proof === session.proof) session.end(SIGNED_OUT);
  throw refusal;
}

// Whether people sign in with an identity provider here.
export async function provider() {
  try {
    const response = await fetch("/v1/oidc", { cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(ANSWER_MS) });
    return response.ok && (await response.json()).issuer !== "";
  } catch {
    return false;
  }
}

// Begins a session with a token or a one-time code: an empty text, or a sentence why not.
export async function signIn(given) {
  const isCode = given.startsWith(CODE_PREFIX);
  try {
    const response = await fetch("/v1/sessions", {
      method: "POST", cache: "no-store", credentials: "same-origin", signal: AbortSignal.timeout(ANSWER_MS),
      headers: { "Content-Type": "application/json", ...(isCode ? {} : { Authorization: `Bearer ${given}` }) },
      body: JSON.stringify(isCode ? { code: given } : {}),
    });
    if (response.ok) {
      session.begin(await response.json());
      return "";
    }
    const refusal = await refusalOf(response);
    if (refusal.status !== 401) return refusal.message;
    return isCode ? "This link was used, or is too old; `weft open` prints another."
      : "The gateway does not know this token, or it is no longer valid.";
  } catch {
    return "The gateway does not answer. Is it running?";
  }
}

// Ends the session at the gateway too; where that fails, its cookie stays until it expires, and the proof is forgotten.
// Streams end first: the gateway cuts those of a session that is over.
export async function signOut() {
  leaving.abort();
  leaving = new AbortController();
  await api(`/v1/sessions/${encodeURIComponent(session.id)}`, { method: "DELETE" }).catch(() => {});
  session.end();
}

// Aborting is the caller's doing and stays what it is; all else is an answer that did not come.
function broken(error, signal) {
  if (signal?.aborted && error.name === "AbortError") return error;
  const late = error.name === "TimeoutError";
  return new ApiError(0, "", late ? "the gateway did not answer in time" : "the gateway does not answer");
}

async function refusalOf(response) {
  const retry = Number(response.headers.get("Retry-After")) || 0;
  try {
    const told = await response.json();
    const error = told.error || {}; // beside the fields of application/problem+json
    const reason = error.reason || told.detail || told.title || response.statusText;
    return new ApiError(response.status, error.field ?? told.field ?? "", reason, retry, error.errors ?? []);
  } catch {
    return new ApiError(response.status, "", response.statusText || `status ${response.status}`, retry);
  }
}

// Server-sent events until the `given` signal or a sign-out ends them, or the gateway says that all was told (204).
// `onEvent({event, id, data})` gets data decoded from JSON. `onState(state, reason)`: "live", "lost" (it is tried
// again) or "refused" (it is not).
export async function stream(path, onEvent, given, onState = () => {}) {
  const signal = AbortSignal.any([given, leaving.signal]);
  let last = "";
  for (let failures = 0; !signal.aborted; failures += 1) {
    const cut = new AbortController();
    const either = AbortSignal.any([signal, cut.signal]);
    let wait = RETRY_MS[Math.min(failures, RETRY_MS.length - 1)];
    try {
      const headers = { Accept: "text/event-stream", ...(last ? { "Last-Event-ID": last } : {}) };
      const opening = setTimeout(() => cut.abort(), ANSWER_MS);
      const response = await request(path, { headers, signal: either }).finally(() => clearTimeout(opening));
      if (response.status === 204) return;
      for await (const event of events(response.body, cut)) {
        if (event === null) {
          if (failures >= 0) onState("live", "");
          failures = -1;
          continue;
        }
        last = event.id || last;
        onEvent(event);
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && error.status >= 400 && error.status < 500 && error.status !== 429) {
        onState("refused", error.message);
        return;
      }
      if (error instanceof ApiError) wait = Math.max(wait, error.retry * 1000);
      else if (error.name !== "AbortError") console.error(error); // a mistake of this page: it must be seen
    }
    if (signal.aborted) return;
    onState("lost", "");
    await pause(wait * (0.75 + Math.random() / 2), signal); // many pages do not come back at the same instant
  }
}

// The events of a stream; null after each piece of it, also after a mere comment: it is alive.
async function* events(body, cut) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let fields = { event: "message", id: "", data: [] };
  let silence = setTimeout(() => cut.abort(), SILENCE_MS);
  try {
    for (;;) {
      const { done, value } = await reader.read().catch((error) => { throw broken(error, cut.signal); });
      if (done) return;
      clearTimeout(silence);
      silence = setTimeout(() => cut.abort(), SILENCE_MS);
      yield null;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines.map((each) => (each.endsWith("\r") ? each.slice(0, -1) : each))) {
        if (line === "") {
          if (fields.data.length) yield { ...fields, data: JSON.parse(fields.data.join("\n")) };
          fields = { event: "message", id: "", data: [] };
          continue;
        }
        const colon = line.indexOf(":");
        if (colon === 0) continue; // a comment
        const name = colon < 0 ? line : line.slice(0, colon);
        const content = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
        if (name === "data") fields.data.push(content);
        else if (name === "event" || name === "id") fields[name] = content;
      }
    }
  } finally {
    clearTimeout(silence);
    reader.cancel().catch(() => {});
  }
}

function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
  });
}
