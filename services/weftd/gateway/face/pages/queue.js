// The queue page: jobs in the current order, with the reason and the estimate, and what would help the chosen one. Rows
// are virtual: only those in sight are in the page, and only the windows around them are asked for.

import { selection } from "../bulk.js";
import { queueDetail } from "./detail.js";
import { clean, clock, count, duration, h, moment, text } from "../dom.js";
import { paced } from "../pace.js";
import { STATES, emptyView, jobLink, rangeWords, stateChip } from "../words.js";

const WINDOW = 50; // rows per request
const WINDOWS_MAX = 12; // kept in memory
const BEYOND = 6; // rows drawn above and below those in sight
const REFRESH_MS = 1000;
const RETRY_MS = 3000; // after a request that failed, the next one
const TYPING_MS = 100; // between two requests while a filter is typed: the first key asks at once
const FILTERS = ["tenant", "kind", "state", "label", "text"];
const KINDS = ["training", "inference", "notebook", "batch"];
const COLUMNS = ["Place", "Job", "Tenant", "Kind", "GPUs", "Waits", "Start", "Why"];

export function mount(root, { api, live, session, time, go, params, setParams }) {
  const filters = Object.fromEntries(FILTERS.map((name) => [name, params[name] || ""]));
  let windows = new Map(); // number of the window -> its rows
  let drawn = new Map(); // place -> {row, key, element}: what did not change stays in the page
  let asked = new Map(); // number of the window -> what ends its request
  let total = 0;
  let order = "";
  let rowHeight = 46; // px; by the width of the page
  let active = -1; // the row that the keyboard is on
  let generation = 0; // of filters and moment: an answer to an older question is dropped
  let failure = "";
  let retry = null; // while this timer runs, nothing is asked for
  let refused = false; // these filters are: nothing is asked for until they change

  let byTenant = null;
  const said = h("p", { class: "muted queue-said", role: "status" });
  const body = h("div", { class: "queue-body", role: "rowgroup" });
  const head = h("div", { class: "queue-head", role: "rowgroup" }, h("div", { class: "queue-row", role: "row", ariaRowindex: 1 },
    COLUMNS.map((name) => h("span", { role: "columnheader", class: name === "Start" && "cell-eta" }, name))));
  const grid = h("div", {
    class: "queue-grid", role: "grid", tabindex: "0", ariaLabel: "The queue", ariaColcount: COLUMNS.length,
    onscroll: paintSoon, onkeydown: keyed, onfocus: () => { if (active < 0 && total) activate(0); },
  }, head, body);
  const detail = queueDetail({ api, live, time });
  const nothing = h("div", { hidden: true }, emptyView("Nothing waits", "A job that has no GPUs yet stands here, with the reason.", "weft run --gpus 1 -- python train.py"));
  const selected = selection(() => {
    drawn.forEach(({ element: old }) => old.remove()); // the boxes are drawn anew
    drawn = new Map();
    refresh();
    paintSoon();
  });
  const element = h("section", { class: "queue" },
    h("div", { class: "page-head" }, h("h1", {}, "Queue"), said, h("span", { class: "grow" }), h("a", { class: "button primary", href: "#/new" }, "New job")),
    filterBar(), selected.element, nothing, grid, detail.element);
  root.append(element);

  let frame = 0;
  const refresh = paced(() => { if (!document.hidden) load(true); }, REFRESH_MS);
  const refilter = paced(() => { setParams(filters); begin(); }, TYPING_MS);
  const watch = new ResizeObserver(() => {
    measure();
    if (active >= 0) bringIntoSight();
    paintSoon();
  });
  watch.observe(grid);
  const tick = setInterval(paintSoon, 5000); // waits grow
  const forgets = [
    live.subscribe((change) => {
      if (change && time.at === null && (change.whole || change.counts || change.jobs.length)) refresh();
    }),
    time.subscribe(begin),
  ];
  addEventListener("visibilitychange", refresh);
  begin();

  function begin() {
    generation += 1;
    for (const request of asked.values()) request.abort();
    windows = new Map();
    asked = new Map();
    [total, active, failure] = [0, -1, ""];
    clearTimeout(retry);
    [retry, refused] = [null, false];
    grid.scrollTop = 0;
    grid.removeAttribute("aria-activedescendant");
    load(false);
  }

  // Asks for the windows in sight; `anew`: also for those that are there, which stay in sight until the answer comes.
  function load(anew, { from, to } = sight()) {
    if (retry !== null || refused) return;
    const [firstWindow, lastWindow] = [Math.floor(from / WINDOW), Math.floor(Math.max(from, to - 1) / WINDOW)];
    for (const number of [...windows.keys()]) {
      const far = number < firstWindow - 1 || number > lastWindow + 1;
      if (far && (anew || windows.size > WINDOWS_MAX)) windows.delete(number);
    }
    for (const [number, request] of asked) {
      if (number < firstWindow || number > lastWindow) request.abort(); // scrolled past
    }
    for (let number = firstWindow; number <= lastWindow; number += 1) {
      if ((anew || !windows.has(number)) && !asked.has(number)) ask(number);
    }
  }

  async function ask(number) {
    const mine = generation;
    const request = new AbortController();
    asked.set(number, request);
    try {
      const view = await (time.at === null ? queueNow(number, request.signal) : queueThen(number, request.signal));
      if (mine !== generation) return;
      windows.set(number, sameRows(windows.get(number), view.rows));
      [total, order, failure] = [view.total, view.order, ""];
    } catch (error) {
      if (mine !== generation || request.signal.aborted) return;
      failure = error.message;
      refused = error.status >= 400 && error.status < 500 && error.status !== 429;
      retry ??= setTimeout(() => { retry = null; load(true); }, Math.max(RETRY_MS, 1000 * (error.retry || 0)));
    } finally {
      if (mine === generation && asked.get(number) === request) asked.delete(number);
    }
    paintSoon();
  }

  // One window. Of long rows the gateway sends fewer at a time: it is asked again until the window is full.
  async function queueNow(number, signal) {
    const rows = [];
    for (;;) {
      const query = new URLSearchParams({ offset: number * WINDOW + rows.length, limit: WINDOW - rows.length });
      for (const name of FILTERS) if (filters[name]) query.set(name, filters[name]);
      if (!filters.text) query.set("arrays", "1"); // a text may name elements
      const view = await api(`/v1/queue?${query}`, { signal });
      rows.push(...view.rows);
      if (!view.rows.length || rows.length >= WINDOW || number * WINDOW + rows.length >= view.total) return { ...view, rows };
    }
  }

  // Of the past the API has the first waiting jobs only; they are filtered here.
  async function queueThen(number, signal) {
    const view = await time.load(api(time.path("/v1/cluster"), { signal }));
    const all = [...view.running, ...view.queued].filter((job) => fits(job, filters));
    const rows = all.map((job, place) => ({ ...job, ...rowThen(job), place: place + 1 }));
    return { rows: rows.slice(number * WINDOW, (number + 1) * WINDOW), total: rows.length, order: "" };
  }

  // Drawing

  function measure() {
    rowHeight = parseFloat(getComputedStyle(grid).getPropertyValue("--row")) || rowHeight;
  }

  function sight() {
    const from = Math.max(0, Math.floor(grid.scrollTop / rowHeight) - BEYOND);
    return { from, to: Math.min(Math.max(total, 1), from + Math.ceil(grid.clientHeight / rowHeight) + 2 * BEYOND) };
  }

  function paintSoon() {
    if (!frame) frame = requestAnimationFrame(paint);
  }

  function paint() {
    frame = 0;
    const view = sight(); // measured before anything is changed: the browser lays the page out once
    const { from, to } = view;
    const now = time.at ?? live.now();
    body.style.height = `${total * rowHeight}px`;
    grid.setAttribute("aria-rowcount", total + 1);
    if (active >= total) active = total - 1;
    const before = drawn;
    drawn = new Map();
    for (let place = from; place < Math.min(to, total); place += 1) {
      const row = rowOf(place);
      const key = `${place === active} ${rowHeight} ${row && duration(now - row.since)} ${row?.eta && rangeWords(row.eta, now)}`;
      const known = before.get(place);
      const same = known && known.row === row && known.key === key;
      drawn.set(place, same ? known : { row, key, element: rowElement(row, place, now) });
      if (!same) body.append(drawn.get(place).element);
    }
    for (const [place, { element: old }] of before) if (drawn.get(place)?.element !== old) old.remove();
    if (active >= from && active < to) grid.setAttribute("aria-activedescendant", `row-${active}`);
    else grid.removeAttribute("aria-activedescendant");
    detail.show(active < 0 ? null : rowOf(active) || null);
    said.textContent = saidWords();
    nothing.hidden = total > 0 || asked.size > 0 || Boolean(failure) || time.at !== null || FILTERS.some((name) => filters[name]);
    byTenant.hidden = !session.admin; // a tenant sees its own jobs only
    grid.classList.toggle("no-start", ![...windows.values()].some((rows) => rows.some((row) => row.eta)));
    load(false, view);
  }

  function rowOf(place) {
    return windows.get(Math.floor(place / WINDOW))?.[place % WINDOW];
  }

  function rowElement(row, place, now) {
    const cells = row ? cellsOf(row, now, row.array || time.at !== null ? null : selected.tick(row)) : [h("span", { role: "gridcell" }, "…")];
    const made = h("div", {
      class: `queue-row${place === active ? " active" : ""}`, role: "row", id: `row-${place}`, ariaRowindex: place + 2,
      ariaSelected: place === active, onclick: () => activate(place), ondblclick: () => row && open(row),
    }, cells);
    made.style.transform = `translateY(${place * rowHeight}px)`;
    return made;
  }

  function saidWords() {
    if (failure) return `The gateway does not show the queue: ${failure}`;
    if (!total) return asked.size ? "…" : emptyWords(filters, session.admin);
    const arrays = [...windows.values()].some((rows) => rows.some((row) => row.array)); // each of them is one row
    const many = arrays && total > 1 ? `${text(total)} jobs and arrays` : arrays ? "1 array" : count(total, "job");
    const what = filters.state && filters.state !== "queued" ? many : `${many} wait${total === 1 ? "s" : ""}`;
    if (time.at !== null) return `${count(total, "job")} as of ${moment(time.at)}: the first hundred of those that waited, and of those that ran`;
    return `${what}, in the current order${order ? ` (${clean(order)})` : ""}`;
  }

  // Keyboard

  function activate(place) {
    active = Math.max(0, Math.min(total - 1, place));
    bringIntoSight();
    paintSoon();
  }

  function bringIntoSight() {
    const [top, bottom] = [active * rowHeight, (active + 1) * rowHeight];
    const room = grid.clientHeight - head.offsetHeight;
    if (top < grid.scrollTop) grid.scrollTop = top;
    else if (bottom > grid.scrollTop + room) grid.scrollTop = bottom - room;
  }

  function keyed(event) {
    if (event.target !== grid || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor(grid.clientHeight / rowHeight) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key in steps) activate(Math.max(0, Math.min(total - 1, active + steps[event.key])));
    else if (event.key === "Enter") {
      const row = rowOf(active);
      if (row) open(row);
    } else return;
    event.preventDefault();
  }

  function open(row) {
    if (row.array) go(`#/queue?text=${encodeURIComponent(`${row.id.slice(0, row.id.lastIndexOf("-"))}-`)}`);
    else go(`#/job/${encodeURIComponent(row.id)}`);
  }

  function filterBar() {
    const change = (name) => (event) => {
      filters[name] = event.target.value.trim();
      refilter();
    };
    const choice = (name, none, options) => h("select", { id: `by-${name}`, onchange: change(name) },
      h("option", { value: "" }, none), options.map((each) => h("option", { value: each, selected: each === filters[name] }, each)));
    const field = (name, placeholder) => h("input", {
      id: `by-${name}`, type: "search", placeholder, value: filters[name], oninput: change(name), size: "14", spellcheck: "false",
    });
    const labelled = (name, words, control) => h("span", { class: "filter" }, h("label", { htmlFor: `by-${name}` }, words), control);
    byTenant = labelled("tenant", "Tenant", field("tenant", "any"));
    return h("div", { class: "row filters", role: "search", ariaLabel: "Filters of the queue" },
      labelled("text", "Text", field("text", "name or id")), byTenant,
      labelled("kind", "Kind", choice("kind", "any", KINDS)), labelled("state", "State", choice("state", "waiting", STATES)),
      labelled("label", "Label", field("label", "key=value")));
  }

  return {
    unmount() {
      generation += 1;
      for (const request of asked.values()) request.abort();
      cancelAnimationFrame(frame);
      clearInterval(tick);
      clearTimeout(retry);
      detail.end();
      refresh.end();
      refilter.end();
      watch.disconnect();
      removeEventListener("visibilitychange", refresh);
      forgets.forEach((forget) => forget());
    },
  };
}

