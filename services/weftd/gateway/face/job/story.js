// A job's story: its events folded into stretches of time, marks and rows, and drawn as a timeline with a list.

import { clean, clear, clock, count, duration, h, svg, text } from "../dom.js";
import { scrolling } from "../parts.js";
import { headWord } from "../words.js";

export const ROWS_MAX = 200; // rows of the list that are shown at first
const MARKS = {
  moved: { sign: "M", word: "move" },
  preempted: { sign: "P", word: "pre-emption" },
  size: { sign: "S", word: "change of its size" },
  tuned: { sign: "T", word: "change of its CPUs, memory, network or share" },
  loan: { sign: "L", word: "loan" },
  updated: { sign: "U", word: "update" },
  entered: { sign: "E", word: "visit of a person" },
  noted: { sign: "N", word: "note of its node" },
  failed: { sign: "F", word: "failed try" },
};
const STARTS = new Set(["placed", "starting"]);
const FINAL = new Set(["succeeded", "failed", "cancelled"]);
const LOANS = new Set(["lent", "paid-back"]);
const FAILED = new Set(["exited", "out-of-memory", "hung", "start-failed", "cannot-start", "start-timeout", "run-lost", "rank-ended", "node-lost", "time-limit", "port-taken", "uncontrolled"]);
const HEIGHT = { bars: 26, marks: 20, axis: 20, gap: 6 };
const LEFT = 4;

// An event as the page needs it; odd parts of it become empty.
export function told(event) {
  const data = event?.data ?? {};
  const cause = data.cause ?? {};
  const at = Date.parse(event?.time) / 1000;
  return {
    at: Number.isFinite(at) ? at : null,
    event: String(event?.type ?? "").split(".").pop(),
    state: String(data.state ?? ""),
    epoch: Number.isFinite(data.epoch) ? data.epoch : 0,
    version: Number.isFinite(data.version) ? data.version : 0,
    code: String(cause.code ?? ""),
    sentence: String(cause.sentence ?? data.sentence ?? ""),
    by: String(cause.by ?? ""),
    numbers: cause.numbers && typeof cause.numbers === "object" ? cause.numbers : {},
    nodes: [...new Set((data.placement?.allocations ?? []).map((each) => String(each?.node_id)))],
    lends: Array.isArray(data.loans),
    exit: Number.isFinite(data.exit_code) ? data.exit_code : null,
  };
}

// The story as `{stretches, marks, rows, totals}`, until `now` (seconds since 1970) if the job is not over.
//
// A stretch: `{phase: "waits"|"starts"|"runs"|"stops", from, to, epoch, sentence, open}`. A row of the list is one
// event, or several alike in sequence: `{first, last, count, …}`.
export function fold(events, now) {
  const known = events.map(told).filter((one) => one.at !== null).sort((a, b) => a.version - b.version);
  const stretches = [];
  const marks = [];
  const rows = [];
  let open = null;
  for (const one of known) {
    const phase = phaseOf(one.state);
    const kind = markOf(one);
    if (kind) marks.push({ kind, at: one.at, sentence: one.sentence || one.code || one.event });
    if (open && (phase !== open.phase || one.epoch !== open.epoch)) {
      open.to = Math.max(open.from, one.at);
      open.open = false;
      open = null;
    }
    if (!open && phase) {
      open = { phase, from: one.at, to: one.at, epoch: one.epoch, sentence: one.sentence || one.code, open: true };
      stretches.push(open);
    } else if (open && one.sentence) open.sentence = one.sentence;
    const row = rows.at(-1);
    if (row && row.event === one.event && row.epoch === one.epoch && row.code === one.code && isRepeated(one)) {
      Object.assign(row, { last: one.at, count: row.count + 1, sentence: one.sentence, numbers: one.numbers });
    } else rows.push({ ...one, first: one.at, last: one.at, count: 1 });
  }
  if (open) open.to = Math.max(open.from, now);
  return { stretches, marks, rows, totals: totalsOf(stretches, marks) };
}

function phaseOf(state) {
  if (state === "queued") return "waits";
  if (STARTS.has(state)) return "starts";
  if (state === "running") return "runs";
  return state === "stopping" ? "stops" : "";
}

// Events that come many times alike, of which the newest tells enough.
function isRepeated(one) {
  return ["waiting", "tuned", "resized", "scaled", "updated", "reprioritised", "entered", "noted"].includes(one.event);
}

function markOf(one) {
  if (LOANS.has(one.code) || one.lends) return "loan";
  if (one.code === "moved") return one.event === "requeued" || one.event === "stopping" ? "" : "moved";
  if (one.event === "requeued" || one.event === "failed") {
    if (one.code === "preempted") return "preempted";
    return FAILED.has(one.code) || one.event === "failed" ? "failed" : "";
  }
  if (one.event === "tuned") return "tuned";
  if (one.event === "resized" || one.event === "restarted") return "size";
  if (one.code === "entered") return "entered";
  if (one.event === "noted") return "noted";
  return one.event === "updated" ? "updated" : "";
}

