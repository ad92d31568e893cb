// Services: how many requests come, how fast they are answered against the objective, with which replicas, and loans.

import { lineChart } from "../chart.js";
import { clean, clear, count, duration, h, text } from "../dom.js";
import { failureText, facts, repeat, slot } from "../parts.js";
import { causeText } from "../job/reasons.js";
import { pointsOf } from "../job/samples.js";
import { bar, commandToCopy, emptyView, jobLink, stateChip } from "../words.js";

const EVERY_MS = 5000;
const SHOWN = 12; // services with all their figures, at first and for each "more"
const LOANS_MAX = 5;
const SECONDS = 3600; // of the charts
const COST_SECONDS = 86400; // what a service costs is told of the last day
const COST_EVERY_MS = 60_000;

export function mount(root, { api, live, time }) {
  const heading = h("div", { class: "page-head" }, h("h1", {}, "Services"), h("span", { class: "grow" }), h("a", { class: "button primary", href: "#/new?template=service" }, "New service"));
  const none = slot("div");
  const costs = { at: -Infinity, rows: new Map(), currency: "" };
  const said = slot("p", { class: "muted", role: "status" });
  const list = h("div", { class: "panels services" });
  const more = h("button", { type: "button", hidden: true, onclick: () => { most += SHOWN; work.soon(); } });
  const cards = new Map();
  let most = SHOWN;
  root.append(h("div", { class: "stack" }, heading, said.element, none.element, list, more));

  const work = repeat(refresh, EVERY_MS);
  const forget = [
    time.subscribe(() => work.soon()),
    live.subscribe((change) => { if (change?.whole || change?.jobs.some((id) => cards.has(id) || live.state.jobs[id]?.service)) work.soon(); }),
  ];

  async function refresh(signal) {
    try {
      const at = time.at;
      const found = at === null ? await present(signal) : await past(signal);
      if (at === null) await readCosts(found.services, signal);
      if (at === time.at && !signal.aborted) show(found, at);
    } catch (error) {
      if (!signal.aborted) said.show(`Services cannot be shown: ${failureText(error)}`, (sentence) => sentence);
    }
  }

  // Those that hold resources come with the live stream, those that wait with the queue.
  async function present(signal) {
    const holding = Object.entries(live.state?.jobs ?? {}).filter(([, job]) => job.service);
    const queue = await api("/v1/queue?kind=inference&limit=200", { signal });
    const ids = [...new Set([...holding.sort(([, a], [, b]) => (b.service.rate ?? 0) - (a.service.rate ?? 0)).map(([id]) => id), ...queue.rows.map((row) => row.id)])];
    const seen = ids.slice(0, most);
    const views = await Promise.all(seen.map((id) => api(`/v1/jobs/${encodeURIComponent(id)}`, { signal }).catch((error) => {
      if (error.status === 404) return null;
      throw error;
    })));
    const services = views.filter((job) => job?.service);
    return { services, left: ids.length - seen.length };
  }

  // What each cost in the last day, where there is a price list. Without the figures the page is shown all the same.
  async function readCosts(services, signal) {
    if (!services.length || performance.now() - costs.at < COST_EVERY_MS) return;
    costs.at = performance.now();
    try {
      const view = await api(`/v1/usage?seconds=${COST_SECONDS}&by=job`, { signal });
      costs.currency = view.currency ?? "";
      costs.rows = new Map((view.rows ?? []).map((row) => [row.key, row]));
    } catch (error) {
      if (signal.aborted) throw error;
    }
  }

  async function past(signal) {
    const view = await time.load(api(time.path("/v1/cluster"), { signal }));
    return { services: [...view.running, ...view.queued].filter((job) => job.kind === "inference"), left: 0 };
  }

  function show({ services, left }, at) {
    const ids = new Set(services.map((job) => job.id));
    for (const [id, card] of cards) {
      if (ids.has(id)) continue;
      card.close();
      card.element.remove();
      cards.delete(id);
    }
    for (const job of services) {
      if (!cards.has(job.id)) {
        cards.set(job.id, serviceCard(api, job.id));
        list.append(cards.get(job.id).element);
      }
      cards.get(job.id).update(job, at ?? live.now(), at !== null, costWords(costs.rows.get(job.id)));
    }
    said.show([services.length, left, at], () => (services.length ? count(services.length + left, "service") : at === null ? "" : "No service waited or ran then."));
    none.show(!services.length && at === null, (isEmpty) => (isEmpty ? h("section", { class: "panel" }, emptyView("No service waits or runs",
      "A job with `service` in its specification has one address for all its replicas.", "weft submit service.yaml")) : []));
    more.hidden = left <= 0;
    more.textContent = `Show ${Math.min(left, SHOWN)} more of ${left}`;
  }

  function costWords(row) {
    if (!row) return "";
    const hours = `${text(Math.round(row.gpu_seconds_held / 36) / 100)} GPU-hours`;
    return `${hours}${row.cost ? `, ${Number(row.cost).toFixed(2)} ${clean(costs.currency)}` : ""} in the last day`;
  }

  return {
    unmount() {
      work.stop();
      forget.forEach((each) => each());
      cards.forEach((card) => card.close());
    },
  };
}

