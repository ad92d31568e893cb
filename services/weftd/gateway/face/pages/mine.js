// My work, the home page: what of the reader's tenant runs, waits, serves, failed and ended, each job in one row that says
// how it is, why, and when that changes.

import { selection } from "../bulk.js";
import { clean, count, duration, h, moment, percent, text } from "../dom.js";
import { paced } from "../pace.js";
import { failureText, repeat, slot } from "../parts.js";
import { HOLDING, bar, codeWords, emptyView, estimateBar, jobLink, stateChip, steps } from "../words.js";

const EVERY_MS = 10_000;
const EXPLAIN_MS = 60_000; // an explanation looks at every job of the pool
const EXPLAINED_MAX = 6; // running jobs whose end is asked for
const WAITING_MAX = 12; // the page of the queue has all
const RUNNING_MAX = 50;
const ASK_MS = 3000; // what waits and what ended is asked for at most so often
const SHOW_MS = 1000; // news of jobs is drawn at most so often
const ENDED_MAX = 20;
const ELEMENTS_ALONE_MAX = 2; // of one array, before they share a row
const ENDED_SECONDS = 7 * 86400; // older ones are on the page of the queue
const NOT_A_METRIC = new Set(["step", "steps", "total", "total_steps", "max_steps", "epoch", "epochs"]);
const FIRST_METRICS = ["loss", "val_loss", "accuracy", "reward"];