function totalsOf(stretches, marks) {
  const seconds = { waits: 0, starts: 0, runs: 0, stops: 0 };
  for (const one of stretches) seconds[one.phase] += one.to - one.from;
  const counts = {};
  for (const mark of marks) counts[mark.kind] = (counts[mark.kind] ?? 0) + 1;
  const epochs = new Set(stretches.filter((one) => one.phase !== "waits").map((one) => one.epoch)).size;
  return { seconds, counts, epochs };
}

// The totals in a sentence: what the drawing shows, for readers who do not see it.
export function summaryOf({ stretches, totals }) {
  if (!stretches.length) return "No event yet.";
  const parts = [`waited ${duration(totals.seconds.waits)}`];
  if (totals.epochs) parts.push(`ran ${duration(totals.seconds.runs)} in ${count(totals.epochs, "epoch")}`);
  if (totals.seconds.starts >= 1) parts.push(`took ${duration(totals.seconds.starts)} to start`);
  for (const [kind, many] of Object.entries(totals.counts)) parts.push(manyOf(many, MARKS[kind].word));
  return `${parts.join(", ")}.`.replace(/^./, (letter) => letter.toUpperCase());
}

function manyOf(many, word) {
  if (many === 1) return `1 ${word}`;
  return `${many} ${word.startsWith("change") ? word.replace("change", "changes") : word === "failed try" ? "failed tries" : `${word}s`}`;
}

// The story's part of the page: `{element, update(events, {now, final, names})}`.
export function storyView() {
  const plot = h("div", { class: "plot" });
  const sentence = h("p", { class: "chart-says" });
  const key = h("ul", { class: "legend" });
  const body = h("tbody");
  const more = h("button", { type: "button", onclick: showAll, hidden: true });
  const list = scrolling("Event history", h("table", { class: "story" },
    h("caption", { class: "hidden-text" }, "Event history, the newest first"),
    h("thead", {}, h("tr", {}, ...["time", "after", "event", "epoch", "why"].map((name) => h("th", { scope: "col" }, headWord(name))))),
    body));
  const element = h("div", { class: "story-view" }, plot, key, sentence, list, more);
  let shown = null;
  let most = ROWS_MAX;
  let width = 0;
  let filled = "";
  const observer = new ResizeObserver((entries) => {
    const now = Math.max(200, Math.floor(entries[0].contentRect.width));
    if (now === width) return;
    width = now;
    draw();
  });
  observer.observe(plot);

  function draw() {
    if (!shown || !width) return;
    clear(plot);
    if (shown.stretches.length) plot.append(drawing(shown, width));
  }
  function fill() {
    clear(body);
    const rows = shown.rows.slice(-most).reverse();
    const start = shown.rows[0]?.first ?? 0;
    body.append(...rows.map((row) => rowOf(row, start, shown.names)));
    const left = shown.rows.length - rows.length;
    more.hidden = left <= 0;
    more.textContent = `Show ${Math.min(left, 1000)} earlier of ${left}`;
  }
  function showAll() {
    most += 1000;
    fill();
  }
  return {
    element,
    close: () => observer.disconnect(),
    update(events, { now, names = {} }) {
      shown = { ...fold(events, now), names };
      const rows = JSON.stringify([events.length, events.at(-1)?.id, names]);
      sentence.textContent = summaryOf(shown);
      clear(key).append(...keyOf(shown));
      draw();
      if (rows !== filled) fill(); // rows that are read do not change under the reader
      filled = rows;
    },
  };
}

function rowOf(row, start, names) {
  const by = names[row.by] ? `${names[row.by]} (${row.by})` : row.by;
  const why = [];
  if (row.code && row.code !== row.event) why.push(h("span", { class: "code" }, row.code), row.sentence ? ": " : "");
  why.push(clean(row.sentence));
  if (!row.sentence) why.push(numbersText(row.numbers));
  if (row.nodes.length && row.event !== "waiting") why.push(h("span", { class: "muted" }, ` on ${some(row.nodes)}`));
  if (row.exit !== null && !row.sentence.includes(String(row.exit))) why.push(h("span", { class: "muted" }, ` exit status ${row.exit}`));
  if (by && !row.sentence.includes(row.by)) why.push(h("span", { class: "muted" }, ` by ${clean(by)}`));
  const event = FINAL.has(row.event) ? `state-${row.event}` : "";
  return h("tr", {},
    h("td", { class: "when" }, clock(row.first)),
    h("td", { class: "number" }, afterWords(row.first - start)),
    h("th", { scope: "row", class: event }, clean(row.event), row.count > 1 ? h("span", { class: "muted" }, ` ×${row.count}`) : ""),
    h("td", { class: "number" }, String(row.epoch)),
    h("td", { class: "why" }, ...why, row.count > 1 ? h("span", { class: "muted" }, ` (the last at ${clock(row.last)})`) : ""));
}

