// Tabs after the pattern of WAI-ARIA: one panel is shown, arrow keys move between the tabs.

import { h } from "./dom.js";

const STEPS = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };

// `panels`: {name: [words, element]}; `onShow(name)` is called whenever another one is shown.
export function tabs(label, panels, { first, onShow }) {
  const names = Object.keys(panels);
  let shown = names.includes(first) ? first : names[0];
  const buttons = Object.fromEntries(names.map((name) => [name, h("button", {
    type: "button", role: "tab", id: `tab-${name}`, ariaControls: `panel-${name}`, onclick: () => show(name),
  }, panels[name][0])]));
  const list = h("div", { class: "tabs", role: "tablist", ariaLabel: label, onkeydown: (event) => {
    if (!(event.key in STEPS)) return;
    const seen = names.filter((name) => !buttons[name].hidden);
    const to = seen[Math.max(0, Math.min(seen.length - 1, seen.indexOf(shown) + STEPS[event.key]))];
    event.preventDefault();
    show(to);
    buttons[to].focus();
  } }, Object.values(buttons));
  const boxes = Object.fromEntries(names.map((name) => [name, h("div", {
    role: "tabpanel", id: `panel-${name}`, ariaLabelledby: `tab-${name}`, class: "stack",
  }, panels[name][1])]));

  function draw() {
    for (const name of names) {
      buttons[name].setAttribute("aria-selected", String(name === shown));
      buttons[name].tabIndex = name === shown ? 0 : -1;
      boxes[name].hidden = name !== shown;
    }
  }

  function show(name) {
    if (name === shown) return;
    shown = name;
    draw();
    onShow(name);
  }

  draw();
  return {
    element: h("div", { class: "stack" }, list, Object.values(boxes)),
    get shown() { return shown; },
    show,
    // Hides the tabs for which `is(name)` is false; one that is shown gives way to the first.
    offer(is) {
      for (const name of names) buttons[name].hidden = !is(name);
      if (buttons[shown].hidden) show(names[0]);
    },
  };
}
