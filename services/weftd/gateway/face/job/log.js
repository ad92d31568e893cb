// The log of one rank, live: its last lines, earlier parts when they are wanted, and the end when the reader is there.
//
// At most LINES_MAX lines are in the page, however long the log is. While the reader is not at its end nothing moves.

import { AnsiLines } from "./ansi.js";
import { ApiError, request } from "../api.js";
import { clean, clear, count, h } from "../dom.js";
import { save } from "./files.js";
import { toast } from "../notice.js";
import { logSearch } from "./search.js";

export const LINES_MAX = 2000;
const FIRST_BYTES = 128 << 10; // of the log's end, to begin with
const PART_BYTES = 128 << 10; // of an earlier part
const RETRY_MS = [500, 1000, 2000, 5000, 10000];
const HIDDEN_MS = 30_000; // a page that nobody looks at gives its connection back after so long
const RANKS_LISTED_MAX = 200;
const AT_END = 40; // pixels
const NEWLINE = 10;
const DOWNLOAD_MAX = 256 << 20; // a larger log is fetched by the command line: a browser would keep it in memory

// The last lines of these bytes, at most `most`: earlier ones would not be shown.
export function lastLines(data, most) {
  let left = most;
  for (let at = data.length - 2; at >= 0; at -= 1) {
    if (data[at] !== NEWLINE) continue;
    left -= 1;
    if (left === 0) return data.subarray(at + 1);
  }
  return data;
}

// Without the rest of a line whose beginning is not there, unless there is nothing else.
export function fromLineStart(data) {
  const at = data.indexOf(NEWLINE);
  return at >= 0 && at < data.length - 1 ? data.subarray(at + 1) : data;
}