function serviceCard(api, id) {
  const content = slot("div");
  const chartBox = h("div", { class: "stack" });
  const details = h("details", {}, h("summary", {}, "The last hour"), chartBox);
  const call = slot("div");
  const calls = h("details", { hidden: true }, h("summary", {}, "Call it"), call.element);
  const element = h("section", { class: "panel" }, content.element, calls, details);
  let charts = null;
  let work = null;
  let objective = null;
  details.addEventListener("toggle", () => (details.open ? open() : close()));

  function open() {
    charts = {
      rate: lineChart({ title: "Requests", unit: "requests/s", yMin: 0, height: 120 }),
      p_ms: lineChart({ title: "Time to the first byte", unit: "ms", yMin: 0, height: 120 }),
      replicas: lineChart({ title: "Replicas", yMin: 0, whole: true, height: 100 }),
    };
    chartBox.append(...Object.values(charts).map((chart) => chart.element));
    work = repeat(draw, EVERY_MS);
  }
  function close() {
    work?.stop();
    Object.values(charts ?? {}).forEach((chart) => chart.close());
    charts = work = null;
    clear(chartBox);
  }
  async function draw(signal) {
    try {
      const view = await api(`/v1/samples?job=${encodeURIComponent(id)}&seconds=${SECONDS}`, { signal });
      const ends = view.begins + SECONDS;
      for (const [name, chart] of Object.entries(charts ?? {})) {
        const points = pointsOf(view, view.series[name] ?? []);
        const series = [{ name: name === "p_ms" ? "answered within" : name, points, steps: name === "replicas" }];
        if (name === "p_ms" && objective) series.push({ name: "objective", points: [[view.begins, objective], [ends, objective]] });
        chart.update(series, { from: view.begins, to: ends });
      }
    } catch (error) {
      if (!signal.aborted) clear(chartBox).append(h("p", { class: "bad" }, failureText(error)));
    }
  }

  return {
    element,
    close,
    update(job, now, isPast, cost = "") {
      objective = objectiveMs(job.service);
      details.hidden = isPast;
      const url = isPast ? "" : clean(job.service?.url ?? "");
      calls.hidden = !url;
      call.show([url, job.service?.public], () => (url ? callParts(url, job.service.public) : []));
      content.show([job, isPast, cost, Math.floor(now / 15)], () => cardParts(job, now, cost));
    },
  };
}

function cardParts(job, now, cost) {
  const service = job.service ?? {};
  const warnings = [
    ...(service.unready ?? []).map((one) => `Replica ${one.rank} is not ready: ${clean(one.why)}.`),
    service.unattainable && `Out of reach: ${clean(service.unattainable)}`,
    service.shedding && `Refuses requests: ${clean(service.shedding)}`,
    service.kept === false && !service.unattainable && "The objective is not kept.",
  ].filter(Boolean);
  return [
    h("h2", { class: "row" }, jobLink(job.id, job.name), stateChip(job.state)),
    warnings.map((sentence) => h("p", { class: "warns" }, sentence)),
    facts([
      ["requests", requestsText(service.requests)],
      ["latency", latencyView(service)],
      ["tokens", tokensText(service.requests?.tokens)],
      ["replicas", replicasView(service)],
      ["borrowed", loansView(service.loans ?? [], now)],
      ["sized for", service.sized_for ? causeText(service.sized_for) : ""],
      ["update", updateText(service, now)],
      ["waits for", job.state === "queued" && job.waiting_for ? causeText(job.waiting_for) : ""],
      ["cost", cost],
      ["address", service.url ? [commandToCopy(clean(service.url)), service.public ? " public: needs no token" : ""] : ""],
    ]),
  ];
}

