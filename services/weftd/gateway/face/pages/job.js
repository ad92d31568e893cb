// The page of one job: what it is, why it is where it is, what happened to it, how it goes, and what it writes.

import { ApiError, pagesOf } from "../api.js";
import { actionBar } from "../job/actions.js";
import { lineChart } from "../chart.js";
import { clean, count, duration, h, moment, percent, text } from "../dom.js";
import { NODES_MAX, progressView, ranksTable, verdictList } from "../job/holdings.js";
import { filesView } from "../job/files.js";
import { lastWords } from "../job/ending.js";
import { logView } from "../job/log.js";
import { metricsView } from "../job/metrics.js";
import { facts, failureText, repeat, scrolling, section, slot } from "../parts.js";
import { nodesAway, pastReasonsView, reasonsView } from "../job/reasons.js";
import { pointsOf } from "../job/samples.js";
import { some, storyView } from "../job/story.js";
import { terminalView } from "../job/terminal.js";
import { tabs } from "../tabs.js";
import { FINAL, emptyView, estimateBar, stateChip } from "../words.js";
import { toYaml } from "../job/yaml.js";

const EVERY_MS = 5000;
const EXPLAIN_MS = 10_000; // an explanation looks at every job of the pool: less often, unless the job changed
const SPANS = [["15 minutes", 900], ["1 hour", 3600], ["6 hours", 21600], ["1 day", 86400]];
const NODES_CHARTED_MAX = 4;
const GIB = 1024 ** 3;