// The log's part of the page: `{element, update(job), close()}`. `start`: {rank, epoch, byte}, where a link leads to, or
// null; `moved({rank, epoch, byte})`: what is shown has another link.
export function logView(jobId, start = {}, moved = () => {}) {
  const state = { rank: start.rank ?? 0, epoch: start.epoch ?? null, job: null, mode: "", from: 0, to: 0, begins: 0, size: null };
  let following = null; // ends what is being read now
  let pending = []; // lines that are not in the page yet
  let unseen = 0;
  let scheduled = false;
  let openLine = null;
  let choices = "";
  let hiding = 0;
  let pausedWhileHidden = false;

  const lines = h("pre", { class: "log", tabindex: "0", role: "log", ariaLive: "off", ariaLabel: "Output of the rank", onscroll: scrolled });
  const said = h("span", { class: "muted", role: "status" });
  const newer = h("button", { type: "button", class: "newer", hidden: true, onclick: toEnd });
  const rankBox = h("span", { class: "row" });
  const epochBox = h("span", { class: "row" });
  const earlier = h("button", { type: "button", onclick: () => part(-1) }, "Earlier");
  const later = h("button", { type: "button", onclick: () => part(1) }, "Later");
  const end = h("button", { type: "button", onclick: follow }, "To the end");
  const wrap = h("button", { type: "button", ariaPressed: "true", onclick: () => {
    const on = lines.classList.toggle("unwrapped");
    wrap.setAttribute("aria-pressed", String(!on));
  } }, "Wrap lines");
  const link = h("button", { type: "button", onclick: copyLink }, "Copy link");
  const whole = h("button", { type: "button", onclick: download }, "Download");
  const search = logSearch(jobId, { ranks: ranksOf, chosen: () => state, open: (rank, byte) => { state.rank = rank; showChoices(state.job, true); at(byte); } });
  const element = h("div", { class: "log-view" },
    h("div", { class: "row controls" }, rankBox, epochBox, earlier, later, end, wrap, whole, link, said),
    h("div", { class: "controls" }, search.form, search.found),
    h("div", { class: "log-frame" }, lines, newer));

  function query(more) {
    const asked = new URLSearchParams({ rank: String(state.rank), ...more });
    if (state.epoch !== null) asked.set("epoch", String(state.epoch));
    return `/v1/jobs/${encodeURIComponent(jobId)}/logs?${asked}`;
  }

  function begin(mode) {
    following?.abort();
    following = new AbortController();
    state.mode = mode;
    pending = [];
    unseen = 0;
    openLine = null;
    newer.hidden = true;
    clear(lines);
    showButtons();
    return following.signal;
  }

  // Reads on until the run is over, from where it was if the line is cut.
  async function follow() {
    const signal = begin("follow");
    const reader = new AnsiLines();
    const decoder = new TextDecoder();
    let offset = null;
    say("connecting …");
    for (let failures = 0; !signal.aborted; failures += 1) {
      try {
        const response = await request(query({ follow: "1", ...(offset === null ? { tail: FIRST_BYTES } : { offset }) }), { signal });
        const at = Number(response.headers.get("X-Weft-Offset")) || 0;
        state.begins = Number(response.headers.get("X-Weft-Begins")) || 0;
        if (offset !== null && at > offset) note(`${at - offset} bytes are missing here: the node has dropped them`);
        const first = offset === null;
        offset = at;
        if (first) state.from = state.to = at;
        say(hasNotStarted() ? "it has not started yet" : "live");
        failures = 0;
        await readAll(response, signal, first && at > state.begins);
        if (signal.aborted) return;
        take([...reader.feed(decoder.decode()), ...reader.close()], null);
        state.mode = "ended";
        say(lines.childElementCount || pending.length ? "the run is over" : "it wrote nothing");
        return;
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof ApiError && error.status >= 400 && error.status < 500 && error.status !== 429) {
          state.mode = "ended";
          say(error.reason);
          return;
        }
        say("the connection was lost; trying again …");
        await new Promise((go) => { setTimeout(go, RETRY_MS[Math.min(failures, RETRY_MS.length - 1)]); });
      }
    }

    async function readAll(response, ends, midLine) {
      let head = midLine;
      const source = response.body.getReader();
      for (;;) {
        const { done, value } = await source.read();
        if (done || ends.aborted) return;
        offset += value.length;
        let data = lastLines(value, LINES_MAX);
        if (head) data = fromLineStart(data);
        head = false;
        take(reader.feed(decoder.decode(data, { stream: true })), reader.open, offset);
      }
    }
  }

  // The line that begins at a byte, with what is around it; a link leads to it.
  async function at(byte) {
    [state.from, state.to] = [byte, byte];
    await part(1);
    lines.firstElementChild?.classList.add("linked");
    moved({ rank: state.rank, epoch: state.epoch, byte });
  }

  async function copyLink() {
    const byte = state.mode === "part" ? state.from : null;
    moved({ rank: state.rank, epoch: state.epoch, byte });
    try {
      await navigator.clipboard.writeText(location.href);
      toast("The link is copied.");
    } catch {
      toast("The address of this page is the link.");
    }
  }

  async function download() {
    if (state.to > DOWNLOAD_MAX) return toast(`This log is larger than a browser should hold: weft logs ${jobId} --rank ${state.rank} > log.txt`, "bad");
    try {
      const response = await request(query({}), { signal: AbortSignal.timeout(600_000) });
      save(await response.blob(), `${state.job?.name ?? jobId}-rank-${state.rank}.log`);
    } catch (error) {
      toast(`The log could not be read: ${clean(error.reason ?? error.message)}`, "bad");
    }
  }

  function ranksOf() {
    const placed = (state.job?.placement?.allocations ?? []).map((each) => each.rank);
    return placed.length ? placed : Array.from({ length: state.job?.replicas ?? 1 }, (_, rank) => rank);
  }

  // The part of the log before (-1) or behind (1) what is shown.
  async function part(direction) {
    const [from, to] = [state.from, state.to];
    const [low, high] = direction < 0 ? [Math.max(state.begins, from - PART_BYTES), from] : [to, to + PART_BYTES];
    if (direction < 0 && high <= state.begins) return say("this is its beginning");
    const signal = begin("part");
    say("reading …");
    try {
      const response = await request(query({}), { signal, headers: { Range: `bytes=${low}-${high - 1}` } });
      const at = Number(response.headers.get("X-Weft-Offset")) || 0;
      state.begins = Number(response.headers.get("X-Weft-Begins")) || 0;
      const whole = new Uint8Array(await response.arrayBuffer());
      const started = direction < 0 && at > state.begins ? fromLineStart(whole) : whole;
      const data = direction < 0 ? lastLines(started, LINES_MAX) : started.subarray(0, endOfLines(started));
      state.from = direction < 0 ? at + whole.length - data.length : at;
      state.to = state.from + data.length;
      const reader = new AnsiLines();
      const shown = [...reader.feed(new TextDecoder().decode(data)), ...reader.close()];
      clear(lines).append(...shown.slice(0, LINES_MAX * 2).map(lineOf));
      lines.scrollTop = direction < 0 ? lines.scrollHeight : 0;
      say(`bytes ${state.from} to ${state.to}, not live`);
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && error.status === 416) return direction > 0 ? follow() : say("this is its beginning");
      say(error.reason ?? error.message);
    }
    showButtons();
  }

  function endOfLines(data) {
    let left = LINES_MAX;
    for (let at = 0; at < data.length; at += 1) {
      if (data[at] === NEWLINE) left -= 1;
      if (left === 0) return at + 1;
    }
    const last = data.lastIndexOf(NEWLINE);
    return last >= 0 ? last + 1 : data.length;
  }

  function take(ended, open, offset = null) {
    if (offset !== null) state.to = offset;
    for (const line of ended) pending.push({ line, to: offset });
    if (pending.length > LINES_MAX) pending = pending.slice(-LINES_MAX);
    unseen += ended.length;
    if (open !== undefined) openLine = open;
    if (!scheduled) {
      scheduled = true;
      requestAnimationFrame(show);
    }
  }

  function atEnd() {
    return lines.scrollHeight - lines.scrollTop - lines.clientHeight < AT_END;
  }

  function show() {
    scheduled = false;
    if (state.mode === "part") return;
    if (lines.childElementCount && !atEnd()) {
      newer.hidden = unseen === 0;
      newer.textContent = `${count(unseen, "new line")} below`;
      return;
    }
    lines.querySelector(".open")?.remove();
    lines.append(...pending.map(({ line, to }) => Object.assign(lineOf(line), { endsBy: to })));
    pending = [];
    unseen = 0;
    newer.hidden = true;
    while (lines.childElementCount > LINES_MAX) {
      lines.firstElementChild.remove();
      state.from = lines.firstElementChild.endsBy ?? state.from;
    }
    if (openLine?.length) {
      const row = lineOf(openLine);
      row.classList.add("open");
      lines.append(row);
    }
    lines.scrollTop = lines.scrollHeight;
    showButtons();
  }

  function scrolled() {
    if ((pending.length || unseen) && atEnd()) show();
  }

  function toEnd() {
    lines.scrollTop = lines.scrollHeight;
    show();
    lines.focus();
  }

  function note(sentence) {
    take([{ spans: [{ text: `— ${sentence} —`, look: "a-note" }], length: 1, cut: 0 }]);
  }

  function hasNotStarted() {
    return state.job?.state === "queued" && !state.job.epoch;
  }

  function say(sentence) {
    said.textContent = clean(sentence);
  }

  function showButtons() {
    earlier.disabled = state.from <= state.begins;
    later.hidden = state.mode !== "part";
    end.hidden = state.mode !== "part";
  }

  function choose(name, value) {
    state[name] = value;
    moved({ rank: state.rank, epoch: state.epoch, byte: null });
    follow();
  }

  // What there is to choose: ranks, by the placement or the specification, and epochs.
  function showChoices(job, anew = false) {
    const placed = (job.placement?.allocations ?? []).map((each) => [each.rank, `${each.rank} · ${each.role} · ${each.node_id}`]);
    const ranks = placed.length ? placed : Array.from({ length: Math.min(job.replicas ?? 1, RANKS_LISTED_MAX) }, (_, rank) => [rank, String(rank)]);
    const epochs = Math.max(0, job.epoch ?? 0);
    const now = JSON.stringify([ranks, epochs]);
    if (now === choices && !anew) return;
    choices = now;
    if (ranks.length <= RANKS_LISTED_MAX && (placed.length || (job.replicas ?? 1) <= RANKS_LISTED_MAX)) {
      if (!ranks.some(([rank]) => rank === state.rank)) ranks.push([state.rank, String(state.rank)]);
      const options = ranks.map(([rank, words]) => h("option", { value: String(rank) }, clean(words)));
      const picker = h("select", { id: "log-rank", onchange: () => choose("rank", Number(picker.value)) }, options);
      picker.value = String(state.rank);
      clear(rankBox).append(h("label", { htmlFor: "log-rank" }, "rank "), picker);
    } else {
      const picker = h("input", {
        id: "log-rank", type: "number", min: "0", max: "65535", value: String(state.rank),
        onchange: () => { if (picker.checkValidity() && picker.value) choose("rank", Number(picker.value)); },
      });
      clear(rankBox).append(h("label", { htmlFor: "log-rank" }, "rank "), picker);
    }
    const newest = h("option", { value: "" }, epochs ? "newest" : String(epochs));
    const older = Array.from({ length: Math.min(epochs, 100) }, (_, place) => h("option", { value: String(epochs - 1 - place) }, String(epochs - 1 - place)));
    const picker = h("select", { id: "log-epoch", onchange: () => choose("epoch", picker.value === "" ? null : Number(picker.value)) }, newest, older);
    picker.value = state.epoch === null ? "" : String(state.epoch);
    clear(epochBox).append(h("label", { htmlFor: "log-epoch" }, "epoch "), picker);
    epochBox.hidden = epochs === 0;
  }

  function visibility() {
    clearTimeout(hiding);
    if (document.hidden && state.mode === "follow") {
      hiding = setTimeout(() => {
        pausedWhileHidden = true;
        following?.abort();
      }, HIDDEN_MS);
    } else if (!document.hidden && pausedWhileHidden) {
      pausedWhileHidden = false;
      follow();
    }
  }
  document.addEventListener("visibilitychange", visibility);

  return {
    element,
    // Of a moment of the past only the first is taken: what is written then and now is the same.
    update(job, isPast = false) {
      const before = state.job;
      if (isPast && before) return;
      const waited = before !== null && hasNotStarted();
      state.job = job;
      if (waited && !hasNotStarted() && state.mode === "follow") say("live");
      showChoices(job);
      lines.hidden = hasNotStarted();
      const restarted = before && state.epoch === null && job.epoch !== before.epoch;
      if (!before && start.rank === undefined && job.ended_for?.numbers?.rank >= 0) state.rank = job.ended_for.numbers.rank; // the rank that failed first
      if (!before && start.byte !== undefined) at(start.byte);
      else if (!before || (restarted && state.mode !== "part")) follow();
    },
    close() {
      following?.abort();
      search.close();
      clearTimeout(hiding);
      document.removeEventListener("visibilitychange", visibility);
    },
  };
}

function lineOf({ spans, cut }) {
  const parts = spans.map(({ text, look }) => (look ? h("span", { class: look }, text) : text));
  if (cut) parts.push(h("span", { class: "a-note" }, ` … ${cut} more characters of this line are not shown`));
  return h("div", { class: "log-line" }, ...parts, "\n");
}
