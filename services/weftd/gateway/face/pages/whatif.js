// What if: another order, more nodes, a drained node, one more job. Who would gain, and who would lose, from now on.

import { ApiError } from "../api.js";
import { clean, clear, count, duration, h } from "../dom.js";
import { facts, failureText, table } from "../parts.js";
import { jobLink } from "../words.js";

const ORDERS = [["", "as it is"], ["fifo", "fifo: first come, first served"], ["las", "las: least GPU time so far first"],
  ["srtf", "srtf: shortest remaining time first"], ["drf", "drf: the tenant with the least dominant share first"], ["priority", "priority: the highest first"]];
const BASES = {
  limits: "its time limit",
  learnt: "as long as jobs like it lasted",
  progress: "by the steps that it reports and its pace",
  service: "a service: it runs until it is cancelled",
  unknown: "unknown: as long again as it has run, or an hour",
};
const NODES_MAX = 1000;
const ROWS_MAX = 200;

export function mount(root, { api, live }) {
  let running = null;
  const order = h("select", { id: "order", dataset: { field: "order" } }, ORDERS.map(([name, words]) => h("option", { value: name }, words)));
  const nodes = h("input", { id: "add-nodes", type: "number", min: "0", max: String(NODES_MAX), step: "1", value: "0", dataset: { field: "add_nodes" } });
  const drain = h("input", { id: "drain", list: "node-names", autocomplete: "off", spellcheck: "false", placeholder: "node-1 node-2", dataset: { field: "drain" } });
  const names = h("datalist", { id: "node-names" });
  const job = h("textarea", { id: "job", rows: "8", spellcheck: "false", dataset: { field: "submit" }, placeholder: "name: mine\ncommand: [python3, train.py]\nroles:\n  worker:\n    gpus: 4" });
  const button = h("button", { type: "submit", class: "primary" }, "Try it out");
  const refused = h("p", { class: "bad", role: "alert" });
  const said = h("p", { class: "muted", role: "status" });
  const result = h("div", { class: "stack", tabindex: "-1" });
  const field = (label, input, note) => h("div", { class: "field" }, h("label", { htmlFor: input.id }, label), input, note ? h("span", { class: "muted" }, note) : "");
  const form = h("form", { class: "panel what-if", onsubmit: submit },
    h("div", { class: "panels" },
      h("div", { class: "stack" }, field("Order", order), field("More nodes", nodes, "like those of which there are most"), field("Drain", drain, "names of nodes")),
      field("One more job", job, "its specification, as YAML or JSON")),
    refused, h("div", { class: "row" }, button, said), names);
  root.append(h("div", { class: "stack" }, h("h1", {}, "What if"),
    h("p", { class: "muted" }, "Weft simulates the current queue with its own scheduler, once as it is and once with your change. The cluster is not changed."),
    form, result));
  const forget = live.subscribe((change) => { if (change?.whole) listNodes(); });
  listNodes();

  function listNodes() {
    clear(names).append(...(live.state?.nodes ?? []).slice(0, NODES_MAX).map((node) => h("option", { value: node.id })));
  }

  async function submit(event) {
    event.preventDefault();
    running?.abort();
    const mine = (running = new AbortController());
    for (const input of form.querySelectorAll("[aria-invalid]")) input.removeAttribute("aria-invalid");
    refused.textContent = "";
    said.textContent = "trying it out …";
    button.disabled = true;
    try {
      const view = await api("/v1/what-if", { method: "POST", body: requestOf(valuesOf()), signal: mine.signal });
      if (mine.signal.aborted) return;
      clear(result).append(...resultParts(view));
      said.textContent = "";
      result.focus();
    } catch (error) {
      if (mine.signal.aborted) return;
      refuse(error);
    } finally {
      if (mine === running) button.disabled = false;
    }
  }

  function valuesOf() {
    return { order: order.value, add_nodes: Number(nodes.value || 0), drain: drain.value.split(/[\s,]+/).filter(Boolean), job: job.value };
  }

  function refuse(error) {
    said.textContent = "";
    clear(result);
    if (!(error instanceof ApiError)) throw error;
    refused.textContent = failureText(error);
    const input = form.querySelector(`[data-field="${CSS.escape(error.field.split(/[.[]/)[0])}"]`);
    input?.setAttribute("aria-invalid", "true");
    input?.focus();
  }

  return {
    unmount() {
      running?.abort();
      forget();
    },
  };
}