export function mount(root, context) {
  const { api, live, time, params, setParams } = context;
  const known = { job: null, told: null, toldAt: -Infinity, story: [], version: -1, gpus: {}, seconds: SPANS[0][1] };

  const head = slot("div", {});
  const actions = actionBar(() => work.soon());
  const trouble = slot("div", { role: "alert" });
  const why = slot("div", {});
  const story = storyView();
  const ranks = slot("div", {});
  const verdicts = slot("div", {});
  const charts = chartsView(() => work.soon(), known);
  const metrics = metricsView(() => work.soon());
  const place = linked(params);
  const log = logView(params.id, place, ({ rank, epoch, byte }) => setParams({ tab: "logs", rank: rank || null, epoch, byte }));
  const files = filesView(params.id);
  const ending = lastWords(params.id, () => pages.show("logs"));
  const terminal = terminalView(params.id);
  const specification = specificationView();
  const pastNote = h("p", { class: "muted", hidden: true }, "The log has no past: this is its present state.");
  const whyBox = section("Why", why.element);
  const ranksBox = section("Ranks and GPUs", verdicts.element, ranks.element);
  const about = slot("div", {});
  const noMetrics = h("section", { class: "panel", hidden: true }, emptyView("Nothing was measured yet",
    "Numbers that a job reports appear here as curves. It reports them as lines in WEFT_PROGRESS, or from Python:", "weft.step(step, loss=loss)"));
  const pages = tabs("Parts of the job", {
    overview: ["Overview", h("div", { class: "job-top" }, h("div", { class: "stack" }, ending.element, whyBox), section("About it", about.element))],
    metrics: ["Metrics", h("div", { class: "stack" }, noMetrics, metrics.element, charts.element)],
    logs: ["Logs", section("Output", pastNote, log.element)],
    ranks: ["Ranks", ranksBox],
    terminal: ["Terminal", terminal.element],
    story: ["Story", section("Event history", story.element)],
    files: ["Files", files.element],
    spec: ["Spec", specification.element],
  }, { first: params.tab, onShow: (name) => {
    setParams({ tab: name === "overview" ? null : name });
    if (known.job) show(time.at);
    work.soon();
  } });
  const body = h("div", { class: "stack", hidden: true },
    h("section", { class: "job-head" }, head.element, actions.element), pages.element);
  root.append(h("div", { class: "stack" }, trouble.element, body));

  const work = repeat(refresh, EVERY_MS);
  const forget = [
    live.subscribe((change) => {
      if (change && known.job && (change.whole || change.jobs.includes(known.job.id))) work.soon();
    }),
    time.subscribe(() => {
      known.toldAt = -Infinity;
      work.soon();
    }),
  ];

  async function refresh(signal) {
    const path = `/v1/jobs/${encodeURIComponent(params.id)}`;
    const at = time.at;
    try {
      const job = await time.load(api(time.path(path), { signal }));
      if (at !== time.at) return;
      const changed = known.job?.version !== job.version || known.job?.state !== job.state;
      known.job = job;
      if (!known.told) show(at); // at once: an explanation in a long queue, and a long story, take longer
      await Promise.all([
        at === null && (changed || performance.now() - known.toldAt > EXPLAIN_MS) ? readReasons(path, signal) : null,
        job.version > known.version ? readStory(path, signal) : null,
        at === null ? readGpus(job, signal) : null,
      ]);
      if (at !== time.at) return;
      trouble.show("", () => []);
    } catch (error) {
      if (signal.aborted) return;
      trouble.show(failureText(error), (said) => h("section", { class: "panel" }, h("p", { class: "bad" }, notHere(error, said))));
      if (error instanceof ApiError && error.status === 404) {
        body.hidden = true;
        return;
      }
    }
    if (known.job) show(at);
    if (!known.job || at !== null || pages.shown !== "metrics") return;
    await charts.update(api, known.job, signal);
    if (!charts.element.hidden) await metrics.update(api, known.job, signal);
  }

  function notHere(error, said) {
    if (error.status === 404 && error.field === "at") return `${clean(error.reason)}.`;
    return error.status === 404 ? `There is no job ${clean(params.id)} that you may see.` : said;
  }

  async function readReasons(path, signal) {
    known.told = await api(`${path}/explain`, { signal });
    known.toldAt = performance.now();
  }

  async function readStory(path, signal) {
    const after = known.story.at(-1)?.cursor;
    for await (const page of pagesOf(`${path}/events${after ? `?after=${encodeURIComponent(after)}` : ""}`, { signal })) {
      for (const event of page) if (event.data) delete event.data.revisions; // large, and not shown
      known.story.push(...page);
    }
    known.version = known.story.at(-1)?.data?.version ?? known.version;
  }

  async function readGpus(job, signal) {
    const nodes = [...new Set((job.runs ?? []).filter((run) => run.gpus?.length).map((run) => run.node_id))].slice(0, NODES_MAX);
    const found = await Promise.all(nodes.map((node) => api(`/v1/gpus?node=${encodeURIComponent(node)}`, { signal })));
    known.gpus = Object.fromEntries(found.flatMap((view) => view.gpus).map((gpu) => [`${gpu.node_id}/${gpu.index}`, gpu]));
  }

  function show(at) {
    const { job, told } = known;
    const now = at ?? live.now();
    const isPast = at !== null;
    document.title = `${clean(job.name)} · Weft`;
    body.hidden = false;
    const end = !isPast && told?.eta?.of === "end" ? told.eta : null;
    head.show([job, end, isPast, Math.floor(now / 5)], () => headParts(job, end, now));
    about.show([job, Math.floor(now / 5)], () => aboutParts(job, now));
    actions.update(job, isPast);
    whyBox.firstElementChild.textContent = job.state === "queued" ? "Why it waits" : FINAL.has(job.state) ? "Why it ended" : "Why it runs there";
    if (isPast) why.show([job.version, "past"], () => pastReasonsView(job));
    else if (told) why.show([told, Math.floor(now / 15)], () => reasonsView(told, now));
    else why.show("asked", () => h("p", { class: "muted" }, clean(job.waiting_for?.sentence) || "…"));
    story.update(isPast ? known.story.filter((event) => event.data.version <= job.version) : known.story, { now, names: namesOf(known.story) });
    const runs = job.runs ?? [];
    terminal.update(job, isPast);
    const offered = { ranks: runs.length > 0, terminal: !terminal.element.hidden, metrics: !isPast, files: !isPast };
    pages.offer((name) => offered[name] ?? true);
    ranks.show([runs, known.gpus], () => ranksTable(runs, isPast || FINAL.has(job.state) ? {} : known.gpus)); // else another job's use
    verdicts.show([job.verdicts, Math.floor(now / 15)], () => verdictList(job.verdicts ?? [], now) ?? []);
    specification.update(job.spec);
    charts.element.hidden = isPast || (job.state === "queued" && !job.epoch);
    noMetrics.hidden = !charts.element.hidden;
    if (charts.element.hidden) metrics.element.hidden = true;
    pastNote.hidden = !isPast;
    ending.update(job, isPast);
    if (pages.shown === "logs") log.update(job, isPast);
    if (pages.shown === "files" && !isPast) files.update(job, now);
  }

  // The names of jobs that caused something here, as far as they hold anything now and may be seen.
  function namesOf(events) {
    const ids = new Set(events.map((event) => event.data?.cause?.by).filter((id) => live.state?.jobs[id]));
    return Object.fromEntries([...ids].map((id) => [id, live.state.jobs[id].name]));
  }

  function headParts(job, end, now) {
    const over = FINAL.has(job.state);
    const away = nodesAway((job.nodes ?? []).map((id) => live.node(id)).filter(Boolean));
    const since = over ? `${duration(now - (job.ended_at ?? job.since))} ago` : `for ${duration(now - job.since)}`;
    const start = job.state === "queued" && known.told?.eta?.of === "start" && time.at === null ? known.told.eta : null;
    return [
      h("div", { class: "row job-name" }, h("h1", {}, h("bdi", {}, clean(job.name))), stateChip(job.hung_since ? "hung" : job.state), h("span", { class: "muted" }, since)),
      h("p", { class: "muted" }, h("code", {}, clean(job.id)), ` · ${clean(job.kind)} · ${sizeWords(job)}`),
      job.state === "failed" && job.ended_for?.sentence ? h("p", { class: "verdict" }, clean(job.ended_for.sentence)) : null,
      h("div", { class: "job-progress" }, progressView(job.progress),
        end ? estimateBar(end, now, { before: "ends " }) : start ? estimateBar(start, now, { before: "starts " }) : null),
      away.length && !over ? h("p", { class: "warns" }, `${away.join("; ")}.`) : null,
    ];
  }

  function sizeWords(job) {
    return `${job.gpus ? count(job.gpus, "GPU") : "no GPU"} in ${count(job.replicas, "replica")}${job.nodes?.length ? ` on ${some(job.nodes)}` : ""}`;
  }

  function aboutParts(job, now) {
    const over = FINAL.has(job.state);
    return [facts([
      ["kind", clean(job.kind)],
      ["tenant", `${clean(job.tenant)}, pool ${clean(job.pool)}`],
      ["priority", `${job.priority}, ${job.preemptible ? "may be pre-empted" : "is never pre-empted"}`],
      [over || job.state === "queued" ? "GPUs" : "holds", sizeWords(job)],
      ["submitted", `${moment(job.submitted_at)}, ${duration(now - job.submitted_at)} ago${job.submitter ? `, by ${clean(job.submitter)}` : ""}`],
      [job.ended_at ? "ran" : "runs for", job.started_at ? duration((job.ended_at ?? now) - job.started_at) : ""],
      ["waits", job.not_before > now ? `try ${(job.attempts ?? 0) + 1} in ${duration(job.not_before - now)}` : ""],
      ["epoch", job.epoch || job.attempts ? `${job.epoch}, failed tries ${job.attempts ?? 0}${job.spec?.retries?.max !== undefined ? ` of ${job.spec.retries.max + 1}` : ""}` : ""],
      ["exit status", over && job.exit_code !== undefined && job.exit_code !== null ? text(job.exit_code) : ""],
      ["pace", paceOf(job)],
      ["address", job.service?.url ? h("code", {}, clean(job.service.url)) : ""],
    ])];
  }

  return {
    unmount() {
      work.stop();
      forget.forEach((each) => each());
      story.close();
      charts.close();
      metrics.close();
      log.close();
      files.close();
      ending.close();
      terminal.close();
    },
  };
}

