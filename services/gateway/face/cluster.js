// The cluster page: the map of all GPUs; beside it what is held, what waits and why, what could be better, what runs.

import { bytes, clean, clear, count, duration, gpus as gpuWords, h, percent, text } from "./dom.js";
import { inOrder } from "./layout.js";
import { legend } from "./legend.js";
import { clusterMap } from "./map.js";
import { paced } from "./pace.js";
import { isIdle, isSlow } from "./paint.js";
import { pastState } from "./past.js";
import { HOLDING, bar, codeWords, estimateWords, jobLink, stateChip, steps } from "./words.js";

const MANY = 1200; // GPUs from which the map takes the whole width, and the rest stands below it
const RUNNING_MAX = 100; // rows of the list of jobs; the queue page has them all
const FIRST_WAITING = 5;
const NAMED_NODES = 12;
const FOR_ROOM = new Set(["no-room", "held-back", "making-room", "fits"]); // reasons to want a free GPU

export function mount(root, { api, live, time, go }) {
  const panels = Object.fromEntries(["totals", "waiting", "out", "findings", "running"].map((name) => [
    name, h("section", { class: `panel ${name}` }, h("p", { class: "muted" }, "…")),
  ]));
  const map = clusterMap({
    open: (id) => go(`#/job/${encodeURIComponent(id)}`),
    height: () => Math.max(340, innerHeight - element.getBoundingClientRect().top - scrollY - (wide() ? 130 : 110)),
  });
  const search = searchBox();
  const strip = h("p", { class: "strip" }); // of a map so large that the panels are below it
  const summary = h("div", { class: "hidden-text" });
  const element = h("div", { class: "cluster" },
    h("div", { class: "left stack" },
      h("section", { class: "panel map-panel", ariaLabel: "Map" },
        h("div", { class: "row map-tools" }, h("h1", {}, "Cluster"), search.element, strip, h("span", { class: "grow" }), legend()),
        map.element, summary),
      panels.running),
    h("div", { class: "beside stack" }, panels.totals, panels.waiting, panels.out, panels.findings));
  root.append(element);

  let state = null; // a LiveSnapshot: of now, or of a moment of the past
  let first = []; // of the queue
  let loading = new AbortController();
  const retell = paced(tell, 1000);
  const relist = paced(list, 2000);
  const askQueue = paced(loadQueue, 3000);
  const tick = setInterval(relist, 10_000); // durations grow

  function wide() {
    return (state?.totals.gpus || 0) > MANY;
  }

  function scene() {
    const wanted = Object.entries(state.waiting).some(([code, number]) => number && FOR_ROOM.has(code));
    return { nodes: state.nodes, jobs: state.jobs, wanted, nodeOf: live.node };
  }

  function take(next) {
    state = next;
    element.classList.toggle("wide", wide());
    map.show(scene());
    tell();
    list();
  }

  function heard(change) {
    if (!change || time.at !== null || !live.state) return;
    if (change.whole || state !== live.state) take(live.state);
    else map.update(scene(), change.nodes);
    retell();
    if (change.jobs.length) relist();
    if (change.counts || change.whole) askQueue();
  }

  async function moment() {
    loading.abort();
    loading = new AbortController();
    first = [];
    if (time.at === null) {
      if (live.state) take(live.state);
      askQueue();
      return;
    }
    const { signal } = loading;
    try {
      const view = await time.load(api(time.path("/v1/cluster"), { signal }));
      if (signal.aborted) return;
      first = view.queued.slice(0, FIRST_WAITING).map((job) => ({ ...job, ...(job.waiting_for || {}), id: job.id }));
      take(pastState(view));
    } catch (error) {
      if (signal.aborted) return;
      clear(panels.totals).append(h("h2", {}, "How it was"), h("p", { class: "bad" }, `The gateway cannot show this moment: ${error.message}`));
    }
  }

  async function loadQueue() {
    const { signal } = loading;
    if (time.at !== null || document.hidden) return;
    try {
      first = (await api(`/v1/queue?limit=${FIRST_WAITING}`, { signal })).rows;
      if (!signal.aborted) tellWaiting(panels.waiting, state, first);
    } catch {
      // The counts are shown all the same; the banner tells if the gateway is away.
    }
  }

  function tell() {
    if (!state) return;
    const seen = tally(state);
    tellTotals(panels.totals, state, seen, scene().wanted);
    tellWaiting(panels.waiting, state, first);
    tellOut(panels.out, state, seen);
    tellFindings(panels.findings, state);
    clear(strip).append(...stripWords(state, seen, scene().wanted));
    map.label(`Map of the cluster: ${summaryWords(state, seen)}`);
    clear(summary).append(summaryTable(state));
  }

  function list() {
    if (state) tellRunning(panels.running, state, time.at ?? live.now());
  }

  // The search: a GPU (node/3, node:3), a node, or a job by its name or id. Enter goes on to the next that was found.
  function searchBox() {
    const said = h("span", { class: "muted", role: "status" });
    let [found, place] = [[], -1];
    const field = h("input", {
      type: "search", placeholder: "find a GPU, node or job", ariaLabel: "Find a GPU, node or job", size: "22",
      oninput: () => {
        const wanted = field.value.trim().toLowerCase();
        found = map.find(wanted ? (node, gpu) => matches(wanted, node, gpu, state.jobs) : null);
        place = -1;
        said.textContent = wanted ? `${count(found.length, "GPU")} found` : "";
      },
      onkeydown: (event) => {
        if (event.key !== "Enter" || !found.length) return;
        place = (place + 1) % found.length;
        map.point(found[place]);
        said.textContent = `${place + 1} of ${found.length}`;
      },
    });
    return { element: h("span", { class: "row" }, field, said) };
  }

  const forgets = [live.subscribe(heard), time.subscribe(moment)];
  moment();
  return {
    unmount() {
      loading.abort();
      clearInterval(tick);
      retell.end();
      relist.end();
      askQueue.end();
      map.end();
      forgets.forEach((forget) => forget());
    },
  };
}

