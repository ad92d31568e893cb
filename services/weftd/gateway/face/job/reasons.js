// Why a job waits, or is where it is: the sentence, the numbers, when it starts or ends, and what would help.

import { clean, clock, count, duration, h, text } from "../dom.js";
import { table } from "../parts.js";
import { some } from "./story.js";
import { jobLink, rangeWords, stateChip } from "../words.js";

const NAMES = {
  fewer_gpus: "fewer GPUs",
  another_model: "another model",
  spanning: "spanning nodes",
  less_memory: "less memory",
  priority: "priority",
  resume_node: "a drained node resumed",
};
const BASES = {
  limits: "by the time limits of the jobs in the way",
  learnt: "by how long jobs like these lasted",
  progress: "by the steps that they report and their pace",
  room: "there is room already",
};
const UNKNOWN = "nobody can tell";
const AWAY = { drained: "is drained", lost: "is lost" };

// How often earlier estimates of this kind were right.
export function recordWords(record) {
  if (!record?.estimates) return "";
  return `${record.inside} of ${record.estimates} earlier estimates of this kind came true`;
}

export function estimateView(estimate, now) {
  if (!estimate) return null;
  const what = estimate.of === "end" ? "Ends" : "Starts";
  const range = rangeWords(estimate, now);
  const small = [BASES[estimate.basis], recordWords(estimate.record)].filter(Boolean).join("; ");
  // Where there is no range, the sentence says why.
  const words = range === UNKNOWN && estimate.sentence ? sentenceOf(estimate.sentence) : `${what} ${range}`;
  return h("p", { class: "estimate" }, h("strong", {}, words), small ? h("span", { class: "muted" }, ` — ${small}`) : "");
}

function sentenceOf(text_) {
  const words = clean(text_);
  return `${words.slice(0, 1).toUpperCase()}${words.slice(1)}.`.replace(/\.\.$/, ".");
}

// The explanation of now: what `weft explain` prints.
export function reasonsView(told, now) {
  const parts = [h("p", { class: "why" }, told.sentence ? `${sentenceOf(told.sentence)} ` : "", h("span", { class: "code" }, told.code))];
  if (told.fault) parts.push(h("p", { class: "warns" }, `Fault: ${clean(told.fault)}.`));
  const stopped = told.stopped_for;
  if (stopped) parts.push(h("p", { class: "warns" }, `It ran before, and was sent back to the queue: ${causeText(stopped)}.`));
  for (const each of told.closed ?? []) {
    const why = each.drained ? `is drained${each.by ? ` by ${clean(each.by)}` : ""}${each.since ? ` since ${clock(each.since)}` : ""}` : "takes no work";
    parts.push(h("p", { class: "warns" }, `${clean(each.node_id)} has ${count(each.gpus_free, "free GPU")}, and ${why}.`));
  }
  for (const each of told.silent ?? []) {
    parts.push(h("p", { class: "warns" }, `${clean(each.node_id)} has not reported for ${duration(each.seconds)}: its shown state is that old.`));
  }
  parts.push(estimateView(told.eta, now));
  if (told.state === "queued") parts.push(h("p", {}, queueText(told, now)));
  if (Object.keys(told.size ?? {}).length) parts.push(...sizeParts(told));
  for (const lent of told.lent ?? []) {
    parts.push(h("p", {}, `Lent ${count(lent.gpus, "GPU")} to `, jobLink(lent.service, lent.name ?? ""),
      ` for ${duration(now - (lent.since ?? now))}${lent.ranks ? "" : ": the whole job gave way"}; the job takes them back once some are free again.`));
  }
  if (told.sooner?.length) parts.push(soonerView(told.sooner, now));
  if (told.holders?.length) parts.push(holdersView(told.holders, now));
  const numbers = Object.entries(told.numbers ?? {});
  if (numbers.length || told.policy) {
    parts.push(h("details", {}, h("summary", {}, "The numbers"),
      h("dl", { class: "facts" }, ...numbers.flatMap(([name, value]) => [h("dt", {}, clean(name).replaceAll("_", " ")), h("dd", {}, text(value))]),
        ...(told.policy ? [h("dt", {}, "policy"), h("dd", {}, policyText(told.policy))] : []))));
  }
  return parts.filter(Boolean);
}