// Where in the log a link leads to.
function linked(params) {
  const number = (name) => (/^\d{1,15}$/.test(params[name] ?? "") ? Number(params[name]) : undefined);
  return { rank: number("rank"), epoch: number("epoch"), byte: number("byte") };
}

// The pace of all ranks: steps a second of the slowest, samples a second of all together.
function paceOf(job) {
  const paces = (job.runs ?? []).map((run) => run.pace).filter(Boolean);
  if (!paces.length) return "";
  const slowest = paces.reduce((a, b) => (b.steps_rate < a.steps_rate ? b : a));
  const samples = paces.map((pace) => pace.samples_rate).filter((rate) => rate !== null && rate !== undefined);
  const parts = [`${text(slowest.steps_rate)} steps/s`, `${text(slowest.step_seconds)} s a step`];
  if (samples.length) parts.splice(1, 0, `${text(samples.reduce((sum, rate) => sum + rate, 0))} samples/s`);
  return parts.join(", ");
}

// The charts: figures over time, and the speed at each size that was measured.
function chartsView(changed, known) {
  const kinds = {
    pace: { title: "Pace of its slowest rank", unit: "steps/s", names: ["pace"], yMin: 0 },
    progress: { title: "Step that all ranks have reached", names: ["progress"] },
    cpus_used: { title: "CPU used by all ranks", unit: "cores", names: ["cpus_used"], yMin: 0 },
    memory_used: { title: "Memory used by all ranks", unit: "GiB", names: ["memory_used"], yMin: 0 },
    used: { title: "Use of its GPUs", format: (value) => percent(value), names: [], yMin: 0, yMax: 1 },
    rate: { title: "Requests", unit: "requests/s", names: ["rate"], yMin: 0 },
    p_ms: { title: "Time to the first byte", unit: "ms", names: ["p_ms"], yMin: 0 },
    replicas: { title: "Replicas", names: ["replicas"], yMin: 0, whole: true, steps: true },
  };
  const charts = Object.fromEntries(Object.entries(kinds).map(([name, kind]) => [name, lineChart(kind)]));
  const curve = lineChart({ title: "Speed at each size that was measured", x: "number", unit: "samples or steps/s", yMin: 0 });
  const speed = h("p", { class: "muted" });
  const span = h("select", { id: "chart-span", onchange: () => { known.seconds = Number(span.value); changed(); } },
    SPANS.map(([words, seconds]) => h("option", { value: String(seconds) }, `the last ${words}`)));
  const said = h("p", { class: "muted", role: "status" });
  const grid = h("div", { class: "panels" }, Object.values(charts).map((chart) => chart.element), curve.element);
  const element = h("section", { class: "panel" },
    h("div", { class: "row" }, h("h2", {}, "Speed and use"), h("label", { htmlFor: "chart-span" }, "show"), span), said, speed, grid);

  return {
    element,
    close: () => [...Object.values(charts), curve].forEach((chart) => chart.close()),
    async update(api, job, signal) {
      const points = (job.curve ?? []).filter((point) => Number.isFinite(point.speed));
      const sizes = new Set(points.map((point) => `${point.replicas}/${point.cpus}`)).size;
      curve.element.hidden = sizes < 2;
      speed.textContent = sizes === 1 ? `Measured at one size only: ${text(points[0].speed)} samples or steps/s with ${count(points[0].replicas, "replica")} and ${cpus(points[0].cpus)}.` : "";
      if (sizes > 1) curve.update(curveSeries(points));
      try {
        const found = await readSamples(api, job, known.seconds, signal);
        for (const [name, kind] of Object.entries(kinds)) {
          const series = name === "used" ? found.used : kind.names.filter((one) => found.job[one]).map((one) => ({ name: one, points: found.job[one], steps: kind.steps }));
          const any = series.some((one) => one.points.some((point) => point[1] !== null));
          charts[name].element.hidden = !any;
          if (any) charts[name].update(series, { from: beginOf(series, found.ends, known.seconds), to: found.ends });
        }
        const none = !points.length && Object.values(charts).every((chart) => chart.element.hidden);
        said.textContent = none ? (FINAL.has(job.state) || job.state === "queued" ? "It does not run, so there are no new measurements." : "Nothing has been measured yet.") : "";
      } catch (error) {
        if (!signal.aborted) said.textContent = `The charts are missing: ${failureText(error)}`;
      }
    },
  };
}

