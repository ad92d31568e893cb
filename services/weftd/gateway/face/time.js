// The moment that the pages show: now, or one of the past (`?at=`), with the slider and its play button.

import { clock, duration, h, moment } from "./dom.js";
import { live } from "./live.js";

const SPANS = [["1 hour", 3600], ["6 hours", 21600], ["1 day", 86400], ["7 days", 604800]];
const STEP_MS = 1000; // of playing
const STEPS = 120; // in which playing crosses the whole slider
const LOAD_MS = 10_000; // playing waits at most so long for a page to show a moment
const listeners = new Set();
let loading = Promise.resolve();

export const time = {
  at: null, // seconds since 1970; null: now

  set(at) {
    const to = at === null || at === undefined || !Number.isFinite(at) || at >= live.now() ? null : Math.max(0, at);
    if (to === time.at) return;
    time.at = to;
    for (const listener of [...listeners]) listener(to);
  },

  subscribe(listener) {
    listeners.add(listener);
    return () => listeners.delete(listener);
  },

  // A path of the API, of the moment that is shown.
  path(path) {
    return time.at === null ? path : `${path}${path.includes("?") ? "&" : "?"}at=${time.at}`;
  },

  // A page loads what it shows: playing goes on once it has it.
  load(promise) {
    loading = Promise.race([Promise.allSettled([promise]), new Promise((go) => { setTimeout(go, LOAD_MS); })]);
    return promise;
  },
};

// The bar with the slider. It is closed until it is wanted, or a moment of the past is shown.
export function timeBar() {
  let span = SPANS[0][1];
  let playing = false;
  let run = 0; // of playing: one that was paused does not go on beside the next
  let until = live.now(); // the right end of the slider: it stands still while the past is looked at
  const slider = h("input", {
    type: "range", min: "0", max: "1000", step: "1", value: "1000", ariaLabel: "Moment that is shown",
    oninput: () => { stop(); choose(until - span * (1 - slider.value / 1000)); },
  });
  const spans = h("select", { ariaLabel: "How far the slider goes back", onchange: () => {
    span = Number(spans.value);
    show();
  } }, SPANS.map(([name, seconds]) => h("option", { value: seconds }, `the last ${name}`)));
  const play = h("button", { type: "button", onclick: () => (playing ? stop() : start()) }, "Play");
  const now = h("button", { type: "button", onclick: () => { stop(); time.set(null); } }, "Back to now");
  const said = h("strong", { class: "moment", role: "status" });
  const bar = h("section", { class: "time-bar", ariaLabel: "Time", hidden: true }, said, slider, spans, play, now);

  function choose(at) {
    time.set(slider.value === "1000" ? null : Math.round(at));
  }

  function show() {
    if (time.at === null) until = live.now();
    else if (time.at < until - span - 1) span = SPANS.map(([, seconds]) => seconds).find((each) => time.at >= until - each) || span;
    spans.value = String(span);
    const at = time.at ?? until;
    slider.value = String(Math.max(0, Math.round(1000 * (1 - (until - at) / span))));
    slider.setAttribute("aria-valuetext", time.at === null ? "now" : clock(at));
    said.textContent = time.at === null ? "now, live" : `as it was at ${moment(at)}, ${duration(live.now() - at)} ago`;
    bar.classList.toggle("past", time.at !== null);
    now.disabled = time.at === null;
    if (time.at !== null) bar.hidden = false;
  }

  async function start() {
    const mine = (run += 1);
    playing = true;
    play.textContent = "Pause";
    if (time.at === null) time.set(Math.ceil(until - span));
    for (;;) {
      await Promise.all([loading, new Promise((go) => { setTimeout(go, STEP_MS); })]);
      if (!playing || mine !== run) return;
      if (time.at === null) stop();
      else time.set(Math.round(time.at + span / STEPS));
    }
  }

  function stop() {
    playing = false;
    play.textContent = "Play";
  }

  const forget = time.subscribe(show);
  show();
  return {
    element: bar,
    toggle() {
      bar.hidden = !bar.hidden;
      if (bar.hidden) { stop(); time.set(null); } else { show(); slider.focus(); }
      return !bar.hidden;
    },
    end() { stop(); forget(); },
  };
}