// How a program calls it: the same address for curl, Python and clients of OpenAI's API.
function callParts(url, isPublic) {
  const base = url.replace(/\/$/, "");
  const curl = isPublic ? `curl ${base}/` : `curl -H "Authorization: Bearer $WEFT_TOKEN" ${base}/`;
  const headers = isPublic ? "" : `, headers={"Authorization": f"Bearer {os.environ['WEFT_TOKEN']}"}`;
  return [
    h("h3", {}, "curl"), commandToCopy(curl, { block: true }),
    h("h3", {}, "Python"), commandToCopy(`import os, requests\n\nprint(requests.get("${base}/"${headers}).text)`, { block: true }),
    h("h3", {}, "A client of OpenAI's API"), commandToCopy(`from openai import OpenAI\n\nclient = OpenAI(base_url="${base}/v1", api_key=os.environ["WEFT_TOKEN"])`, { block: true }),
  ];
}

function requestsText(requests) {
  if (!requests) return "no router reports it";
  const bad = ["refused", "failed", "late"].filter((name) => requests[name]).map((name) => `${requests[name]} ${name}`);
  const parts = [`${text(Math.round(requests.rate_now * 10) / 10)}/s`, `${requests.in_flight ?? 0} in flight`, `${requests.queued ?? 0} queued`, ...bad];
  return `${parts.join(", ")} (in the last ${duration(requests.seconds)})`;
}

function tokensText(tokens) {
  if (!tokens) return "";
  const { rate_in, rate_out, ttft, tpot, cached, kv_used, waiting } = tokens;
  return [
    `${Math.round(rate_in ?? 0)}/s in, ${Math.round(rate_out ?? 0)}/s out`,
    Number.isFinite(ttft) && `first token ${latency(ttft)}${Number.isFinite(tpot) ? `, then ${latency(tpot)} each` : ""}`,
    Number.isFinite(cached) && `${Math.round(100 * cached)} % of prompts cached`,
    Number.isFinite(kv_used) && `KV cache ${Math.round(100 * kv_used)} % used`,
    Number.isFinite(waiting) && `${waiting} wait in engines`,
  ].filter(Boolean).join(", ");
}

// The objective as a bar: full is where it is broken.
function latencyView(service) {
  const { objective, requests } = service;
  if (!objective) return requests?.p99 ? `p99 ${latency(requests.p99)}, no objective` : "no objective";
  const begins = objective.ttft ?? objective.latency;
  const promise = `${text(objective.percentile)} % within ${clean(begins)}`;
  const has = requests?.objective;
  if (has === null || has === undefined) return `${promise} is the objective; ${requests?.arrived ? "no answer was timed lately" : "nothing arrived lately"}`;
  const allowed = objectiveMs(service);
  return bar(allowed ? (has * 1000) / allowed : 0, `${latency(has)} of ${clean(begins)}, for ${text(objective.percentile)} % of requests`, { kind: service.kept === false ? "bad" : "" });
}

function objectiveMs(service) {
  const found = /^([0-9.]+)(ms|s|m|h|d)$/.exec(service?.objective?.ttft ?? service?.objective?.latency ?? "");
  return found ? Number(found[1]) * { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 }[found[2]] : null;
}

function replicasView(service) {
  if (service.wanted === undefined) return "unknown";
  if (!service.wanted && !service.granted) return `at zero (${service.least ?? 0} … ${service.most ?? 0})`;
  const ready = service.ready === null || service.ready === undefined ? "?" : service.ready;
  const more = [`${service.least ?? 0} … ${service.most ?? 0}`, service.draining ? `${service.draining} finish their requests` : ""].filter(Boolean).join(", ");
  return bar(service.wanted ? (service.ready ?? 0) / service.wanted : 0, `${ready} of ${service.wanted} ready (${more})`, { behind: service.wanted ? service.granted / service.wanted : 0 });
}

function loansView(loans, now) {
  if (!loans.length) return "";
  const items = loans.slice(0, LOANS_MAX).map((loan) => h("li", {}, `${count(loan.gpus, "GPU")} of `, jobLink(loan.lender, loan.name ?? ""),
    loan.ranks ? `, ${count(loan.ranks, "rank")} of it left` : ", which waits until the loan ends", loan.since ? `, for ${duration(now - loan.since)}` : ""));
  return h("ul", {}, items, loans.length > LOANS_MAX ? h("li", {}, `and ${loans.length - LOANS_MAX} more`) : "");
}

function updateText(service, now) {
  if (!service.update) return service.revision ? `revision ${service.revision}` : "";
  const { replaced, replicas, revision, since } = service.update;
  return `${replaced} of ${count(replicas, "replica")} run revision ${revision}, asked for ${duration(now - since)} ago`;
}

function latency(seconds) {
  return seconds < 1 ? `${Number((seconds * 1000).toPrecision(3))}ms` : `${Number(seconds.toPrecision(3))}s`;
}
