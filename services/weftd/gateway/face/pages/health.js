// Health: GPUs and nodes that are sick, slow or away, and, for administrators, the cluster's own processes and servers.

import { bytes, clean, count, duration, h, text } from "../dom.js";
import { inOrder } from "../map/layout.js";
import { isIdle, isSlow } from "../map/paint.js";
import { failureText, repeat, section, slot, table } from "../parts.js";
import { commandToCopy, emptyView, jobLink } from "../words.js";

const EVERY_MS = 10_000;
const ROWS_MAX = 200;
const STATE_WORDS = {
  lost: "lost: its jobs start again elsewhere",
  silent: "has not reported lately",
  quarantined: "takes no new job for its health",
  drained: "drained: takes no new job",
};

export function mount(root, { api, live, session, time }) {
  const nodes = slot("div");
  const gpus = slot("div");
  const idle = slot("div");
  const processes = slot("div");
  root.append(h("div", { class: "stack" }, h("h1", {}, "Health"), processes.element, nodes.element, gpus.element, idle.element));
  const work = repeat(refresh, EVERY_MS);
  const forgets = [live.subscribe((change) => {
    if (change) show();
    if (change?.whole) work.soon();
  }), time.subscribe(show)];
  show();

  async function refresh(signal) {
    if (!session.admin) return;
    try {
      const status = await api("/v1/status", { signal });
      processes.show(status, statusParts);
    } catch (error) {
      if (!signal.aborted && error.status !== 403) processes.show(failureText(error), (words) => section("The cluster itself", h("p", { class: "bad" }, words)));
    }
  }

  function show() {
    const { state } = live;
    if (!state) return;
    const all = inOrder(state.nodes);
    const away = all.filter((node) => node.state !== "ready");
    const sick = all.flatMap((node) => node.gpus.filter((gpu) => gpu.out || gpu.quarantined || isSlow(gpu)).map((gpu) => ({ node: node.id, gpu })));
    const unused = all.flatMap((node) => node.gpus.filter(isIdle).map((gpu) => ({ node: node.id, gpu })));
    nodes.show(away.map((node) => [node.id, node.state, node.out, node.silent_seconds]), () => section("Nodes", away.length
      ? table("Nodes that take no new job", ["Node", "State", "Why"], away.slice(0, ROWS_MAX).map((node) => [
        nodeLink(node.id), h("strong", { class: node.state === "lost" ? "bad" : "warn" }, clean(node.state)),
        `${clean(node.out) || STATE_WORDS[node.state] || ""}${node.silent_seconds ? `, for ${duration(node.silent_seconds)}` : ""}`,
      ]))
      : emptyView(`All ${count(all.length, "node")} are well`, "A node that is lost, silent, quarantined or drained is listed here.", "weft nodes")));
    gpus.show(sick.map(({ node, gpu }) => [node, gpu.index, gpu.out, gpu.slow, gpu.quarantined]), () => section("GPUs", sick.length
      ? table("GPUs that are sick or slow", ["GPU", "Model", "Problem", ""], sick.slice(0, ROWS_MAX).map(({ node, gpu }) => [
        nodeLink(node, gpu.index), clean(gpu.model), wrong(gpu), session.admin && gpu.out ? commandToCopy(`weft gpu return ${node} ${gpu.index}`) : "",
      ]))
      : emptyView("No GPU is sick or slow", "A GPU that shows signs of sickness, or is slower than others of its model, is listed here.", "weft health")));
    idle.show(unused.map(({ node, gpu }) => [node, gpu.index, gpu.holders]), () => (unused.length ? section("Held, but idle",
      table("GPUs that are held and idle", ["GPU", "Held by", "Tenant"], unused.slice(0, ROWS_MAX).map(({ node, gpu }) => [
        nodeLink(node, gpu.index), gpu.holders.map((held) => h("div", {}, jobLink(held.job, state.jobs[held.job]?.name ?? ""))),
        clean(state.jobs[gpu.holders[0]?.job]?.tenant ?? ""),
      ]))) : []));
  }

  function statusParts(status) {
    const { database } = status;
    return section("The cluster itself",
      status.findings.length
        ? h("ul", { class: "findings" }, status.findings.map((one) => h("li", {},
          h("strong", { class: one.grave === "problem" ? "bad" : "warn" }, `${clean(one.grave)}: `), clean(one.sentence), h("div", { class: "muted" }, clean(one.act)))))
        : h("p", { class: "ok" }, "No problem is known."),
      h("p", { class: "muted" }, `Version ${clean(status.version)}, ${count(status.nodes_ready, "node")} of ${text(status.nodes)} ready, NATS ${status.nats ? "connected" : "away"}, `,
        database ? `Postgres ${clean(database.version)} with ${bytes(database.bytes)} and ${text(database.connections)} of ${text(database.connections_max)} connections.` : "Postgres away."),
      table("Processes", ["Service", "Instance", "Version", "Up", "State"], status.services.map((one) => [
        clean(one.service), clean(one.instance), clean(one.version), duration(one.up_seconds),
        one.stuck?.length ? h("strong", { class: "bad" }, `stuck: ${clean(one.stuck.join(", "))}`) : one.ready ? h("span", { class: "ok" }, "ready") : h("strong", { class: "warn" }, `silent for ${duration(one.silent_seconds)}`),
      ])));
  }

  return {
    unmount() {
      work.stop();
      forgets.forEach((forget) => forget());
    },
  };
}

function nodeLink(id, gpu = null) {
  const name = gpu === null ? id : `${id}/${gpu}`;
  return h("a", { href: `#/cluster?find=${encodeURIComponent(name)}` }, clean(name));
}

function wrong(gpu) {
  const parts = [];
  if (gpu.out) parts.push(clean(gpu.out));
  if (isSlow(gpu) && gpu.slow) parts.push(`work takes ${gpu.slow.toFixed(2)} times as long as is typical`);
  if (gpu.quarantined) parts.push("became slow suddenly: in quarantine");
  return parts.join("; ");
}
