// The cluster page: the map of all GPUs; beside it what is held, what waits and why, what could be better, what runs.

import { clear, count, h } from "../dom.js";
import { legend } from "../map/legend.js";
import { clusterMap } from "../map/map.js";
import { paced } from "../pace.js";
import {
  jobsOf, stripWords, summaryTable, summaryWords, tally, tallyCodes, tellFindings, tellOut, tellRunning, tellTotals, tellWaiting,
} from "../map/panels.js";
import { pastState } from "../map/past.js";

const MANY = 1200; // GPUs from which the map takes the whole width, and the rest stands below it
const FIRST_WAITING = 5; // jobs of the queue that are shown
const ASKED_WAITING = 20; // and asked for: if these are all, the reasons are counted from them, the newest there are
const FOR_ROOM = new Set(["no-room", "held-back", "making-room", "fits"]); // reasons to want a free GPU

export function mount(root, { api, live, time, go, params }) {
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
        h("div", { class: "row map-tools" }, h("h1", {}, "Cluster"), search.element, strip, h("span", { class: "grow" }), map.zooms, legend()),
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

  // How many jobs wait, by the code of the reason. The first of the queue have the newest reasons; a row may be an array.
  function reasons() {
    const told = first.reduce((sum, row) => sum + jobsOf(row), 0);
    return told >= (state.states.queued || 0) ? tallyCodes(first) : state.waiting;
  }

  function scene() {
    const wanted = Object.entries(reasons()).some(([code, number]) => number && FOR_ROOM.has(code));
    return { nodes: state.nodes, jobs: state.jobs, wanted, nodeOf: live.node };
  }

  function take(next) {
    const isFirst = state === null;
    state = next;
    element.classList.toggle("wide", wide());
    map.show(scene());
    tell();
    list();
    if (isFirst && params.find) search.find(params.find);
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
      first = view.queued.map((job) => ({ ...job, ...(job.waiting_for || {}), id: job.id }));
      take(pastState(view));
    } catch (error) {
      if (signal.aborted) return;
      clear(panels.totals).append(h("h2", {}, "The past"), h("p", { class: "bad" }, `The gateway cannot show this moment: ${error.message}`));
    }
  }

  async function loadQueue() {
    const { signal } = loading;
    if (time.at !== null || document.hidden) return;
    try {
      const { rows } = await api(`/v1/queue?arrays=1&limit=${ASKED_WAITING}`, { signal });
      if (signal.aborted || !state) return;
      first = rows;
      map.update(scene(), []);
      tell();
    } catch {
      // The counts are shown all the same; the banner tells if the gateway is away.
    }
  }

  function tell() {
    if (!state) return;
    const seen = tally(state);
    const { wanted } = scene();
    tellTotals(panels.totals, state, seen, wanted);
    tellWaiting(panels.waiting, state, { reasons: reasons(), first: first.slice(0, FIRST_WAITING), now: time.at ?? live.now() });
    tellOut(panels.out, seen);
    tellFindings(panels.findings, state);
    clear(strip).append(...stripWords(state, seen, wanted));
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
      oninput: look,
      onkeydown: (event) => {
        if (event.key !== "Enter" || !found.length) return;
        place = (place + 1) % found.length;
        map.point(found[place]);
        said.textContent = `${place + 1} of ${found.length}`;
      },
    });
    function look() {
      const wanted = field.value.trim().toLowerCase();
      found = map.find(wanted ? (node, gpu) => matches(wanted, node, gpu, state.jobs) : null);
      place = -1;
      said.textContent = wanted ? `${count(found.length, "GPU")} found` : "";
    }
    return { element: h("span", { class: "row" }, field, said), find(words) { field.value = words; look(); } };
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
