// The numbers that a job reported, as curves; those of other jobs are drawn over them.

import { lineChart } from "../chart.js";
import { clean, h } from "../dom.js";
import { failureText } from "../parts.js";
import { FINAL } from "../words.js";

const POINTS = 500;
const EVERY_MS = 10_000;
const CHARTS_MAX = 12;
const OTHERS_MAX = 7;
const COUNTERS = new Set(["step", "steps"]);

// `{element, update(api, job, signal), close}`; `changed` is called when other jobs are named.
export function metricsView(changed) {
  const charts = new Map(); // by the name of the metric and its axis
  let read = { at: -Infinity, of: "" };
  const others = h("input", { id: "metrics-of", type: "text", autocomplete: "off", onchange: changed });
  const said = h("p", { class: "muted", role: "status" });
  const grid = h("div", { class: "panels" });
  const sweep = h("a", { hidden: true, href: "#/queue" }, "its sweep");
  const element = h("section", { class: "panel", hidden: true },
    h("div", { class: "row" }, h("h2", {}, "Reported metrics"), h("label", { htmlFor: "metrics-of" }, "with the jobs"), others, sweep), said, grid);

  function draw(views) {
    const drawn = seriesOf(views);
    const wanted = new Set([...drawn.keys()].slice(0, CHARTS_MAX));
    for (const [key, chart] of charts) {
      if (wanted.has(key)) continue;
      chart.close();
      chart.element.remove();
      charts.delete(key);
    }
    for (const key of wanted) {
      const { name, x, series } = drawn.get(key);
      if (!charts.has(key)) {
        charts.set(key, lineChart({ title: clean(name), x, xLabel: x === "number" ? "step" : "" }));
        grid.append(charts.get(key).element);
      }
      charts.get(key).update(series);
    }
    return drawn.size;
  }

  return {
    element,
    close: () => charts.forEach((chart) => chart.close()),
    async update(api, job, signal) {
      const array = job.spec?.element?.array;
      sweep.hidden = !array;
      if (array) sweep.href = `#/sweep/${encodeURIComponent(array)}`;
      const named = others.value.split(/[\s,]+/).filter(Boolean).slice(0, OTHERS_MAX);
      const reports = Object.keys(job.progress ?? {}).some((name) => !COUNTERS.has(name));
      if (!reports && !named.length) return; // nothing is asked for of a job that reports nothing
      const of = JSON.stringify([job.state, job.epoch, named]);
      if (of === read.of && (FINAL.has(job.state) || performance.now() - read.at < EVERY_MS)) return;
      read = { at: performance.now(), of };
      const views = [];
      const failures = [];
      for (const one of [job.id, ...named]) {
        try {
          const view = await api(`/v1/jobs/${encodeURIComponent(one)}/metrics?points=${POINTS}`, { signal });
          views.push({ label: one === job.id ? job.name : one, view: { at: [], series: {}, ...view } }); // empty fields are left out
        } catch (error) {
          if (signal.aborted) {
            read.of = "";
            return;
          }
          if (one !== job.id) failures.push(`${one}: ${failureText(error)}`);
        }
      }
      const found = draw(views);
      element.hidden = !found && !named.length;
      const more = found > CHARTS_MAX ? [`${found - CHARTS_MAX} more metrics are not drawn: weft metrics has them.`] : [];
      said.textContent = [...failures, ...more].join(" ");
    },
  };
}

// By metric and axis: `{name, x, series}`. The axis is the step where every job that has the metric reports steps.
export function seriesOf(views) {
  const found = new Map();
  const names = new Set(views.flatMap(({ view }) => Object.keys(view.series)).filter((name) => !COUNTERS.has(name)));
  for (const name of [...names].sort()) {
    const having = views.filter(({ view }) => view.series[name]);
    const x = having.every(({ view }) => view.series.step) ? "number" : "clock";
    const series = having.map(({ label, view }) => ({ name: label, points: pointsBy(x === "number" ? view.series.step : view.at, view.series[name]) }));
    found.set(`${x}/${name}`, { name, x, series });
  }
  return found;
}

// A report without the value or the step is no gap: other metrics came in between. A try that began again goes back.
function pointsBy(xs, values) {
  return xs.map((x, place) => [x, values[place]]).filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y)).sort((a, b) => a[0] - b[0]);
}
