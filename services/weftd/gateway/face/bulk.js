// Jobs that a reader has ticked, and what may be done with all of them at once.

import { ApiError, api } from "./api.js";
import { clean, clear, count, h } from "./dom.js";
import { ask, toast } from "./notice.js";
import { FINAL } from "./words.js";

const NAMED_MAX = 8; // jobs that a question names
export const SELECTED_MAX = 200;

const DEEDS = {
  cancel: {
    words: "Cancel", done: "cancelled", fits: (state) => !FINAL.has(state), danger: true,
    sentence: "They are stopped and give their GPUs back. This cannot be undone, but a cancelled job can be run again.",
  },
  requeue: {
    words: "Run again", done: "sent back to the queue", fits: (state) => FINAL.has(state), danger: false,
    sentence: "Each goes back to the queue, in its next epoch.",
  },
};

// `{element, tick(job), prune(ids), selected}`; `changed()`: after something was asked for, or the selection changed.
export function selection(changed) {
  const jobs = new Map(); // id -> {id, name, state}
  const element = h("div", { class: "row bulk panel", role: "group", ariaLabel: "With the selected jobs", hidden: true });

  function draw() {
    element.hidden = !jobs.size;
    if (!jobs.size) return clear(element);
    const buttons = Object.entries(DEEDS).map(([name, deed]) => {
      const fitting = [...jobs.values()].filter((job) => deed.fits(job.state));
      return fitting.length ? h("button", { type: "button", class: deed.danger && "danger", onclick: () => act(name, fitting) },
        `${deed.words} ${fitting.length === jobs.size ? "" : `${fitting.length} `}`.trim()) : null;
    });
    clear(element).append(...[h("strong", { role: "status" }, `${jobs.size} selected`), ...buttons,
      h("button", { type: "button", class: "quiet", onclick: empty }, "Clear")].filter(Boolean));
  }

  function empty() {
    jobs.clear();
    draw();
    changed();
  }

  async function act(name, fitting) {
    const deed = DEEDS[name];
    const names = fitting.slice(0, NAMED_MAX).map((job) => h("li", {}, h("bdi", {}, clean(job.name)), " ", h("span", { class: "muted" }, clean(job.state))));
    if (fitting.length > NAMED_MAX) names.push(h("li", { class: "muted" }, `and ${fitting.length - NAMED_MAX} more`));
    const title = `${deed.words}: ${count(fitting.length, "job")}`;
    const yes = `${deed.words} ${count(fitting.length, "job")}`;
    if (!await ask({ title, sentence: deed.sentence, fields: [h("ul", {}, names)], yes, danger: deed.danger })) return;
    let accepted = 0;
    const refused = [];
    for (const job of fitting) {
      try {
        await api(`/v1/jobs/${encodeURIComponent(job.id)}/${name}`, { method: "POST" });
        accepted += 1;
        jobs.delete(job.id);
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        refused.push(`${clean(job.name)}: ${clean(error.reason)}`);
        if (!error.status) break; // the gateway is away: the others stay selected
      }
    }
    if (accepted) toast(`${count(accepted, "job")} will be ${deed.done}.`);
    if (refused.length) toast(`${count(refused.length, "job")} refused. ${refused.slice(0, 3).join("; ")}`, "bad");
    draw();
    changed();
  }

  return {
    element,
    has: (id) => jobs.has(id),
    // The box that selects a job.
    tick(job) {
      return h("input", {
        type: "checkbox", class: "tick-box", ariaLabel: `Select ${clean(job.name)}`, checked: jobs.has(job.id),
        onclick: (event) => event.stopPropagation(),
        onchange: (event) => {
          if (event.target.checked && jobs.size < SELECTED_MAX) jobs.set(job.id, { id: job.id, name: job.name, state: job.state || "queued" });
          else jobs.delete(job.id);
          event.target.checked = jobs.has(job.id);
          draw();
        },
      });
    },
    empty,
  };
}