function matches(wanted, node, gpu, jobs) {
  const place = `${node.id}/${gpu.index}`.toLowerCase();
  if (place === wanted.replace(":", "/") || (!/[/:]\d+$/.test(wanted) && node.id.toLowerCase().includes(wanted))) return true;
  return gpu.holders.some((held) => held.job.toLowerCase().includes(wanted) ||
    (jobs[held.job]?.name || held.name || "").toLowerCase().includes(wanted));
}

function tally(state) {
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

function summaryWords(state, seen) {
  const { totals } = state;
  return `${count(totals.nodes, "node")}, ${totals.gpus_held} of ${gpuWords(totals.gpus, totals.gpus_emulated)} held, ` +
    `${seen.idle} of those idle, ${seen.free} free, ${seen.slow} slow, ${count(seen.out.length, "node")} out of service, ${count(seen.waiting, "job")} waiting`;
}

function stripWords(state, seen, wanted) {
  return [
    h("strong", {}, `${state.totals.gpus_held} of ${gpuWords(state.totals.gpus, state.totals.gpus_emulated)} held`),
    h("span", { class: "warn" }, `${seen.idle} held, but idle`),
    h("span", { class: "accent" }, `${seen.free} free${wanted ? `, although ${count(seen.waiting, "job")} wait` : ""}`),
    h("span", { class: "bad" }, `${seen.slow} slow`),
    h("span", {}, `${count(seen.out.length, "node")} out of service`),
  ];
}

function tellTotals(panel, state, seen, wanted) {
  const { totals } = state;
  const cpus = `${text(Math.round(totals.cpus_allocated))} of ${text(totals.cpus)} CPUs held`;
  const memory = `${bytes(totals.memory_allocated)} of ${bytes(totals.memory)} memory held`;
  const part = (held, all) => (all ? held / all : 0);
  const free = wanted && seen.free
    ? h("li", { class: "accent" }, h("strong", {}, `${seen.free} free`), `, although ${count(seen.waiting, "job")} wait${seen.waiting === 1 ? "s" : ""}`)
    : h("li", {}, `${seen.free} free`);
  clear(panel).append(
    h("p", { class: "big" }, h("strong", {}, String(totals.gpus_held)), ` of ${gpuWords(totals.gpus, totals.gpus_emulated)} held`),
    h("ul", { class: "plain" },
      free,
      seen.idle ? h("li", { class: "warn" }, h("strong", {}, `${seen.idle} held, but idle`)) : null,
      seen.slow ? h("li", { class: "bad" }, h("strong", {}, `${seen.slow} slow`)) : null,
      h("li", {}, `${count(totals.nodes, "node")}, ${totals.nodes_ready} ready`)),
    h("p", {}, bar(part(totals.cpus_allocated, totals.cpus), cpus)),
    h("p", {}, bar(part(totals.memory_allocated, totals.memory), memory)),
    h("p", { class: "row" }, [...HOLDING, "queued"].filter((name) => state.states[name]).map((name) =>
      h("a", { href: `#/queue?state=${name}`, class: "state-link" }, h("strong", {}, String(state.states[name])), " ", stateChip(name)))));
}

function tellWaiting(panel, state, first) {
  if (!state) return;
  const number = state.states.queued || 0;
  const codes = Object.entries(state.waiting).sort(([, a], [, b]) => b - a);
  clear(panel).append(h("h2", {}, number ? h("a", { href: "#/queue" }, `${count(number, "job")} wait${number === 1 ? "s" : ""}`) : "Nothing waits"));
  if (!number) {
    panel.append(h("p", { class: "muted" }, "Every job that was submitted has its GPUs."));
    return;
  }
  panel.append(
    h("ul", { class: "plain" }, codes.map(([code, jobs]) => h("li", {}, h("strong", {}, String(jobs)), ` ${codeWords(code)}`))),
    h("ol", { class: "plain first" }, first.map((row) => h("li", {},
      h("div", { class: "row" }, jobLink(row.id, row.name), h("span", { class: "muted" }, `wants ${count(row.gpus, "GPU")}`),
        row.eta ? h("span", { title: clean(row.eta.sentence) }, startWords(row.eta)) : null),
      h("div", { class: "why" }, clean(row.sentence || codeWords(row.code || "submitted")))))));
}

function startWords(eta) {
  const words = estimateWords(eta);
  return words.startsWith("nobody") ? "nobody can tell when it starts" : `starts ${words}`;
}

function tellOut(panel, state, seen) {
  panel.hidden = !seen.out.length;
  if (!seen.out.length) return;
  const words = { drained: "drained, take no new job", silent: "silent, have not reported lately", lost: "lost" };
  clear(panel).append(h("h2", {}, `${count(seen.out.length, "node")} out of service`),
    h("ul", { class: "plain" }, Object.keys(words).map((name) => {
      const nodes = inOrder(seen.out.filter((node) => node.state === name)).map((node) => clean(node.id));
      if (!nodes.length) return null;
      const more = nodes.length - NAMED_NODES;
      return h("li", {}, h("strong", { class: name === "lost" ? "bad" : "warn" }, `${nodes.length} ${words[name]}: `),
        nodes.slice(0, NAMED_NODES).join(", "), more > 0 ? ` and ${more} more` : "");
    })));
}

function tellFindings(panel, state) {
  const findings = state.findings || [];
  panel.hidden = !findings.length;
  clear(panel).append(h("h2", {}, "To improve"),
    h("ul", {}, findings.slice(0, 8).map((finding) => h("li", {}, clean(finding.sentence), " ",
      finding.job_id ? jobLink(finding.job_id, state.jobs[finding.job_id]?.name) : null))),
    findings.length > 8 ? h("p", { class: "muted" }, `and ${findings.length - 8} more`) : "");
}

function tellRunning(panel, state, now) {
  const rank = (job) => HOLDING.indexOf(job.state) + 10 * !job.mine;
  const jobs = Object.entries(state.jobs)
    .sort(([a, one], [b, other]) => rank(one) - rank(other) || one.since - other.since || (a < b ? -1 : 1));
  const focused = panel.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  const rows = jobs.slice(0, RUNNING_MAX).map(([id, job]) => h("tr", {},
    h("td", {}, jobLink(id, job.name)),
    h("td", {}, clean(job.tenant)),
    h("td", { class: "number" }, text(job.gpus)),
    h("td", {}, stateChip(job.state), " ", h("span", { class: "muted" }, duration(now - job.since))),
    h("td", {}, progress(job))));
  const holders = new Set(state.nodes.flatMap((node) => node.gpus.flatMap((gpu) => gpu.holders.map((held) => held.job))));
  const others = [...holders].filter((id) => !state.jobs[id]).length;
  clear(panel).append(h("h2", {}, jobs.length ? `${count(jobs.length, "job")} hold${jobs.length === 1 ? "s" : ""} GPUs or CPUs` : "Nothing runs"));
  if (rows.length) {
    panel.append(h("div", { class: "scroll", tabindex: "0", role: "region", ariaLabel: "Jobs that hold something" }, h("table", { class: "table" },
      h("thead", {}, h("tr", {}, ["Job", "Tenant", "GPUs", "State", "Progress"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, rows))));
  } else panel.append(h("p", { class: "muted" }, h("code", {}, "weft run -- command"), " starts a job."));
  if (jobs.length > rows.length) panel.append(h("p", {}, h("a", { href: "#/queue?state=running" }, `and ${jobs.length - rows.length} more`)));
  if (others) panel.append(h("p", { class: "muted" }, `and ${count(others, "job")} of other tenants`));
  if (focused) panel.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus(); // the list was made anew under it
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

function summaryTable(state) {
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
