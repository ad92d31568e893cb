// The panels beside the map, in words: what is held, what waits and why, what is out of service, what runs.

import { bytes, clean, count, duration, gpus as gpuWords, h, percent, text } from "../dom.js";
import { inOrder } from "./layout.js";
import { isIdle, isSlow } from "./paint.js";
import { table } from "../parts.js";
import { session } from "../session.js";
import { HOLDING, bar, codeWords, rangeWords, jobLink, stateChip, steps } from "../words.js";

const RUNNING_MAX = 100; // rows of the list of jobs; the queue page has them all
const FINDINGS_MAX = 8;
const NAMED_NODES = 12;

// New content for a panel: a link that had the focus, and how far a list was scrolled, stay.
function renew(panel, ...children) {
  const focused = panel.contains(document.activeElement) ? document.activeElement : null;
  const [link, region] = [focused?.getAttribute("href"), focused?.getAttribute("role") === "region"];
  const scrolled = panel.querySelector(".scroll")?.scrollTop;
  panel.replaceChildren(...children.flat().filter(Boolean));
  const list = panel.querySelector(".scroll");
  if (list && scrolled) list.scrollTop = scrolled;
  if (link) panel.querySelector(`a[href="${CSS.escape(link)}"]`)?.focus({ preventScroll: true });
  else if (region) list?.focus({ preventScroll: true });
}

export function tally(state) {
  const seen = { idle: 0, slow: 0, free: 0, emulated: 0, out: [] };
  for (const node of state.nodes) {
    if (node.state !== "ready") seen.out.push(node);
    for (const gpu of node.gpus) {
      seen.idle += isIdle(gpu);
      seen.slow += isSlow(gpu);
      seen.free += node.state === "ready" && !gpu.holders.length;
    }
  }
  seen.waiting = state.states.queued || 0;
  return seen;
}

export function summaryWords(state, seen) {
  const { totals } = state;
  return `${count(totals.nodes, "node")}, ${totals.gpus_held} of ${gpuWords(totals.gpus, totals.gpus_emulated)} held, ` +
    `${seen.idle} of those idle, ${seen.free} free, ${seen.slow} slow, ${count(seen.out.length, "node")} out of service, ${count(seen.waiting, "job")} waiting`;
}

export function stripWords(state, seen, wanted) {
  return [
    h("strong", {}, `${state.totals.gpus_held} of ${gpuWords(state.totals.gpus, state.totals.gpus_emulated)} held`),
    h("span", { class: "warn" }, `${seen.idle} held, but idle`),
    h("span", { class: "accent" }, `${seen.free} free${wanted ? `, although ${count(seen.waiting, "job")} wait` : ""}`),
    h("span", { class: "bad" }, `${seen.slow} slow`),
    h("span", {}, `${count(seen.out.length, "node")} out of service`),
  ];
}

export function tellTotals(panel, state, seen, wanted) {
  const { totals } = state;
  const cpus = `${text(Math.round(totals.cpus_allocated))} of ${text(totals.cpus)} CPUs held`;
  const memory = `${bytes(totals.memory_allocated)} of ${bytes(totals.memory)} memory held`;
  const part = (held, all) => (all ? held / all : 0);
  const free = wanted && seen.free
    ? h("li", { class: "accent" }, h("strong", {}, `${seen.free} free`), `, although ${count(seen.waiting, "job")} wait${seen.waiting === 1 ? "s" : ""}`)
    : h("li", {}, `${seen.free} free`);
  renew(panel,
    h("h2", { class: "hidden-text" }, "In all"),
    h("p", { class: "big" }, h("strong", {}, text(totals.gpus_held)), ` of ${gpuWords(totals.gpus, totals.gpus_emulated)} held`),
    h("ul", { class: "plain" },
      free,
      seen.idle ? h("li", { class: "warn" }, h("strong", {}, `${seen.idle} held, but idle`)) : null,
      seen.slow ? h("li", { class: "bad" }, h("strong", {}, `${seen.slow} slow`)) : null,
      h("li", {}, `${count(totals.nodes, "node")}, ${totals.nodes_ready} ready`)),
    h("p", {}, bar(part(totals.cpus_allocated, totals.cpus), cpus)),
    h("p", {}, bar(part(totals.memory_allocated, totals.memory), memory)),
    state.past ? h("p", { class: "muted" }, "Use and speed of GPUs are shown only for now.") : "",
    h("p", { class: "row" }, [...HOLDING, "queued"].filter((name) => state.states[name]).map((name) =>
      h("a", { href: `#/queue?state=${name}`, class: "state-link" }, h("strong", {}, text(state.states[name])), " ", stateChip(name)))));
}

export function tellWaiting(panel, state, { reasons, first, now }) {
  const number = state.states.queued || 0;
  const told = Object.values(reasons).reduce((sum, many) => sum + many, 0);
  const all = number > told ? { ...reasons, submitted: (reasons.submitted || 0) + number - told } : reasons;
  const codes = Object.entries(all).sort(([, a], [, b]) => b - a);
  if (!number) {
    renew(panel, h("h2", {}, "Nothing waits"),
      h("p", { class: "muted" }, session.admin ? "Every job that was submitted has its GPUs." : "None of your jobs waits."));
    return;
  }
  renew(panel,
    h("h2", {}, h("a", { href: "#/queue" }, `${count(number, "job")} wait${number === 1 ? "s" : ""}`)),
    h("ul", { class: "plain" }, codes.map(([code, jobs]) => h("li", {}, h("strong", {}, text(jobs)), ` ${codeWords(code)}`))),
    h("ol", { class: "plain first" }, first.map((row) => h("li", {},
      h("div", { class: "row" }, row.array ? arrayLink(row) : jobLink(row.id, row.name), h("span", { class: "muted" }, `waits ${duration(now - row.since)}`),
        row.eta ? h("span", { title: clean(row.eta.sentence) }, startWords(row.eta, now)) : null),
      h("div", { class: "why" }, clean(row.sentence || codeWords(row.code || "submitted")))))));
}