function afterWords(seconds) {
  return seconds < 60 ? `+${Math.max(0, seconds).toFixed(1)}s` : `+${duration(seconds)}`;
}

function numbersText(numbers) {
  const parts = Object.entries(numbers).slice(0, 8).map(([name, value]) => `${clean(name).replaceAll("_", " ")} ${text(value)}`);
  return parts.length ? `(${parts.join(", ")})` : "";
}

// `a, b, c, d and 7 more`.
export function some(names, most = 4) {
  const first = names.slice(0, most).map(clean).join(", ");
  return names.length > most ? `${first} and ${names.length - most} more` : first;
}

function keyOf(story) {
  const phases = ["waits", "starts", "runs", "stops"].filter((phase) => story.stretches.some((one) => one.phase === phase));
  const bar = (phase) => svg("svg", { width: 18, height: 12, "aria-hidden": "true" },
    svg("rect", { class: `phase ${phase}`, x: 0, y: 1, width: 18, height: phase === "waits" ? 4 : 10 }));
  const signs = Object.keys(story.totals.counts);
  return [
    ...phases.map((phase) => h("li", {}, bar(phase), phase)),
    ...signs.map((kind) => h("li", {}, h("span", { class: "sign" }, MARKS[kind].sign), MARKS[kind].word)),
  ];
}

// Bars for the stretches, under them a mark for each kind of change and pixel; at most some elements a pixel.
function drawing(story, width) {
  const begin = story.stretches[0].from;
  const end = Math.max(begin + 0.05, story.stretches.at(-1).to);
  const inner = width - 2 * LEFT;
  const toX = (at) => LEFT + ((at - begin) / (end - begin)) * inner;
  const kinds = [...new Set(story.marks.map((mark) => mark.kind))];
  const top = HEIGHT.bars + HEIGHT.gap;
  const height = top + kinds.length * HEIGHT.marks + HEIGHT.axis;
  const made = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Timeline of the job" });
  for (const one of barsOf(story.stretches, toX)) {
    const tall = one.phase === "waits" ? HEIGHT.bars / 3 : HEIGHT.bars;
    const made_bar = svg("rect", {
      class: `phase ${one.phase}`, x: one.x, width: Math.max(1, one.width), y: HEIGHT.bars - tall, height: tall, rx: 2,
    }, svg("title", {}, one.title));
    made.append(made_bar);
    if (one.phase === "runs" && one.width > 60) {
      made.append(svg("text", { class: "inside", x: one.x + 6, y: HEIGHT.bars - 8 }, `epoch ${one.epoch}`));
    }
  }
  kinds.forEach((kind, place) => {
    const y = top + place * HEIGHT.marks;
    made.append(svg("line", { class: "grid", x1: LEFT, x2: width - LEFT, y1: y + 8, y2: y + 8 }));
    for (const [x, sentence, many] of binned(story.marks, kind, toX)) {
      made.append(svg("g", { class: "mark" }, svg("title", {}, many > 1 ? `${many} × ${MARKS[kind].word}` : sentence),
        svg("circle", { cx: x, cy: y + 8, r: 7 }), svg("text", { x, y: y + 11.5, "text-anchor": "middle" }, MARKS[kind].sign)));
    }
  });
  made.append(
    svg("text", { class: "tick", x: LEFT, y: height - 5 }, clock(begin)),
    svg("text", { class: "tick", x: width - LEFT, y: height - 5, "text-anchor": "end" }, clock(end)),
  );
  return made;
}

// Stretches as bars, with those merged that lie within one pixel: the longest of them gives the look.
export function barsOf(stretches, toX) {
  const bars = [];
  for (const one of stretches) {
    const [x, right] = [toX(one.from), toX(one.to)];
    const title = `${one.phase} for ${duration(one.to - one.from)}, epoch ${one.epoch}: ${clean(one.sentence)}`;
    const before = bars.at(-1);
    if (before && right - before.x < 2) {
      if (one.to - one.from > before.seconds) Object.assign(before, { phase: one.phase, seconds: one.to - one.from, title });
      before.width = Math.max(before.width, right - before.x);
      continue;
    }
    bars.push({ x, width: right - x, phase: one.phase, epoch: one.epoch, seconds: one.to - one.from, title });
  }
  return bars;
}

// The marks of one kind as `[x, sentence, how many]`, no two closer than a sign is wide.
function binned(marks, kind, toX) {
  const bins = [];
  for (const mark of marks) {
    if (mark.kind !== kind) continue;
    const x = Math.round(toX(mark.at));
    const before = bins.at(-1);
    if (before && x - before[0] < 16) before[2] += 1;
    else bins.push([Math.max(9, x), mark.sentence, 1]);
  }
  return bins;
}