export function mount(root, { api, live, session, time, go, params, setParams }) {
  const ends = new Map(); // job id -> {at, eta}
  const known = { waiting: null, ended: null, trouble: "" };
  const select = selection(() => { kept.clear(); drawn = ""; work?.soon(); show(); });
  let kept = new Map(); // row -> {key, element}: one that did not change stays in the page
  let fresh = new Map();
  const said = slot("p", { class: "bad", role: "alert" });
  const lists = h("div", { class: "stack" });
  let drawn = "";
  let everyone = params.all === "1"; // an administrator looks at the work of all tenants
  let chosen = params.all !== undefined;
  const whose = h("button", { type: "button", hidden: true, onclick: () => look(!everyone, true) });
  root.append(h("div", { class: "stack mine" },
    h("div", { class: "page-head" }, h("h1", {}, "My work"), whose, h("span", { class: "grow" }),
      h("a", { class: "button primary", href: "#/new" }, "New job")),
    said.element, select.element, lists));

  let work = null; // begins with the first snapshot, which says who the reader is
  const tick = setInterval(show, EVERY_MS); // durations grow
  const showSoon = paced(show, SHOW_MS);
  const askSoon = paced(() => work?.soon(), ASK_MS);
  const forgets = [
    live.subscribe((change) => {
      if (!change || time.at !== null) return;
      if (!work) return begin();
      showSoon();
      if (change.whole || change.counts) askSoon(); // a job that only goes on asks for nothing
    }),
    time.subscribe(() => { drawn = ""; work?.soon(); show(); }),
  ];
  show();
  if (live.state) begin();

  function begin() {
    work = repeat(refresh, EVERY_MS);
    show();
  }

  function look(at, asked) {
    [everyone, chosen, drawn] = [at, chosen || asked, ""];
    Object.assign(known, { waiting: null, ended: null });
    if (asked) setParams({ all: everyone ? "1" : "0" });
    work.soon();
    show();
  }

  function query(more) {
    const asked = new URLSearchParams(more);
    if (session.admin && session.tenant && !everyone) asked.set("tenant", session.tenant); // a tenant sees its own alone
    return asked;
  }

  async function refresh(signal) {
    if (time.at !== null || !live.state) return;
    try {
      const [queue, ended] = await Promise.all([
        api(`/v1/queue?${query({ limit: WAITING_MAX, arrays: 1 })}`, { signal }),
        api(`/v1/jobs?${query({ state: "failed,succeeded,cancelled", limit: ENDED_MAX })}`, { signal }),
      ]);
      Object.assign(known, { waiting: queue, ended: ended.jobs, trouble: "" });
      show();
      await explain(signal);
    } catch (error) {
      if (signal.aborted) return;
      known.trouble = failureText(error);
    }
    show();
  }

  // When the first running jobs end.
  async function explain(signal) {
    const { running } = holding();
    for (const { id } of running.filter((job) => !arrayOf(job.id)).slice(0, EXPLAINED_MAX)) {
      if (performance.now() - (ends.get(id)?.at ?? -Infinity) < EXPLAIN_MS) continue;
      const told = await api(`/v1/jobs/${encodeURIComponent(id)}/explain`, { signal });
      ends.set(id, { at: performance.now(), eta: told.eta?.of === "end" ? told.eta : null });
    }
  }

  // The reader's jobs that hold something: services, and the others.
  function holding() {
    const mine = Object.entries(live.state?.jobs ?? {}).filter(([, job]) => job.mine || everyone).map(([id, job]) => ({ id, ...job }));
    const rank = (job) => HOLDING.indexOf(job.state);
    mine.sort((a, b) => rank(a) - rank(b) || b.since - a.since || (a.id < b.id ? -1 : 1));
    return { services: mine.filter((job) => job.service), running: mine.filter((job) => !job.service) };
  }

  function show() {
    said.show(known.trouble, (words) => (words ? `A part of this page is old: ${words}` : ""));
    if (time.at !== null) return put([h("section", { class: "panel" }, h("p", {}, "This page shows the present. ",
      h("a", { href: "#/cluster" }, "The cluster"), " and ", h("a", { href: "#/queue" }, "the queue"), " show the moment of the slider."))]);
    if (!live.state) return put([h("section", { class: "panel" }, h("p", { class: "muted" }, "…"))]);
    const { services, running } = holding();
    const now = live.now();
    const waiting = known.waiting?.rows ?? [];
    const ended = (known.ended ?? []).filter((job) => now - (job.ended_at ?? job.since) < ENDED_SECONDS);
    const failed = ended.filter((job) => job.state === "failed");
    const over = ended.filter((job) => job.state !== "failed");
    const beat = Math.floor((now * 1000) / EVERY_MS);
    const key = JSON.stringify([services, running, waiting, ended, [...ends].map(([id, one]) => [id, one.eta]), beat]);
    if (key === drawn) return;
    drawn = key;
    whose.hidden = !session.admin;
    whose.textContent = everyone ? "Show only mine" : "Show all tenants";
    if (known.waiting && !services.length && !running.length && !waiting.length && !ended.length) {
      if (session.admin && !chosen && !everyone) return look(true, false); // who only administers has no work of their own
      return put([welcome()]);
    }
    put([
      list("Running", running.length, grouped(running, now), "Nothing runs.", "#/queue?state=running"),
      list("Waiting", known.waiting?.total ?? 0, waiting.map((row) => reuse(row.id, [row, beat], () => waitingRow(row, now))), known.waiting ? "Nothing waits." : "…", "#/queue"),
      services.length && list("Services", services.length, services.slice(0, RUNNING_MAX).map((job) => reuse(job.id, [job, beat], () => serviceRow(job, now))), ""),
      failed.length && list("Failed", failed.length, failed.map((job) => reuse(job.id, [job, beat], () => endedRow(job, now))), "", "#/queue?state=failed"),
      over.length && list("Ended", over.length, over.map((job) => reuse(job.id, [job, beat], () => endedRow(job, now))), "", "#/queue?state=succeeded"),
    ]);
    [kept, fresh] = [fresh, new Map()];
  }

  function reuse(id, value, make) {
    const key = JSON.stringify(value);
    const old = kept.get(id);
    const element = old?.key === key ? old.element : make();
    fresh.set(id, { key, element });
    return element;
  }

  // The new lists; what had the focus keeps it.
  function put(sections) {
    const focused = lists.contains(document.activeElement) ? document.activeElement : null;
    const [link, label] = [focused?.getAttribute("href"), focused?.getAttribute("aria-label")];
    lists.replaceChildren(...sections.filter(Boolean));
    if (link) lists.querySelector(`a[href="${CSS.escape(link)}"]`)?.focus({ preventScroll: true });
    else if (label) lists.querySelector(`[aria-label="${CSS.escape(label)}"]`)?.focus({ preventScroll: true });
  }

  function welcome() {
    return h("section", { class: "panel" }, emptyView("No job of yours waits or runs",
      "Describe one on this page with New job, or start one from a terminal; it appears here at once.", "weft run --gpus 1 -- python train.py"));
  }

  function list(title, number, rows, none, all = "") {
    return h("section", { class: "panel work" },
      h("h2", { class: "row" }, title, h("span", { class: "muted" }, none === "…" ? "" : text(number)), h("span", { class: "grow" }),
        all && number > 0 && h("a", { class: "all", href: all, ariaLabel: `${title}: show all` }, "All")),
      rows.length ? h("ul", { class: "work-list" }, rows) : h("p", { class: "muted" }, none));
  }

  // Elements of one array share a row once there are several.
  function grouped(jobs, now) {
    const arrays = new Map();
    for (const job of jobs) {
      const array = arrayOf(job.id);
      if (array) arrays.set(array, [...(arrays.get(array) ?? []), job]);
    }
    const seen = new Set();
    const rows = [];
    for (const job of jobs) {
      if (rows.length === RUNNING_MAX) break; // the page of the queue has all
      const array = arrayOf(job.id);
      const elements = arrays.get(array) ?? [];
      if (elements.length <= ELEMENTS_ALONE_MAX) {
        rows.push(reuse(job.id, [job, ends.get(job.id)?.eta, Math.floor((now * 1000) / EVERY_MS)], () => runningRow(job, now)));
      } else if (!seen.has(array)) {
        seen.add(array);
        rows.push(arrayRow(array, job.name, elements));
      }
    }
    return rows;
  }

  function ownerWords(job) {
    return everyone ? `${clean(job.tenant)}: ` : "";
  }

  function arrayRow(array, name, elements) {
    return row({
      name: h("a", { class: "job", href: `#/queue?state=running&text=${encodeURIComponent(`${array}-`)}` }, h("bdi", {}, clean(name.replace(/-\d+$/, "")))),
      small: `array, ${count(elements.length, "element")} with ${count(elements.reduce((sum, one) => sum + one.gpus, 0), "GPU")}`,
      state: stateChip("running"), why: "",
    });
  }

  function runningRow(job, now) {
    const told = steps(job.progress);
    const done = told === null ? "" : told.part === null ? `step ${text(told.step)}` : bar(told.part, `${percent(told.part)}, step ${text(told.step)} of ${text(told.total)}`);
    const eta = ends.get(job.id)?.eta;
    return row({
      box: select.tick(job), name: jobLink(job.id, job.name), small: `${ownerWords(job)}${clean(job.kind)}, ${sizeWords(job)}`,
      state: [stateChip(job.state), h("span", { class: "muted" }, ` for ${duration(now - job.since)}`)],
      why: done, eta: eta ? estimateBar(eta, now, { before: "ends " }) : "", metric: metricWords(job.progress),
    });
  }

  function waitingRow(job, now) {
    const elements = Object.entries(job.elements ?? {}).map(([state, many]) => `${many} ${clean(state)}`).join(", ");
    return row({
      box: job.array ? null : select.tick(job),
      name: job.array ? h("a", { class: "job", href: `#/queue?text=${encodeURIComponent(`${arrayOf(job.id)}-`)}` }, h("bdi", {}, clean(job.name))) : jobLink(job.id, job.name),
      small: elements ? `${ownerWords(job)}array: ${elements}` : `${ownerWords(job)}${clean(job.kind)}, ${sizeWords(job)}`,
      state: [stateChip("queued"), h("span", { class: "muted" }, ` for ${duration(now - job.since)}`)],
      why: [h("span", {}, clean(job.sentence || codeWords(job.code || "submitted"))), job.sooner && h("span", { class: "ok" }, `Sooner: ${clean(job.sooner.sentence)}`)],
      eta: job.eta ? estimateBar(job.eta, now, { before: "starts " }) : "",
      metric: job.place ? `place ${text(job.place)}` : "",
    });
  }

  function serviceRow(job, now) {
    const { ready, wanted, rate, p_ms: latency, objective_ms: objective } = job.service;
    const late = latency !== null && objective !== null && latency > objective;
    return row({
      box: select.tick(job), name: jobLink(job.id, job.name), small: `${ownerWords(job)}service, ${sizeWords(job)}`,
      state: [stateChip(job.state), h("span", { class: "muted" }, ` for ${duration(now - job.since)}`)],
      why: wanted ? bar((ready ?? 0) / wanted, `${ready ?? "?"} of ${wanted} ready`) : "at zero: a request wakes it",
      eta: latency === null ? "" : h("span", { class: late ? "bad" : "muted" }, `answers in ${text(Math.round(latency))} ms${objective === null ? "" : ` of ${text(objective)} ms`}`),
      metric: rate === null ? "" : `${text(Math.round(rate * 10) / 10)} requests/s`,
    });
  }

  function endedRow(job, now) {
    const at = job.ended_at ?? job.since;
    const again = h("button", { type: "button", class: "small", onclick: () => go(`#/new?from=${encodeURIComponent(job.id)}`) }, "Clone");
    return row({
      box: select.tick(job), name: jobLink(job.id, job.name), small: `${ownerWords(job)}${clean(job.kind)}, ${sizeWords(job)}`,
      state: [stateChip(job.state), h("span", { class: "muted", title: moment(at) }, ` ${duration(now - at)} ago`)],
      why: h("span", { class: job.state === "failed" ? "bad" : "muted" }, endWords(job)),
      eta: h("span", { class: "muted" }, job.started_at ? `ran ${duration(at - job.started_at)}` : "never started"), metric: again,
    });
  }

  return {
    unmount() {
      work?.stop();
      clearInterval(tick);
      showSoon.end();
      askSoon.end();
      forgets.forEach((forget) => forget());
    },
  };
}