// Where a chart begins: not long before the first figure.
function beginOf(series, ends, seconds) {
  const first = Math.min(...series.flatMap((one) => one.points).filter((point) => point[1] !== null).map((point) => point[0]));
  return Math.max(ends - seconds, Math.min(first - 5, ends - 60));
}

async function readSamples(api, job, seconds, signal) {
  const own = await api(`/v1/samples?job=${encodeURIComponent(job.id)}&seconds=${seconds}`, { signal });
  const isIts = ([at]) => at >= (job.started_at ?? 0) && at <= (job.ended_at ?? Infinity); // before and after, others used the GPU
  const held = new Map();
  for (const run of job.runs ?? []) {
    if (run.gpus?.length) held.set(run.node_id, new Set([...(held.get(run.node_id) ?? []), ...run.gpus]));
  }
  const nodes = [...held].slice(0, NODES_CHARTED_MAX);
  const views = await Promise.all(nodes.map(([node]) => api(`/v1/samples?node=${encodeURIComponent(node)}&seconds=${seconds}`, { signal })));
  const used = views.flatMap((view, place) => [...nodes[place][1]].map((index) => ({
    name: `${nodes[place][0]} GPU ${index}`, points: pointsOf(view, view.series[`gpu.${index}.used`] ?? []).filter(isIts),
  })));
  const series = Object.fromEntries(Object.entries(own.series).map(([name, values]) => [name, pointsOf(own, values)]));
  if (series.memory_used) series.memory_used = series.memory_used.map(([at, value]) => [at, value === null ? null : value / GIB]);
  const steps_ = Math.max(0, ...Object.values(own.series).map((values) => values.length));
  return { job: series, used, ends: own.begins + (steps_ * own.step_seconds || seconds) };
}

