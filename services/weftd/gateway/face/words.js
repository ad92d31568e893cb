// Words, colours and small elements that several pages share. A colour never stands alone: a letter or a name is with it.

import { clean, duration, h } from "./dom.js";

export const HOLDERS = 8; // colours --c0 … --c7
export const SLOW = 1.05; // a GPU believed to be slower than typical by this factor is marked, as in the CLI
const AXIS_SECONDS = 14 * 86400; // the right end of the axis of an estimate
const AXIS_UNIT = 60; // up to about here it is even, beyond it is logarithmic
const WEAK = 10; // a range whose end is so many times its beginning is too wide to plan by
const COPIED_MS = 2000;
export const IDLE = 0.02; // a held GPU that is used less than this is idle

export const STATES = ["queued", "placed", "starting", "running", "stopping", "succeeded", "failed", "cancelled"];
export const FINAL = new Set(["succeeded", "failed", "cancelled"]);
export const HOLDING = ["running", "starting", "placed", "stopping"]; // in the order of lists

// Why jobs wait, by the code of the reason.
const CODES = {
  "no-room": "no room: too little is free now",
  "no-nodes": "no node of their pool takes work",
  "too-big": "too big: would not fit even if everything were free",
  backoff: "pausing before the next try",
  "making-room": "waiting for pre-empted jobs to stop",
  "over-quota": "held by a quota: their tenant or group holds as much as it may",
  "held-back": "held back: free GPUs are reserved for jobs ahead of them",
  "still-runs": "an earlier run has not ended yet",
  "store-restored": "runs from before a restore have not ended yet",
  "array-full": "held by their array: it is at its limit of elements at once",
  dependency: "waiting for what becomes of another job",
  "not-stored": "placed, but the store refused it: tried again",
  fits: "there is room: about to be placed",
  submitted: "not looked at yet",
};

export function codeWords(code) {
  return CODES[code] || clean(code).replaceAll("-", " ");
}

// A job's colour is made from its id: every browser, and every load, shows the same.
export function holder(jobId) {
  return hash(jobId) % HOLDERS;
}

// The jobs that hold something: their colour is shown beside their names, that of others is not.
const holding = new Set();

export function giveColours(jobIds) {
  for (const id of jobIds) holding.add(id);
}

export function takeColours(jobIds) {
  for (const id of jobIds) holding.delete(id);
}

function hash(id) {
  let made = 2166136261;
  for (let place = 0; place < id.length; place += 1) made = Math.imul(made ^ id.charCodeAt(place), 16777619);
  return made >>> 8;
}

export function letter(jobId, name) {
  return (clean(name).match(/[\p{L}\p{N}]/u)?.[0] || jobId.slice(-1) || "?").toUpperCase();
}

// A job as a link with its letter, and its colour if it holds something; a job of another tenant has its id only.
export function jobLink(id, name = "") {
  return h("a", { class: "job", href: `#/job/${encodeURIComponent(id)}`, title: id },
    h("span", { class: `swatch ${holding.has(id) ? `c${holder(id)}` : "none"}`, ariaHidden: "true" }, letter(id, name)),
    h("bdi", {}, name ? clean(name) : `another tenant's job ${id.slice(-6)}`));
}

// What heads of tables mean that a newcomer may not know.
const GLOSSARY = {
  epoch: "one try of the job; a new one begins each time that it goes back to the queue",
  rank: "one process of the job; the ranks of all its replicas are numbered from 0",
  pace: "speed of the rank, from the steps that it reports",
};

export function headWord(name) {
  return Object.hasOwn(GLOSSARY, name) ? h("abbr", { title: GLOSSARY[name] }, name) : name;
}

export function stateChip(state) {
  return h("span", { class: `chip state-${clean(state)}` }, clean(state));
}

// A bar of the part 0–1 that is done or used; `behind`: fainter, the part that is held. With its words.
export function bar(part, words, { behind = 0, kind = "" } = {}) {
  const width = (share) => `${100 * Math.min(1, Math.max(0, share || 0))}%`;
  return h("span", { class: `bar ${kind}` },
    h("span", { class: "track", ariaHidden: "true" },
      h("span", { class: "behind", style: { width: width(behind) } }),
      h("span", { class: "fill", style: { width: width(part) } })),
    h("span", { class: "words" }, words));
}

