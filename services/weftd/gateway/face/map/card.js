// A node and a GPU in words: on the card beside the cursor of the map, and for screen readers.

import { bytes, clean, duration, h, percent, text } from "../dom.js";
import { isIdle, isSlow } from "./paint.js";
import { SLOW, jobLink } from "../words.js";

export function nodeCard(node, gpu, scene, pinned) {
  return h("div", {},
    h("h2", {}, gpu ? `GPU ${gpu.index} of ${clean(node.id)}` : clean(node.id)),
    h("p", { class: node.state === "ready" ? "muted" : "warn" }, stateWords(node)),
    gpu && h("dl", { class: "facts" }, gpuFacts(node, gpu, scene).map(([name, fact]) => [h("dt", {}, name), h("dd", {}, fact)])),
    linksTable(node, gpu),
    h("p", { class: "muted" }, `Node: ${text(round(node.cpus_allocated))} of ${text(node.cpus)} CPUs and `,
      `${bytes(node.memory_allocated)} of ${bytes(node.memory)} memory are held; pool ${clean(node.pool)}`),
    !pinned && gpu?.holders.length ? h("p", { class: "muted" }, "click: mark all GPUs of the job; Enter: open the job") : null);
}

// The links between the GPUs of the node, with the row of the GPU under the cursor marked; null if they are not known.
function linksTable(node, gpu) {
  const links = node.topology?.links || [];
  if (!links.length || node.gpus.length !== node.topology.gpus.length) return null;
  const rows = links.map((row) => row.split(" "));
  const link = (one, other) => (one === other ? "" : rows[Math.min(one, other)][Math.abs(one - other) - 1]);
  const numa = node.topology.numa || [];
  return h("table", { class: "links" },
    h("caption", {}, "Links between its GPUs"),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "GPU"), node.topology.gpus.map((index) => h("th", { scope: "col" }, text(index))),
      numa.length ? h("th", { scope: "col" }, "NUMA") : null)),
    h("tbody", {}, node.topology.gpus.map((index, one) => h("tr", { class: gpu?.index === index ? "marked" : "" },
      h("th", { scope: "row" }, text(index)),
      node.topology.gpus.map((_, other) => h("td", { class: kindOf(link(one, other)) }, link(one, other))),
      numa.length ? h("td", {}, numa[one] < 0 ? "unknown" : text(numa[one])) : null))));
}

function kindOf(link) {
  if (link.startsWith("NV")) return "nvlink";
  return link === "SYS" ? "muted" : "";
}

function gpuFacts(node, gpu, scene) {
  const facts = [["model", `${modelWords(gpu)}, ${bytes(gpu.memory)}`]];
  if (gpu.holders.length) facts.push(["held by", gpu.holders.map((held) => h("div", {}, holderLink(held, scene)))]);
  else facts.push(["held by", freeWords(node, scene)]);
  if (gpu.used !== null && gpu.used !== undefined) facts.push(["used", useWords(gpu)]);
  if (isSlow(gpu)) facts.push(["speed", slowWords(gpu)]);
  if (gpu.out) facts.push(["health", `${clean(gpu.out)}; no new job starts there`]);
  return facts;
}

function holderLink(held, scene) {
  const share = held.share < 1 ? ` has ${text(held.share)} of it` : "";
  return [jobLink(held.job, nameOf(held, scene)), share];
}

function nameOf(held, scene) {
  return scene.jobs[held.job]?.name || held.name || "";
}

function freeWords(node, scene) {
  if (node.state !== "ready") return `nobody; the node is ${node.state} and takes no new job`;
  return scene.wanted ? "nobody, although jobs wait: see why in the queue" : "nobody";
}

export function modelWords(gpu) {
  const model = clean(gpu.model);
  return gpu.emulated && !/emulated/i.test(model) ? `emulated ${model}` : model;
}

function useWords(gpu) {
  const memory = gpu.memory_used === null || gpu.memory_used === undefined ? "" : `, ${bytes(gpu.memory_used)} of memory`;
  return `${percent(gpu.used)}${memory}${isIdle(gpu) ? " (held, but idle)" : ""}`;
}

function slowWords(gpu) {
  const parts = [];
  if (gpu.slow >= SLOW) parts.push(`work takes ${gpu.slow.toFixed(2)} times as long as is typical`);
  if (gpu.quarantined) parts.push("it turned slow all at once and is in quarantine");
  return parts.join("; ");
}

function stateWords(node) {
  const words = {
    ready: "ready",
    drained: "drained: its jobs go on, no new one starts there",
    silent: `silent${node.silent_seconds ? ` for ${duration(node.silent_seconds)}` : ""}: its shown state is that old`,
    quarantined: `${clean(node.out || "quarantined")}; its jobs go on, no new one starts there`,
    lost: "lost: its jobs start again elsewhere",
  };
  return `${words[node.state] || clean(node.state)}${node.runtime ? ` (${clean(node.runtime)})` : ""}`;
}

// One sentence, read aloud when the cursor moves by the keyboard.
export function describe(node, gpu, scene) {
  if (!gpu) return `${clean(node.id)}, ${stateWords(node)}, no GPU`;
  const holders = gpu.holders.map((held) => `${clean(nameOf(held, scene)) || "another tenant's job"}${held.share < 1 ? ` with ${text(held.share)} of it` : ""}`);
  const parts = [`GPU ${gpu.index} of ${clean(node.id)}`, holders.length ? `held by ${holders.join(" and ")}` : "free"];
  if (gpu.used !== null && gpu.used !== undefined) parts.push(isIdle(gpu) ? "idle" : `${percent(gpu.used)} used`);
  if (isSlow(gpu)) parts.push(slowWords(gpu));
  if (gpu.out) parts.push(`out of use, ${clean(gpu.out)}`);
  if (node.state !== "ready") parts.push(`the node is ${node.state}`);
  return parts.join(", ");
}

// The GPUs of the node under the cursor as a table, for screen readers.
export function nodeTable(node, scene) {
  const columns = ["GPU", "Model", "Held by", "Used", "Speed", "Health"];
  return h("table", {},
    h("caption", {}, `${clean(node.id)}: ${stateWords(node)}`),
    h("thead", {}, h("tr", {}, columns.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, node.gpus.map((gpu) => h("tr", {},
      h("th", { scope: "row" }, text(gpu.index)), h("td", {}, modelWords(gpu)),
      h("td", {}, gpu.holders.map((held) => clean(nameOf(held, scene)) || held.job).join(", ") || "free"),
      h("td", {}, gpu.used === null || gpu.used === undefined ? "unknown" : percent(gpu.used)),
      h("td", {}, isSlow(gpu) ? slowWords(gpu) : "typical"),
      h("td", {}, gpu.out ? clean(gpu.out) : "in use")))));
}

function round(number) {
  return Math.round(number * 10) / 10;
}