export function tallyCodes(rows) {
  const counts = {};
  for (const row of rows) counts[row.code || "submitted"] = (counts[row.code || "submitted"] || 0) + jobsOf(row);
  return counts;
}

// How many jobs wait in a row of the queue: the elements of an array share one.
export function jobsOf(row) {
  return row.array ? row.elements?.queued ?? 1 : 1;
}

function arrayLink(row) {
  const prefix = row.id.slice(0, row.id.lastIndexOf("-") + 1);
  return h("a", { class: "job", href: `#/queue?text=${encodeURIComponent(prefix)}` }, h("bdi", {}, clean(row.name)),
    h("span", { class: "muted" }, `array, ${count(jobsOf(row), "job")}`));
}

function startWords(eta, now) {
  const words = rangeWords(eta, now);
  return words.startsWith("nobody") ? "nobody can tell when it starts" : `starts ${words}`;
}

export function tellOut(panel, seen) {
  panel.hidden = !seen.out.length;
  if (!seen.out.length) return;
  const words = { drained: "no new job starts there", quarantined: "sick, see weft health", silent: "not heard of lately", lost: "their jobs start again elsewhere" };
  renew(panel, h("h2", {}, `${count(seen.out.length, "node")} out of service`),
    h("ul", { class: "plain" }, Object.keys(words).map((name) => {
      const nodes = inOrder(seen.out.filter((node) => node.state === name)).map((node) => clean(node.id));
      if (!nodes.length) return null;
      const more = nodes.length - NAMED_NODES;
      return h("li", {}, h("strong", { class: name === "lost" ? "bad" : "warn" }, `${nodes.length} ${name}`), ` (${words[name]}): `,
        nodes.slice(0, NAMED_NODES).join(", "), more > 0 ? ` and ${more} more` : "");
    })));
}

export function tellFindings(panel, state) {
  const findings = state.findings || [];
  panel.hidden = !findings.length;
  renew(panel, h("h2", {}, "To improve"),
    h("ul", {}, findings.slice(0, FINDINGS_MAX).map((finding) => h("li", {}, clean(finding.sentence), " ",
      finding.job_id ? jobLink(finding.job_id, state.jobs[finding.job_id]?.name) : null))),
    findings.length > FINDINGS_MAX && h("p", { class: "muted" }, `and ${findings.length - FINDINGS_MAX} more`));
}

export function tellRunning(panel, state, now) {
  const rank = (job) => HOLDING.indexOf(job.state) + 10 * !job.mine;
  const jobs = Object.entries(state.jobs)
    .sort(([a, one], [b, other]) => rank(one) - rank(other) || one.since - other.since || (a < b ? -1 : 1));
  const rows = jobs.slice(0, RUNNING_MAX).map(([id, job]) => [
    jobLink(id, job.name), clean(job.tenant), text(job.gpus),
    [stateChip(job.state), " ", h("span", { class: "muted" }, duration(now - job.since))], progress(job),
  ]);
  const holders = new Set(state.nodes.flatMap((node) => node.gpus.flatMap((gpu) => gpu.holders.map((held) => held.job))));
  const others = [...holders].filter((id) => !state.jobs[id]).length;
  renew(panel,
    h("h2", {}, jobs.length ? `${count(jobs.length, "job")} hold${jobs.length === 1 ? "s" : ""} GPUs or CPUs` : "Nothing runs"),
    rows.length
      ? table("Jobs that hold GPUs or CPUs", ["Job", "Tenant", "#GPUs", "State", "Progress"], rows)
      : h("p", { class: "muted" }, h("code", {}, "weft run -- command"), " starts a job."),
    jobs.length > rows.length && h("p", {}, h("a", { href: "#/queue?state=running" }, `and ${jobs.length - rows.length} more`)),
    others > 0 && h("p", { class: "muted" }, `and ${count(others, "job")} of other tenants`));
}

function progress(job) {
  if (job.service) {
    const { ready, wanted, rate } = job.service;
    return `${ready} of ${wanted} ready${rate === null || rate === undefined ? "" : `, ${text(rate)} requests/s`}`;
  }
  const told = steps(job.progress);
  if (!told) return "";
  if (told.part === null) return `step ${text(told.step)}`;
  return bar(told.part, `${percent(told.part)}, ${text(told.step)} of ${text(told.total)}`);
}

export function summaryTable(state) {
  const pools = [...new Set(state.nodes.map((node) => node.pool))].sort();
  const columns = ["Pool", "Nodes", "Ready", "GPUs", "Held", "Idle", "Slow"];
  return h("table", {}, h("caption", {}, "The cluster by pool"),
    h("thead", {}, h("tr", {}, columns.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, pools.map((pool) => {
      const nodes = state.nodes.filter((node) => node.pool === pool);
      const all = nodes.flatMap((node) => node.gpus);
      const numbers = [nodes.length, nodes.filter((node) => node.state === "ready").length, all.length,
        all.filter((gpu) => gpu.holders.length).length, all.filter(isIdle).length, all.filter(isSlow).length];
      return h("tr", {}, h("th", { scope: "row" }, clean(pool)), numbers.map((number) => h("td", {}, String(number))));
    })));
}
