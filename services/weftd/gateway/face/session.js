// The token of this page: in memory, or in the browser's session storage if the box was ticked. Never in a cookie, an
// address or local storage. `tenant` and `admin` come with the first snapshot of the live stream.

import { h } from "./dom.js";

const KEY = "weft.token";
const listeners = new Set();

export const session = {
  token: stored(),
  tenant: "",
  admin: false,
  note: "", // a sentence for the sign-in page: why the last session ended

  begin(token, keep) {
    session.token = token;
    session.note = "";
    remember(keep ? token : "");
    tell();
  },

  // Ends the session; `note` says why, if the person at the page did not ask for it.
  end(note = "") {
    if (!session.token) return;
    Object.assign(session, { token: "", tenant: "", admin: false, note });
    remember("");
    tell();
  },

  subscribe(listener) {
    listeners.add(listener);
    return () => listeners.delete(listener);
  },
};

// A link may offer a token (`#token=…`, as `weft demo` prints it). It leaves the address at once, and no more than fills
// the form in: a link must not sign a person in, least of all as another.
let offered = "";

function takeOffer() {
  const found = /^#token=([\x21-\x7e]+)$/.exec(location.hash);
  if (!found) return;
  offered = session.token ? "" : found[1];
  history.replaceState(null, "", location.pathname);
}

takeOffer();
addEventListener("hashchange", () => { // before the router's
  takeOffer();
  if (offered) tell();
});

function tell() {
  for (const listener of [...listeners]) listener();
}

function stored() {
  try {
    return sessionStorage.getItem(KEY) || "";
  } catch {
    return ""; // storage may be forbidden: then the token lives in memory only
  }
}

function remember(token) {
  try {
    if (token) sessionStorage.setItem(KEY, token);
    else sessionStorage.removeItem(KEY);
  } catch {
    // As above.
  }
}

// The sign-in page. `check(token)` returns "" if the gateway takes the token, else a sentence.
export function signInForm(check) {
  const token = h("input", {
    id: "token", type: "password", autocomplete: "off", spellcheck: "false", required: true, placeholder: "weft_…",
    value: offered,
  });
  offered = "";
  const keep = h("input", { id: "keep", type: "checkbox" });
  const button = h("button", { type: "submit", class: "primary" }, "Sign in");
  const said = h("p", { class: "said", role: "alert" }, session.note);
  async function submit(event) {
    event.preventDefault();
    const given = token.value.trim();
    if (!given) return;
    button.disabled = true;
    said.textContent = "";
    const refusal = /^[\x21-\x7e]+$/.test(given) ? await check(given) : "a token has no spaces and only ASCII letters";
    button.disabled = false;
    if (refusal) {
      said.textContent = refusal;
      token.setAttribute("aria-invalid", "true");
      token.focus();
    } else session.begin(given, keep.checked);
  }
  const form = h("form", { class: "panel sign-in", onsubmit: submit },
    h("h1", {}, "Weft"),
    h("p", {}, "The cluster's GPUs: what runs on them, what waits, and why."),
    said,
    h("label", { htmlFor: "token" }, "Token"), token,
    h("label", { class: "tick", htmlFor: "keep" }, keep, " Keep it until this browser tab is closed"),
    h("p", { class: "muted" }, "Without the tick, the token stays in this page's memory and a reload asks again. ",
      h("code", {}, "weft up"), " and ", h("code", {}, "make demo"), " print a token; an administrator makes more with ",
      h("code", {}, "weft token create"), "."),
    button,
    h("p", { class: "muted" }, h("a", { href: "/v1/openapi.json" }, "The description of the API"), " needs no token."));
  queueMicrotask(() => token.focus());
  return form;
}
