// The one stream of this page: a snapshot of the cluster, kept up to date by deltas.

import { stream } from "./api.js";
import { session } from "./session.js";
import { giveColours, takeColours } from "./words.js";

const listeners = new Set();
let running = null; // ends the stream
let heardAt = 0; // by this browser's steady clock, in milliseconds
let places = new Map(); // node id -> its index in state.nodes

export const live = {
  state: null, // the LiveSnapshot as of its `at`; null until the first has come
  status: "connecting", // "connecting", "live", "lost" (tried again) or "refused" (not tried again)
  reason: "", // of "refused"

  // `listener(change)`: {whole: bool, nodes: [id], jobs: [id], counts: bool, findings: bool}, or null if only the
  // status changed. `whole`: take everything anew. Ids of nodes and jobs that are gone are among them.
  subscribe(listener) {
    listeners.add(listener);
    return () => listeners.delete(listener);
  },

  // The gateway's time now, in seconds since 1970: this machine's clock may differ. While the stream is lost, the time
  // of what is shown.
  now() {
    if (!live.state) return Date.now() / 1000;
    return live.state.at + (live.status === "live" ? (performance.now() - heardAt) / 1000 : 0);
  },

  node(id) {
    return live.state?.nodes[places.get(id)];
  },

  begin() {
    live.end();
    running = new AbortController();
    stream("/v1/live", hear, running.signal, tellStatus);
  },

  end() {
    running?.abort();
    running = null;
    Object.assign(live, { state: null, status: "connecting", reason: "" });
  },
};

function hear({ event, data }) {
  if (event === "snapshot") take(data);
  else if (event === "delta" && live.state) merge(data);
}

function take(snapshot) {
  if (live.state) takeColours(Object.keys(live.state.jobs).filter((id) => !(id in snapshot.jobs)));
  Object.assign(live, { state: snapshot, status: "live", reason: "" });
  heardAt = performance.now();
  order();
  giveColours(holders(snapshot.nodes));
  Object.assign(session, { tenant: snapshot.tenant, admin: snapshot.admin });
  tell({ whole: true, nodes: [], jobs: [], counts: true, findings: true });
}

function order() {
  places = new Map(live.state.nodes.map((node, place) => [node.id, place]));
}

function holders(nodes) {
  return new Set(nodes.flatMap((node) => node.gpus.flatMap((gpu) => gpu.holders.map((held) => held.job))));
}

function merge(delta) {
  const { state } = live;
  const [nodes, gone] = [delta.nodes || [], new Set(delta.nodes_gone || [])];
  const before = state.nodes.length;
  state.at = delta.at;
  state.cursor = delta.cursor ?? state.cursor;
  heardAt = performance.now();
  for (const node of nodes) {
    const place = places.get(node.id);
    if (place === undefined) places.set(node.id, state.nodes.push(node) - 1);
    else state.nodes[place] = node;
  }
  if (gone.size) {
    state.nodes = state.nodes.filter((node) => !gone.has(node.id));
    order();
  }
  Object.assign(state.jobs, delta.jobs);
  for (const id of delta.jobs_gone || []) delete state.jobs[id];
  takeColours(delta.jobs_gone || []);
  giveColours(holders(nodes));
  for (const name of ["totals", "states", "waiting", "findings"]) {
    if (delta[name] !== undefined && delta[name] !== null) state[name] = delta[name];
  }
  tell({
    whole: gone.size > 0 || state.nodes.length !== before,
    nodes: nodes.map((node) => node.id),
    jobs: [...Object.keys(delta.jobs || {}), ...(delta.jobs_gone || [])],
    counts: Boolean(delta.totals || delta.states || delta.waiting),
    findings: Boolean(delta.findings),
  });
}

// A stream that is open is not live yet: that begins with its snapshot.
function tellStatus(status, reason) {
  if (status === "live") return;
  Object.assign(live, { status, reason });
  tell(null);
}

function tell(change) {
  for (const listener of [...listeners]) listener(change);
}