// What is known of a moment of the past: the reason that was stored then.
export function pastReasonsView(job) {
  const cause = job.state === "queued" ? job.waiting_for : job.stopping_for ?? job.ended_for;
  const why = job.placement?.why;
  const parts = [];
  if (cause) parts.push(h("p", { class: "why" }, causeText(cause)));
  if (why && job.state !== "queued") parts.push(h("p", {}, `Why there: ${clean(why)}`));
  if (!parts.length) parts.push(h("p", { class: "muted" }, "No reason was stored of that moment."));
  parts.push(h("p", { class: "muted" }, "Estimates, holders and suggestions are shown only for now."));
  return parts;
}

export function causeText(cause) {
  return clean(`${cause.code}${cause.by && cause.code === "preempted" ? ` by ${cause.by}` : ""}${cause.sentence ? `: ${cause.sentence}` : ""}`);
}

function queueText(told, now) {
  const ahead = told.ahead ? `${count(told.ahead, "job")} ahead of it` : "First in the queue";
  if (told.eta || told.estimate_at === null || told.estimate_at === undefined) return `${ahead}.`;
  return `${ahead}; starts in ${duration(told.estimate_at - now)} at the latest, according to time limits.`;
}

function policyText(policy) {
  const [order, placement, backfill] = policy.split("+");
  return backfill ? `order ${order}, placement ${placement}, backfill ${backfill}` : clean(policy);
}

function sizeParts(told) {
  const how = { live: "grows and shrinks live", restart: "takes another size by a restart", never: "keeps its size while it runs" };
  const roles = Object.entries(told.size).map(([name, role]) => {
    const has = told.state !== "queued" && role.granted !== role.wanted ? `${role.granted} of ${role.wanted}` : `${role.wanted}`;
    return `${clean(name)} ${has}${role.least < role.most ? ` (${role.least} … ${role.most})` : ""}`;
  });
  const sentence = [...roles, how[told.resize]].filter(Boolean).join(", ");
  const parts = [h("p", {}, `Size: ${sentence}${told.keeps_size_for ? `: ${clean(told.keeps_size_for)}` : ""}.`)];
  if (told.sized_for) parts.push(h("p", { class: "muted" }, `Reason for this size: ${causeText(told.sized_for)}`));
  if (told.resized_for) parts.push(h("p", { class: "muted" }, `Last change: ${causeText(told.resized_for)}`));
  return parts;
}

function soonerView(sooner, now) {
  return h("div", {}, h("h3", {}, "What would help"), h("ul", { class: "sooner" }, ...sooner.map((one) =>
    h("li", {}, h("strong", {}, NAMES[one.what] ?? clean(one.what).replaceAll("_", " ")), ": ", clean(one.sentence),
      one.eta ? h("span", { class: "muted" }, ` — starts ${rangeWords(one.eta, now)}`) : ""))));
}

function holdersView(holders, now) {
  const rows = holders.map((held) => [
    jobLink(held.job_id, held.name ?? ""), stateChip(held.state), text(held.gpus), text(held.priority), duration(now - held.since),
    held.eta ? rangeWords(held.eta, now) : held.ends_at ? `in ${duration(held.ends_at - now)} at the latest` : "unknown", some(held.nodes ?? []),
  ]);
  return h("div", {}, h("h3", {}, "The resources that it needs are held by"),
    table("Holders", ["job", "state", "#GPUs", "#priority", "for", "ends", "on"], rows));
}

// Nodes of a placed job that take no new work, or do not report, by the live stream.
export function nodesAway(nodes) {
  return nodes.filter((node) => node && node.state !== "ready").map((node) => {
    const why = AWAY[node.state] ?? `has not reported for ${duration(node.silent_seconds ?? 0)}`;
    return `${clean(node.id)} ${why}`;
  });
}
