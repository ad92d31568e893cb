// Looks for words in the logs of a job: all bytes of a rank, or of all ranks, from the end back, in bounded parts.

import { ApiError, request } from "../api.js";
import { clean, clear, count, h } from "../dom.js";

const PART_BYTES = 1 << 20;
const READ_MAX = 64 << 20; // bytes of all logs together
const FOUND_MAX = 200;
const RANKS_MAX = 64;
const LINE_SHOWN = 300; // characters
const ESCAPES = /\x1b(\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|.)/g;

// `{element, close()}`. `ranks()`: those that there are; `chosen()`: {rank, epoch}; `open(rank, offset)`: shows a line.
export function logSearch(jobId, { ranks, chosen, open }) {
  let running = new AbortController();
  const said = h("span", { class: "muted", role: "status" });
  const found = h("ol", { class: "found", hidden: true, ariaLabel: "Found lines" });
  const field = h("input", { type: "search", placeholder: "search the log", ariaLabel: "Search the log", size: "18", spellcheck: "false" });
  const all = h("input", { type: "checkbox", id: "search-all-ranks" });
  const every = h("label", { class: "tick row", htmlFor: "search-all-ranks" }, all, "all ranks");
  const form = h("form", { class: "row", role: "search", onsubmit: (event) => { event.preventDefault(); look(); } },
    field, every, h("button", { type: "submit" }, "Search"), said);

  async function look() {
    running.abort();
    running = new AbortController();
    const { signal } = running;
    const wanted = field.value.trim().toLowerCase();
    clear(found);
    found.hidden = true;
    said.textContent = "";
    if (!wanted) return;
    const { rank, epoch } = chosen();
    const asked = all.checked ? ranks().slice(0, RANKS_MAX) : [rank];
    const state = { lines: 0, read: 0, cut: all.checked && ranks().length > RANKS_MAX };
    said.textContent = "searching …";
    try {
      for (const each of asked) {
        await lookIn(each, epoch, wanted, state, signal);
        if (state.lines >= FOUND_MAX || state.read >= READ_MAX) {
          state.cut = true;
          break;
        }
      }
      said.textContent = `${count(state.lines, "line")} found${state.cut ? "; not all of the logs were read" : ""}`;
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof ApiError)) throw error;
      said.textContent = clean(error.reason);
    }
  }

  async function lookIn(rank, epoch, wanted, state, signal) {
    let end = null;
    for (;;) {
      const range = end === null ? `bytes=-${PART_BYTES}` : `bytes=${Math.max(0, end - PART_BYTES)}-${end - 1}`;
      let response;
      try {
        response = await request(address(rank, epoch), { signal, headers: { Range: range } });
      } catch (error) {
        if (error instanceof ApiError && (error.status === 416 || error.status === 404)) return; // nothing there, or no more
        throw error;
      }
      const from = Number(response.headers.get("X-Weft-Offset")) || 0;
      const begins = Number(response.headers.get("X-Weft-Begins")) || 0;
      const data = new Uint8Array(await response.arrayBuffer());
      state.read += data.length;
      // A line that began before this part belongs to the next one, which ends with it.
      const first = from > begins ? data.indexOf(10) + 1 : 0;
      if (data.length) report(rank, data, first, from, wanted, state);
      if (from <= begins || !data.length || state.lines >= FOUND_MAX || state.read >= READ_MAX) return;
      end = first > 0 ? from + first : from;
    }
  }

  // The matches of one part, the last first: the end of a log is what most people look for.
  function report(rank, data, first, from, wanted, state) {
    const decoder = new TextDecoder();
    let end = data.length;
    for (let at = data.length - 1; at >= first - 1 && state.lines < FOUND_MAX; at -= 1) {
      if (at >= first && data[at] !== 10) continue;
      const line = decoder.decode(data.subarray(at + 1, end)).replace(ESCAPES, "");
      if (line.toLowerCase().includes(wanted)) add(rank, from + at + 1, line, state);
      end = at;
      if (at < first) break;
    }
  }

  function add(rank, offset, line, state) {
    state.lines += 1;
    found.hidden = false;
    found.append(h("li", {}, h("button", { type: "button", class: "quiet", onclick: () => open(rank, offset) },
      h("span", { class: "muted" }, `rank ${rank} `), h("code", {}, clean(line.slice(0, LINE_SHOWN))))));
  }

  function address(rank, epoch) {
    const query = new URLSearchParams({ rank: String(rank) });
    if (epoch !== null) query.set("epoch", String(epoch));
    return `/v1/jobs/${encodeURIComponent(jobId)}/logs?${query}`;
  }

  return { form, found, close: () => running.abort() };
}
