// Short messages at the edge of the page, and questions before something is done.

import { h } from "./dom.js";

const SHOWN_MS = 6000;
const SHOWN_MAX = 4;

// `kind`: "ok" or "bad". A bad one stays until it is closed.
export function toast(sentence, kind = "ok") {
  const place = document.getElementById("toasts");
  const close = () => item.remove();
  const item = h("div", { class: `toast ${kind}`, role: kind === "bad" ? "alert" : "status" },
    h("span", {}, sentence), h("button", { type: "button", class: "quiet", ariaLabel: "Close", onclick: close }, "×"));
  place.append(item);
  while (place.children.length > SHOWN_MAX) place.firstElementChild.remove();
  if (kind !== "bad") setTimeout(close, SHOWN_MS);
}

// A question. `fields`: elements between the sentence and the buttons. Returns true for yes; Escape and No: false.
export function ask({ title, sentence = "", fields = [], yes = "Yes", no = "Back", danger = false }) {
  return new Promise((resolve) => {
    const form = h("form", { method: "dialog" },
      h("h2", { id: "ask-title" }, title), sentence && h("p", {}, sentence), fields,
      h("div", { class: "row end" },
        h("button", { type: "button", onclick: () => dialog.close("no") }, no),
        h("button", { type: "submit", value: "yes", class: danger ? "danger" : "primary" }, yes)));
    const dialog = h("dialog", { class: "panel", ariaLabelledby: "ask-title" }, form);
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
