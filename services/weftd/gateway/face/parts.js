// What the pages beside cluster and queue are made of: sections, tables, and work that is repeated.

import { ApiError } from "./api.js";
import { clean, clear, h } from "./dom.js";
import { headWord } from "./words.js";

const GAP_MS = 1000; // between two runs that something asked for
const HIDDEN_FACTOR = 10; // a page that nobody looks at asks that much less often

// A section with its heading.
export function section(title, ...children) {
  return h("section", { class: "panel" }, h("h2", {}, title), ...children);
}

// What may be wider than the page: it scrolls, also by keyboard.
export function scrolling(label, ...children) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", ariaLabel: label }, ...children);
}

// A table: `heads` are names, with a `#` before those of numbers; the first cell of each row names it. On a narrow page
// each row folds (style.css), and every cell then stands after the name of its column.
export function table(label, heads, rows) {
  const isNumber = heads.map((head) => head.startsWith("#"));
  const names = heads.map((head, place) => (isNumber[place] ? head.slice(1) : head));
  const number = (place) => (isNumber[place] ? "number" : null);
  const cell = (content, place) => h(place ? "td" : "th",
    { scope: place ? null : "row", class: number(place), dataset: { head: names[place] } }, content);
  return scrolling(label, h("table", { class: "table" },
    h("caption", { class: "hidden-text" }, label),
    h("thead", {}, h("tr", {}, names.map((name, place) => h("th", { class: number(place), scope: "col" }, headWord(name))))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cell))))));
}

// Facts by name; empty ones are left out.
export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(([, fact]) => fact !== "" && fact !== null && fact !== undefined)
    .map(([name, fact]) => [h("dt", {}, name), h("dd", {}, fact)]));
}

// An element whose content is made anew only if what it shows has changed: nothing that is read or focused jumps.
export function slot(tag = "div", props = {}) {
  const element = h(tag, props);
  let shown = null;
  return {
    element,
    show(value, draw) {
      const now = JSON.stringify(value) ?? "";
      if (now === shown) return;
      shown = now;
      clear(element).append(...[draw(value)].flat(Infinity).filter((part) => part !== null && part !== undefined && part !== false));
    },
  };
}

// Why a request did not work, as a sentence.
export function failureText(error) {
  if (!(error instanceof ApiError)) return error.message;
  if (error.status === 404 && !error.field) return "The gateway does not have this.";
  return clean(error.field ? `${error.field}: ${error.reason}` : error.reason);
}

// Repeats `work(signal)` every so many milliseconds, less often in a hidden page, never two at once.
// `soon()`: again as soon as may be; `stop()`: no more.
export function repeat(work, every) {
  const stopping = new AbortController();
  let timer = 0;
  let running = false;
  let again = false;
  let last = -Infinity;
  async function run() {
    clearTimeout(timer);
    [running, again, last] = [true, false, performance.now()];
    try {
      await work(stopping.signal);
    } catch (error) {
      if (!stopping.signal.aborted) console.error(error); // a mistake of this page: it must be seen
    }
    running = false;
    if (stopping.signal.aborted) return;
    timer = setTimeout(run, again ? GAP_MS : every * (document.hidden ? HIDDEN_FACTOR : 1));
  }
  function soon() {
    if (stopping.signal.aborted) return;
    if (running) {
      again = true;
      return;
    }
    clearTimeout(timer);
    timer = setTimeout(run, Math.max(0, GAP_MS - (performance.now() - last)));
  }
  function seen() {
    if (!document.hidden) soon();
  }
  document.addEventListener("visibilitychange", seen);
  run();
  return {
    soon,
    stop() {
      stopping.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    },
  };
}
