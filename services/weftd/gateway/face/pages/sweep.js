// The page of a sweep: its elements as lines over the axes of their values, and as a table.

import { clean, clear, count, h, svg, text } from "../dom.js";
import { facts, failureText, repeat, scrolling, section } from "../parts.js";
import { parallelView, ranked } from "../sweep/parallel.js";
import { FINAL, jobLink, stateChip } from "../words.js";

const EVERY_MS = 10_000;
const PAGES_MAX = 5; // of a hundred elements each
const SPARK = { width: 110, height: 22 };

export function mount(root, { api, params, setParams }) {
  loadStyle();
  const chosen = { metric: params.metric ?? "", goal: params.goal ?? "", sort: params.sort ?? "" };
  const title = h("h1", {}, "Sweep");
  const said = h("p", { class: "muted", role: "status" });
  const metric = h("input", { id: "sweep-metric", type: "text", value: chosen.metric, autocomplete: "off", placeholder: "as it is compared", onchange: choose });
  const goal = select("sweep-goal", [["", "as the sweep says"], ["min", "less is better"], ["max", "more is better"]], chosen.goal);
  const sort = select("sweep-sort", [["", "Best metric"], ["index", "Index"]], chosen.sort);
  const head = h("div", {});
  const lines = parallelView();
  const rows = h("div", {});
  const body = h("div", { class: "stack", hidden: true },
    section("Parallel coordinates", lines.element), section("Elements", h("div", { class: "row" }, h("label", { htmlFor: "sweep-sort" }, "in the order of"), sort), rows));
  root.append(h("div", { class: "stack" },
    h("section", { class: "panel" }, title, head,
      h("div", { class: "row" }, h("label", { htmlFor: "sweep-metric" }, "Metric"), metric, h("label", { htmlFor: "sweep-goal" }, "where"), goal), said), body));
  let shown = null;
  const work = repeat(refresh, EVERY_MS);

  function select(id, options, value) {
    const made = h("select", { id, onchange: choose }, options.map(([one, words]) => h("option", { value: one, selected: one === value }, words)));
    return made;
  }

  function choose() {
    Object.assign(chosen, { metric: metric.value.trim(), goal: goal.value, sort: sort.value });
    setParams(chosen);
    if (shown) drawRows();
    work.soon();
  }

  async function refresh(signal) {
    try {
      shown = await readSweep(api, params.id, chosen, signal);
    } catch (error) {
      if (signal.aborted) return;
      said.textContent = error.status === 404 ? `There is no array ${clean(params.id)} that you may see.` : failureText(error);
      said.className = "bad";
      return;
    }
    said.className = "muted";
    title.textContent = clean(shown.name);
    document.title = `${clean(shown.name)} · Weft`;
    const best = ranked(shown.rows, shown.goal)[0];
    const over = shown.rows.filter((row) => FINAL.has(row.state)).length;
    clear(head).append(facts([
      ["array", h("code", {}, clean(shown.id))],
      ["elements", `${shown.rows.length}${shown.next ? " and more, which are not shown" : ""}, ${over} over`],
      ["best", best?.best === undefined || best?.best === null ? "none has reported a metric" : `${clean(shown.metric)} ${text(best.best)}, of element ${best.index}`],
    ]));
    said.textContent = shown.metric ? `Compared by ${clean(shown.metric)}: ${shown.goal === "max" ? "more" : "less"} is better.` : "No element has reported a metric so far.";
    body.hidden = false;
    lines.update(shown);
    drawRows();
  }

  function drawRows() {
    const names = [...new Set(shown.rows.flatMap((row) => Object.keys(row.values ?? {})))];
    const order = chosen.sort === "index" ? [...shown.rows].sort((a, b) => a.index - b.index) : ranked(shown.rows, shown.goal);
    const best = ranked(shown.rows, shown.goal).find((row) => row.best !== undefined && row.best !== null);
    const heads = ["element", ...names.map(clean), "state", "best", "last", "curve", "why it ended"];
    const line = (row) => [
      jobLink(row.id, `${shown.name} ${row.index}`), ...names.map((name) => clean(row.values?.[name] ?? "")), stateChip(row.state),
      number(row.best), number(row.last), spark(row.curve ?? []), clean(row.ended_for?.sentence ?? ""),
    ];
    const caption = `${count(shown.rows.length, "element")} of ${clean(shown.name)}`;
    const made = h("table", { class: "table" },
      h("caption", { class: "hidden-text" }, caption),
      h("thead", {}, h("tr", {}, heads.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, order.map((row) => h("tr", { class: row === best && "sweep-best" }, line(row).map((cell, place) => h(place ? "td" : "th", { scope: place ? null : "row", dataset: { head: heads[place] } }, cell))))));
    clear(rows).append(scrolling(caption, made));
  }

  return {
    unmount() {
      work.stop();
      lines.close();
    },
  };
}

// The view with the rows of all pages that are read; empty fields are left out of an answer.
async function readSweep(api, id, { metric, goal }, signal) {
  const query = new URLSearchParams(Object.entries({ metric, goal }).filter(([, value]) => value));
  const found = { metric: "", goal: "min", rows: [], next: 0 };
  for (let page = 0; page < PAGES_MAX && (page === 0 || found.next); page += 1) {
    if (found.next) query.set("after", found.next);
    const view = await api(`/v1/arrays/${encodeURIComponent(id)}/sweep?${query}`, { signal });
    Object.assign(found, { ...view, metric: view.metric ?? "", goal: view.goal ?? "min", next: view.next ?? 0, rows: [...found.rows, ...(view.rows ?? [])] });
    if (!query.has("metric") && found.metric) query.set("metric", found.metric); // all pages compare the same
  }
  return found;
}

function number(value) {
  return value === undefined || value === null ? "" : text(value);
}

function spark(curve) {
  const values = curve.filter(Number.isFinite);
  if (values.length < 2) return "";
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const y = (value) => (high > low ? SPARK.height - 2 - ((value - low) / (high - low)) * (SPARK.height - 4) : SPARK.height / 2);
  const points = values.map((value, place) => `${((place * SPARK.width) / (values.length - 1)).toFixed(1)},${y(value).toFixed(1)}`);
  return svg("svg", { class: "spark", width: SPARK.width, height: SPARK.height, role: "img", "aria-label": `from ${text(values[0])} to ${text(values.at(-1))}` },
    svg("polyline", { points: points.join(" ") }));
}

// Its own style sheet, once, from beside this module: the first page that a person sees does without it.
function loadStyle() {
  const href = new URL("../sweep/sweep.css", import.meta.url).pathname;
  if (!document.querySelector(`link[href="${href}"]`)) document.head.append(h("link", { rel: "stylesheet", href }));
}
