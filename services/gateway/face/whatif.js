// What if: another order, more nodes, a drained node, one more job. Who would gain, and who would lose, from now on.

import { ApiError } from "./api.js";
import { clean, clear, count, duration, h } from "./dom.js";
import { failureText, table } from "./parts.js";
import { jobLink } from "./words.js";

const ORDERS = [["", "as it is"], ["fifo", "fifo: first come, first served"], ["las", "las: least GPU time so far first"],
  ["srtf", "srtf: shortest remaining time first"], ["drf", "drf: the tenant with the least dominant share first"], ["priority", "priority: the highest first"]];
const NODES_MAX = 1000;
const ROWS_MAX = 200;
const SAME_SECONDS = 1; // starts that differ by less are alike

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
      h("div", { class: "stack" }, field("Order", order), field("More nodes", nodes, "each like the largest there is"), field("Drain", drain, "names of nodes")),
      field("One more job", job, "its specification, as YAML or JSON")),
    refused, h("div", { class: "row" }, button, said), names);
  root.append(h("div", { class: "stack" }, h("h1", {}, "What if"),
    h("p", { class: "muted" }, "The queue of now goes on in the simulator, with the production rules, once as it is and once with your change. Nothing is changed in the cluster."),
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
      const view = await api("/v1/what-if", { method: "POST", ...requestOf(valuesOf()), signal: mine.signal });
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
    refused.textContent = error instanceof ApiError ? failureText(error) : error.message;
    const place = error instanceof ApiError ? error.field.split(/[.[]/)[0] : "submit";
    const input = form.querySelector(`[data-field="${CSS.escape(place)}"]`);
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

// The request's body. A pasted job stays the text that it is: as YAML it becomes an item of the list `submit`.
export function requestOf({ order, add_nodes, drain, job }) {
  const wanted = { ...(order ? { order } : {}), ...(add_nodes ? { add_nodes } : {}), ...(drain.length ? { drain } : {}) };
  const pasted = job.trim();
  if (!pasted) return { body: wanted };
  if (pasted.startsWith("{")) return { body: { ...wanted, submit: [parsed(pasted)] } };
  const lines = job.replace(/^\uFEFF/, "").split(/\r?\n/).filter((line) => line !== "---" && line.trim() !== "");
  const item = lines.map((line) => `    ${line}`).join("\n");
  const others = Object.entries(wanted).map(([name, value]) => `${name}: ${JSON.stringify(value)}\n`).join("");
  return { body: `${others}submit:\n  -\n${item}\n`, type: "application/yaml" };
}

function parsed(pasted) {
  try {
    return JSON.parse(pasted);
  } catch (error) {
    throw new Error(`The job is not JSON: ${error.message}`);
  }
}

function resultParts(view) {
  const rows = view.jobs.map((job) => ({ ...job, gain: gainOf(job) })).sort((a, b) => Math.abs(b.gain ?? 0) - Math.abs(a.gain ?? 0));
  const gained = rows.filter((job) => job.gain > SAME_SECONDS);
  const lost = rows.filter((job) => job.gain < -SAME_SECONDS);
  const fresh = rows.filter((job) => job.gain === null && known(job.starts_other));
  return [
    h("section", { class: "panel" }, h("h2", {}, "The answer"), h("p", {}, h("strong", {}, clean(view.sentence))),
      view.other?.sentence ? h("p", { class: "muted" }, clean(view.other.sentence)) : "",
      h("p", {}, `Jobs wait ${duration(view.waited_other)} in the mean, instead of ${duration(view.waited_base)}. ${count(view.gained ?? gained.length, "job")} would start sooner, ${count(view.lost ?? lost.length, "job")} later.`)),
    fresh.length ? group("The new job", fresh, view.at) : "",
    gained.length ? group("Gain", gained, view.at) : "",
    lost.length ? group("Lose", lost, view.at) : "",
    !gained.length && !lost.length && !fresh.length ? h("p", { class: "muted" }, "No job would start at another time.") : "",
  ].filter(Boolean);
}

// Seconds by which a job starts sooner; null if one of the two starts is not known.
export function gainOf({ starts_base, starts_other }) {
  return known(starts_base) && known(starts_other) ? starts_base - starts_other : null;
}

function known(value) {
  return value !== null && value !== undefined && Number.isFinite(value);
}

function group(title, jobs, at) {
  const rows = jobs.slice(0, ROWS_MAX).map((job) => [
    job.id ? jobLink(job.id, job.name ?? "") : clean(job.name), clean(job.tenant), startText(job.starts_base, at), startText(job.starts_other, at),
    job.gain === null ? "" : `${duration(Math.abs(job.gain))} ${job.gain > 0 ? "sooner" : "later"}`,
  ]);
  return h("section", { class: "panel" }, h("h2", {}, `${title}: ${count(jobs.length, "job")}`),
    table(title, ["job", "tenant", "starts now", "would start", "difference"], rows),
    jobs.length > rows.length ? h("p", { class: "muted" }, `and ${jobs.length - rows.length} more`) : "");
}

function startText(starts, at) {
  if (!known(starts)) return "unknown";
  return starts - at < 1 ? "at once" : `in ${duration(starts - at)}`;
}