// The request's body: a pasted job stays the text that it is, and the gateway reads it.
export function requestOf({ order, add_nodes, drain, job }) {
  return {
    ...(order ? { order } : {}), ...(add_nodes ? { add_nodes } : {}), ...(drain.length ? { drain } : {}),
    ...(job.trim() ? { submit: [job] } : {}),
  };
}

function resultParts(view) {
  const gained = view.jobs.filter((job) => job.gains_seconds > 0);
  const lost = view.jobs.filter((job) => job.gains_seconds < 0);
  const fresh = view.jobs.filter((job) => isNew(job));
  const left = view.jobs_left_out ?? 0;
  return [
    h("section", { class: "panel" }, h("h2", {}, "The answer"), h("p", {}, h("strong", {}, clean(view.sentence))),
      facts([
        ["as it is", sideText(view.base)],
        ["with the change", sideText(view.other)],
        ["waiting", `${duration(view.waited_other)} more on average, instead of ${duration(view.waited_base)}`],
        ["gain", `${count(view.gained, "job")} would end or start sooner`],
        ["lose", `${count(view.lost, "job")} would end or start later`],
        ["how long jobs last", assumedText(view.assumed)],
      ])),
    fresh.length ? group("The new job", fresh, view.at) : "",
    gained.length ? group("Gain", gained, view.at) : "",
    lost.length ? group("Lose", lost, view.at) : "",
    !gained.length && !lost.length && !fresh.length ? h("p", { class: "muted" }, "No job would start or end at another time.") : "",
    left > 0 ? h("p", { class: "muted" }, `and ${count(left, "more job")}, which change less`) : "",
  ].filter(Boolean);
}

function sideText(side) {
  if (!side) return "";
  return [clean(side.sentence), clean(side.policy ?? ""), side.gpus === undefined ? "" : count(side.gpus, "GPU")].filter(Boolean).join(", ");
}

// By what it is known how long the jobs last: the answer is as good as that.
function assumedText(assumed) {
  return Object.entries(assumed ?? {}).map(([basis, many]) => `${count(many, "job")}: ${BASES[basis] ?? clean(basis)}`).join("; ");
}

// A job that is there with the change only.
function isNew(job) {
  return !known(job.gains_seconds) && !known(job.starts_base) && !known(job.ends_base) && (known(job.starts_other) || known(job.ends_other));
}

// The time that was looked at is no wait: a job that starts on one side alone is named so.
function differenceOf(job) {
  if (!known(job.gains_seconds)) return "";
  if (!known(job.starts_base) && !known(job.ends_base)) return "starts only with the change";
  if (!known(job.starts_other) && !known(job.ends_other)) return "no longer starts";
  return `${duration(Math.abs(job.gains_seconds))} ${job.gains_seconds > 0 ? "sooner" : "later"}`;
}

function known(value) {
  return value !== null && value !== undefined && Number.isFinite(value);
}

function group(title, jobs, at) {
  const rows = jobs.slice(0, ROWS_MAX).map((job) => [
    isNew(job) ? clean(job.name) : jobLink(job.id, job.name ?? ""), clean(job.tenant ?? ""),
    isNew(job) ? "not there" : timesText(job.starts_base, job.ends_base, at), timesText(job.starts_other, job.ends_other, at),
    differenceOf(job),
  ]);
  return h("section", { class: "panel" }, h("h2", {}, `${title}: ${count(jobs.length, "job")}`),
    table(title, ["job", "tenant", "as it is", "with the change", "difference"], rows),
    jobs.length > rows.length ? h("p", { class: "muted" }, `and ${jobs.length - rows.length} more`) : "");
}

function timesText(starts, ends, at) {
  const when = (moment) => (moment - at < 1 ? "now" : `in ${duration(moment - at)}`);
  const parts = [known(starts) ? `starts ${when(starts)}` : "", known(ends) ? `ends ${when(ends)}` : ""].filter(Boolean);
  return parts.join(", ") || "not in the time that was looked at";
}