function cpus(number) {
  return `${text(number)} CPU${number === 1 ? "" : "s"}`;
}

// The curve's points as series against replicas, one for each number of CPUs a replica; against CPUs if only they differ.
export function curveSeries(points) {
  const byCpus = new Set(points.map((point) => point.replicas)).size < 2;
  const groups = new Map();
  for (const point of points) {
    const each = point.replicas > 0 ? Math.round((point.cpus / point.replicas) * 100) / 100 : point.cpus;
    const name = byCpus ? `by CPUs, with ${count(point.replicas, "replica")}` : `by replicas, with ${cpus(each)} each`;
    groups.set(name, [...(groups.get(name) ?? []), [byCpus ? point.cpus : point.replicas, point.speed]]);
  }
  return [...groups].map(([name, found]) => ({ name, points: found.sort((a, b) => a[0] - b[0]), dots: true }));
}

// The specification as YAML. Values of the environment are often secrets: they are shown when they are asked for.
function specificationView() {
  const shown = h("code", {});
  let spec = null;
  let open = false;
  const reveal = h("button", { type: "button", ariaPressed: "false", onclick: () => {
    open = !open;
    reveal.setAttribute("aria-pressed", String(open));
    draw();
  } }, "Show values of the environment");
  const details = h("section", { class: "panel" }, h("div", { class: "row" }, h("h2", {}, "Specification"), reveal), scrolling("Specification as YAML", h("pre", {}, shown)));
  function draw() {
    reveal.hidden = !hasEnvironment(spec);
    shown.textContent = toYaml(open ? spec : withoutValues(spec));
  }
  return {
    element: details,
    update(now) {
      details.hidden = !now;
      if (!now || JSON.stringify(now) === JSON.stringify(spec)) return;
      spec = now;
      draw();
    },
  };
}

function hasEnvironment(spec) {
  return [spec, ...Object.values(spec?.roles ?? {})].some((part) => Object.keys(part?.env ?? {}).length > 0);
}

function withoutValues(spec) {
  const hidden = (part) => (part.env ? { ...part, env: Object.fromEntries(Object.keys(part.env).map((name) => [name, "(not shown)"])) } : part);
  const roles = spec.roles && Object.fromEntries(Object.entries(spec.roles).map(([name, role]) => [name, hidden(role)]));
  return { ...hidden(spec), ...(roles ? { roles } : {}) };
}