// One job: two lines on a narrow page.
function row({ box = null, name, small, state, why, eta = "", metric = "" }) {
  const cell = (kind, ...content) => h("div", { class: `work-${kind}` }, ...content);
  return h("li", { class: "work-row" }, cell("box", box), cell("name", name, h("small", { class: "muted" }, small)),
    cell("state", state), cell("why", why), cell("eta", eta), cell("metric", metric));
}

function sizeWords(job) {
  const holds = job.gpus ? count(job.gpus, "GPU") : "no GPU";
  return job.replicas > 1 ? `${holds} in ${count(job.replicas, "rank")}` : holds;
}

// The last of the numbers that the job reports: the one people look for first.
function metricWords(progress) {
  const names = Object.keys(progress ?? {}).filter((name) => !NOT_A_METRIC.has(name));
  const name = FIRST_METRICS.find((each) => names.includes(each)) ?? names[0];
  return name === undefined ? "" : `${clean(name)} ${text(progress[name])}`;
}

function endWords(job) {
  if (job.state === "succeeded") return "all ranks exited with 0";
  const cause = job.ended_for;
  if (cause?.sentence) return clean(cause.sentence);
  return job.exit_code === null || job.exit_code === undefined ? clean(cause?.code ?? job.state) : `exit status ${job.exit_code}`;
}

// The id of the array that a job is an element of; empty: it is none.
function arrayOf(id) {
  return /^a-/.test(id) ? id.slice(0, id.lastIndexOf("-")) : "";
}