// An estimate as a bar: its range and its likeliest moment on an axis from now to weeks, the same for all estimates, so
// that two of them can be compared; grey where the range is too wide to plan by. With its words.
export function estimateBar(estimate, now, { before = "" } = {}) {
  const words = rangeWords(estimate, now);
  const known = (at) => at !== null && at !== undefined && Number.isFinite(at);
  const { earliest, likely, latest } = estimate ?? {};
  if (![earliest, likely, latest].some(known)) return h("span", { class: "eta", title: clean(estimate?.sentence ?? "") }, h("span", { class: "words" }, words));
  const place = (at) => 100 * Math.min(1, Math.log1p(Math.max(0, at - now) / AXIS_UNIT) / Math.log1p(AXIS_SECONDS / AXIS_UNIT));
  const from = place(known(earliest) ? earliest : now);
  const to = known(latest) ? place(latest) : known(likely) ? place(likely) : 100;
  const weak = !known(latest) || latest - now > WEAK * Math.max(60, (known(earliest) ? earliest : now) - now);
  return h("span", { class: `eta${weak ? " weak" : ""}`, title: clean(estimate.sentence) },
    h("span", { class: "axis", ariaHidden: "true" },
      h("span", { class: "band", style: { left: `${from}%`, width: `${Math.max(0, to - from)}%` } }),
      known(likely) && h("span", { class: "tick", style: { left: `${place(likely)}%` } })),
    h("span", { class: "words" }, `${before}${words}`));
}

// A word of a command, quoted so that a shell takes it as it is: others may have named what it names.
export function shellWord(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

// A command to copy, with its button.
export function commandToCopy(command, { block = false } = {}) {
  const button = h("button", { type: "button", class: "quiet small", ariaLabel: `Copy: ${command.split("\n")[0].slice(0, 60)}`, onclick: async () => {
    try {
      await navigator.clipboard.writeText(command);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code); // copying may be forbidden: then it is marked, for the keyboard
      button.textContent = "Marked";
    }
    setTimeout(() => { button.textContent = "Copy"; }, COPIED_MS);
  } }, "Copy");
  const code = h("code", {}, command);
  return h("span", { class: block ? "copied block" : "copied" }, code, button);
}

// A page or a list with nothing in it: what would be here, and the command that puts something there.
export function emptyView(title, sentence, command = "") {
  return h("div", { class: "empty" }, h("strong", {}, title), h("span", {}, sentence), command && commandToCopy(command));
}

// A range of time as people read it: `in 5m (3m to 12m)`. Moments are seconds since 1970.
export function rangeWords(estimate, now) {
  const known = (at) => at !== null && at !== undefined && Number.isFinite(at);
  const { earliest, likely, latest } = estimate ?? {};
  const away = (at) => duration(Math.max(0, at - now));
  if (estimate?.basis === "room" && known(likely) && likely - now < 1) return "now";
  if (known(latest) && latest <= now) return "later than foreseen";
  if (estimate?.basis === "limits" && known(latest)) return `in ${away(latest)} at the latest`;
  if (known(latest)) {
    const from = known(earliest) ? earliest : now;
    if (known(likely) && likely - now >= 1) return `in ${away(likely)} (${away(from)} to ${away(latest)})`;
    return !known(likely) && from - now >= 1 ? `in ${away(from)} to ${away(latest)}` : `within ${away(latest)}`;
  }
  return known(earliest) ? `not before ${away(earliest)} from now` : "nobody can tell";
}

// The step of a job's progress and of how many: {step, total, part}; null if it reports none.
export function steps(progress) {
  for (const [name, totals] of [["step", ["steps", "total", "total_steps", "max_steps"]], ["epoch", ["epochs"]]]) {
    if (progress?.[name] === undefined) continue;
    const total = totals.map((each) => progress[each]).find((each) => each !== undefined) ?? null;
    return { step: progress[name], total, part: total > 0 ? Math.min(1, Math.max(0, progress[name] / total)) : null };
  }
  return null;
}
