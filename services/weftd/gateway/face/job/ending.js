// A job that failed: the last lines of the rank that failed first, where its page opens.

import { request } from "../api.js";
import { linesOf } from "./ansi.js";
import { clean, clear, h } from "../dom.js";

const TAIL_BYTES = 16 << 10;
const LINES = 12;

// `{element, update(job, isPast), close()}`; `more()`: to the whole log.
export function lastWords(jobId, more) {
  const lines = h("pre", { class: "log last", tabindex: "0", role: "region", ariaLabel: "The last lines that it wrote" });
  const title = h("h2", {}, "");
  const said = h("p", { class: "muted", role: "status" });
  const element = h("section", { class: "panel", hidden: true },
    h("div", { class: "row" }, title, h("span", { class: "grow" }), h("button", { type: "button", class: "small", onclick: more }, "Whole log")), said, lines);
  let asked = "";
  let reading = new AbortController();

  async function update(job, isPast) {
    element.hidden = isPast || job.state !== "failed";
    const rank = Math.max(0, job.ended_for?.numbers?.rank ?? 0);
    const key = `${job.epoch} ${rank}`;
    if (element.hidden || key === asked) return;
    asked = key;
    reading.abort();
    reading = new AbortController();
    title.textContent = `The last lines of rank ${rank}`;
    try {
      const { signal } = reading;
      const path = `/v1/jobs/${encodeURIComponent(jobId)}/logs?rank=${rank}&tail=${TAIL_BYTES}`;
      const response = await request(path, { signal: AbortSignal.any([signal, AbortSignal.timeout(30_000)]) });
      const shown = linesOf(await response.text()).slice(-LINES);
      said.textContent = shown.length ? "" : "It wrote nothing.";
      lines.hidden = !shown.length;
      clear(lines).append(...shown.map(({ spans }) => h("div", {}, spans.map(({ text, look }) => (look ? h("span", { class: look }, text) : text)), "\n")));
    } catch (error) {
      if (error.name === "AbortError") return;
      lines.hidden = true;
      said.textContent = clean(error.reason ?? error.message);
    }
  }

  return { element, update, close: () => reading.abort() };
}
