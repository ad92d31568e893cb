// What a job's ranks hold and do, and what holds them back: GPUs with their scores, CPUs, memory, pace, verdicts.

import { bytes, clean, count, duration, h, percent, text } from "../dom.js";
import { table } from "../parts.js";
import { SLOW, bar, steps } from "../words.js";

const RANKS_MAX = 64;
export const NODES_MAX = 8; // whose GPUs are looked at
const WELL = "healthy";
const NOT_HELD_BACK = new Set([WELL, "over-provisioned", "gpu-bound", "unknown"]);

// One table of the ranks. `gpus`: GPUs of the nodes, from /v1/gpus, by "node/index".
export function ranksTable(runs, gpus) {
  const rows = runs.slice(0, RANKS_MAX).map((run) => [
    `${run.rank}${run.leaving ? ", leaves" : run.extra ? ", extra" : ""}`,
    clean(run.role),
    clean(run.node_id),
    gpusCell(run, gpus),
    used(run.cpus, run.use?.cpus_used, text),
    used(run.memory, run.use?.memory_used, bytes),
    paceText(run),
  ]);
  const left = runs.length - rows.length;
  return [
    table("Ranks and their GPUs", ["#rank", "role", "node", "GPUs", "CPUs", "memory", "pace"], rows),
    left > 0 ? h("p", { class: "muted" }, `and ${count(left, "more rank")}: weft describe shows all`) : "",
  ];
}

function gpusCell(run, gpus) {
  if (!run.gpus?.length) return "none";
  return run.gpus.map((index) => {
    const gpu = gpus[`${run.node_id}/${index}`];
    const share = run.share ? `${text(run.share.request / 1000)} of ` : "";
    const score = scoreOf(gpu);
    return h("div", { class: "gpu" }, `${share}GPU ${index}${gpu ? `, ${modelOf(gpu)}` : ""}`,
      Number.isFinite(gpu?.use?.utilisation) ? h("span", { class: "muted" }, ` · ${percent(gpu.use.utilisation)} used`) : "",
      score ? h("span", { class: score.believed >= SLOW ? "warn" : "muted", title: score.title }, ` · score ${score.believed.toFixed(2)}${score.believed >= SLOW ? ", slow" : ""}`) : "",
      gpu?.use?.problem ? h("span", { class: "bad" }, ` · ${clean(gpu.use.problem)}`) : "");
  });
}

function modelOf(gpu) {
  const model = clean(gpu.model);
  return gpu.emulated && !/^emulated/i.test(model) ? `emulated ${model}` : model;
}

// The score of the class that the GPU is slowest for.
function scoreOf(gpu) {
  const worst = (gpu?.scores ?? []).filter((one) => Number.isFinite(one.believed)).sort((a, b) => b.believed - a.believed)[0];
  if (!worst) return null;
  const samples = count(worst.samples ?? 0, "sample");
  const title = `class ${worst.job_class}: measured ${text(worst.score)}, ${percent(worst.confidence)} sure, ${samples}, from ${worst.source || "no source"}; 1.0 is typical, higher is slower`;
  return { believed: worst.believed, title: clean(title) };
}

function used(given, has, words) {
  return has === null || has === undefined ? words(given) : `${words(Math.round(has * 10) / 10)} of ${words(given)}`;
}

function paceText(run) {
  const parts = [];
  const done = steps(run.progress);
  if (done) parts.push(`step ${text(done.step)}`);
  if (run.pace) parts.push(`${text(run.pace.steps_rate)} steps/s`);
  if (run.disbelieved) parts.push(`${count(run.disbelieved, "value")} not believed`);
  if (run.asked) parts.push(`tuned: asked for ${text(run.asked.cpus)} CPUs, ${bytes(run.asked.memory)}`);
  return parts.join(", ");
}

// The verdicts: what holds the job or one of its ranks back.
export function verdictList(verdicts, now) {
  const whole = new Set(verdicts.filter((one) => one.rank < 0).map((one) => one.code));
  const told = new Set();
  const kept = verdicts.filter((one) => {
    const words = `${one.code} ${one.sentence}`;
    if (told.has(words) || (one.rank >= 0 && whole.has(one.code))) return false;
    return told.add(words);
  });
  if (!kept.length) return null;
  const items = kept.slice(0, 20).map((one) => h("li", {},
    NOT_HELD_BACK.has(one.code) ? "" : "held back: ",
    h("strong", { class: one.code === WELL ? "ok" : "warn" }, clean(one.code)), one.rank >= 0 ? `, rank ${one.rank}` : "", one.sentence ? `: ${clean(one.sentence)}` : "",
    one.since ? h("span", { class: "muted" }, ` for ${duration(now - one.since)}`) : ""));
  return h("ul", { class: "verdicts" }, items, kept.length > 20 ? h("li", {}, `and ${kept.length - 20} more`) : "");
}

// How far the job is: a bar with its step, its loss and whatever else it reports.
export function progressView(progress) {
  const done = steps(progress);
  const others = Object.entries(progress ?? {})
    .filter(([name]) => !["step", "steps", "total", "total_steps", "max_steps", "epoch", "epochs"].includes(name))
    .slice(0, 8).map(([name, value]) => `${clean(name)} ${text(value)}`);
  if (!done) return others.length ? h("p", {}, others.join(", ")) : null;
  const words = done.part === null ? `step ${text(done.step)}` : `${percent(done.part)}, ${text(done.step)} of ${text(done.total)}`;
  return h("p", { class: "progress" }, done.part === null ? h("strong", {}, words) : bar(done.part, words),
    others.length ? h("span", { class: "muted" }, ` ${others.join(", ")}`) : "");
}