function cellsOf(row, now, box) {
  const cell = (name, ...content) => h("span", { role: "gridcell", class: `cell-${name}` }, ...content);
  const waits = row.state === "queued" || !row.state;
  return [
    cell("place", box, row.place ? text(row.place) : ""),
    cell("job", row.array ? arrayLink(row) : jobLink(row.id, row.name), waits || row.array ? null : stateChip(row.hung_since ? "hung" : row.state)),
    cell("tenant", clean(row.tenant)),
    cell("kind", clean(row.kind), row.priority ? h("small", {}, `priority ${row.priority}`) : null),
    cell("gpus", text(row.gpus), h("span", { class: "unit" }, row.gpus === 1 ? " GPU" : " GPUs"),
      row.replicas > 1 ? h("small", {}, `in ${row.replicas} ranks`) : null),
    cell("since", h("span", { class: "unit" }, waits ? "waits " : "for "), h("time", { title: `since ${clock(row.since)}` }, duration(now - row.since))),
    cell("eta", row.eta ? startOf(row.eta, now) : ""),
    cell("why", h("span", { class: "why", title: clean(row.sentence) }, clean(row.sentence)),
      row.sooner ? h("span", { class: "sooner", title: clean(row.sooner.sentence) }, `Sooner: ${clean(row.sooner.sentence)}`) : null),
  ];
}

