// The session of this browser. Its token is in a cookie that scripts cannot read; here is the proof that goes with each
// request, in local storage, which no other origin reads. `tenant` and `admin` come with the first snapshot of the live
// stream.

import { h } from "./dom.js";

const KEY = "weft.session";
const listeners = new Set();

export const session = {
  ...stored(), // id and proof; empty: nobody is signed in
  tenant: "",
  admin: false,
  note: "", // a sentence for the sign-in page: why the last session ended

  begin({ id, proof }) {
    Object.assign(session, { id, proof, note: "" });
    remember(JSON.stringify({ id, proof }));
    tell();
  },

  // Forgets the session; `note` says why, if the person at the page did not ask for it.
  end(note = "") {
    if (!session.proof) return;
    if (stored().proof === session.proof) remember(""); // another tab may have signed in again
    Object.assign(session, { id: "", proof: "", tenant: "", admin: false, note });
    tell();
  },

  subscribe(listener) {
    listeners.add(listener);
    return () => listeners.delete(listener);
  },
};

// A link may offer a one-time code (`#code=…`, as `weft open` prints it). It leaves the address at once, and no more than
// fills the form in: a link must not sign a person in, least of all as another.
let offered = "";
// The code comes from a sign-in at the identity provider that a person began on this page: then no click is wanted.
let begun = false;
const BEGUN = "weft.sign-in";

function takeBegun() {
  try {
    const was = sessionStorage.getItem(BEGUN) !== null;
    sessionStorage.removeItem(BEGUN);
    return was;
  } catch {
    return false;
  }
}

function begin() {
  try {
    sessionStorage.setItem(BEGUN, "1");
  } catch {
    // As above: then a click is wanted.
  }
  location.assign("/v1/oidc/login");
}

function takeOffer() {
  const found = /^#code=([\x21-\x7e]+)$/.exec(location.hash);
  if (!found) return;
  offered = session.proof ? "" : found[1];
  begun = offered !== "" && takeBegun();
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
    const { id = "", proof = "" } = JSON.parse(localStorage.getItem(KEY)) ?? {};
    return { id, proof };
  } catch {
    return { id: "", proof: "" }; // storage may be forbidden: then a reload asks again
  }
}

function remember(text) {
  try {
    if (text) localStorage.setItem(KEY, text);
    else localStorage.removeItem(KEY);
  } catch {
    // As above.
  }
}

// The sign-in page. `signIn(text)` begins a session with a token or a code, or returns a sentence why it did not.
// `provider()`: whether there is an identity provider.
export function signInForm(signIn, provider) {
  const token = h("input", {
    id: "token", type: "password", autocomplete: "off", spellcheck: "false", required: true, placeholder: "weft_…",
    value: offered,
  });
  offered = "";
  const button = h("button", { type: "submit", class: "primary" }, "Sign in");
  const said = h("p", { class: "said", role: "alert" }, session.note);
  const single = h("button", { type: "button", class: "primary", hidden: true, onclick: begin }, "Sign in with single sign-on");
  provider().then((there) => { single.hidden = !there; });
  async function submit(event) {
    event.preventDefault();
    const given = token.value.trim();
    if (!given) return;
    button.disabled = true;
    said.textContent = "";
    const refusal = /^[\x21-\x7e]+$/.test(given) ? await signIn(given) : "a token has no spaces and only ASCII letters";
    button.disabled = false;
    if (!refusal) return;
    said.textContent = refusal;
    token.setAttribute("aria-invalid", "true");
    token.focus();
  }
  const form = h("form", { class: "panel sign-in", onsubmit: submit },
    h("h1", {}, "Weft"),
    h("p", {}, "The cluster's GPUs: what runs on them, what waits, and why."),
    said, single,
    h("label", { htmlFor: "token" }, "Token"), token,
    h("p", { class: "muted" }, "A token, or the code of a link that ", h("code", {}, "weft open"), " prints. ",
      "An administrator makes tokens with ", h("code", {}, "weft token create"), "."),
    button,
    h("p", { class: "muted" }, h("a", { href: "/v1/openapi.json" }, "The description of the API"), " needs no token."));
  queueMicrotask(() => (begun ? form.requestSubmit(button) : token.focus()));
  return form;
}