// An array: its name, its elements by state, and the way to them.
function arrayLink(row) {
  const counts = Object.entries(row.elements || {}).map(([state, many]) => `${many} ${clean(state)}`);
  const text = `${row.id.slice(0, row.id.lastIndexOf("-"))}-`;
  return h("a", { class: "job array", href: `#/queue?text=${encodeURIComponent(text)}`, title: clean(row.array) },
    h("bdi", {}, clean(row.name)), h("small", {}, counts.length ? ` array: ${counts.join(", ")}` : " array"));
}

// The new rows; those that did not change are the same objects as before.
function sameRows(before, rows) {
  return rows.map((row, place) => {
    const known = before?.[place];
    return known && JSON.stringify(known) === JSON.stringify(row) ? known : row;
  });
}

function startOf(eta, now) {
  const [likely, range] = rangeWords(eta, now).split(" (");
  return h("span", { title: clean(eta.sentence) }, likely, range ? h("small", {}, `(${range}`) : null);
}

function emptyWords(filters, admin) {
  if (FILTERS.some((name) => filters[name])) return "No job fits these filters.";
  return admin ? "Nothing waits: every job that was submitted has its GPUs." : "None of your jobs waits.";
}

// The same filters as the gateway's, for a moment of the past.
function fits(job, filters) {
  const [key, value] = filters.label.split("=");
  return job.state === (filters.state || "queued") && (!filters.tenant || job.tenant === filters.tenant) &&
    (!filters.kind || job.kind === filters.kind) && (!filters.label || job.spec?.labels?.[key] === value) &&
    (!filters.text || `${job.name} ${job.id}`.toLowerCase().includes(filters.text.toLowerCase()));
}

function rowThen(job) {
  return { code: job.waiting_for?.code || "", sentence: job.waiting_for?.sentence || "", labels: {} };
}
