// Parallel coordinates: an upright axis for each value of a sweep and one for the best metric, a line for each element.
//
// Every line is a link to its job. One of them is a stop of the Tab key; the arrow keys go from line to line, in the order
// of their metric, and a sentence says which element it is.

import { clean, clear, h, svg, text } from "../dom.js";
import { niceTicks } from "../chart.js";

const MARGIN = { top: 34, right: 58, bottom: 12, left: 58 };
const NARROWEST = 280;
const AXIS_LEAST = 90; // px between two axes: a sweep of many values scrolls
const TICKS = 4;
const OWN_TICKS = 4; // so few different values are ticks themselves
const CATEGORIES_MAX = 24; // names at one axis; more are drawn without theirs
const GRADES = 5; // colours, by the place among all elements
const LOG_FACTOR = 100; // values that span more are drawn by their logarithm
const NAME_MAX = 14; // characters

// Axes of these rows, each `{name, kind, ticks: [[0–1, words]], at(row)}`: `at` is 0–1, or null where a row has nothing.
export function axesOf(view) {
  const names = [...new Set(view.rows.flatMap((row) => Object.keys(row.values ?? {})))];
  const axes = names.map((name) => axisOf(name, view.rows.map((row) => row.values?.[name])));
  const best = axisOf(view.metric ? `best ${view.metric}` : "best metric", view.rows.map((row) => row.best));
  return [...axes, { ...best, isMetric: true }].map((axis) => ({
    ...axis, at: (row) => axis.place(axis.isMetric ? row.best : row.values?.[axis.name]),
  }));
}

function axisOf(name, values) {
  const known = values.filter((value) => value !== undefined && value !== null && value !== "");
  const numbers = known.map(Number);
  if (known.length && numbers.every(Number.isFinite)) return { name, ...scaleOf(numbers) };
  const words = [...new Set(known.map(String))];
  const part = (place) => (words.length < 2 ? 0.5 : place / (words.length - 1));
  const shown = words.length <= CATEGORIES_MAX ? words : [];
  return {
    name, kind: "names", ticks: shown.map((word, place) => [part(place), word]),
    place: (value) => (words.includes(String(value)) ? part(words.indexOf(String(value))) : null),
  };
}

function scaleOf(numbers) {
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  const own = [...new Set(numbers)];
  const isLog = low > 0 && high / low > LOG_FACTOR;
  const to = isLog ? Math.log10 : (value) => value;
  const spread = to(high) - to(low);
  const part = (value) => (spread > 0 && Number.isFinite(spread) ? (to(value) - to(low)) / spread : 0.5);
  return {
    kind: isLog ? "log" : "number",
    ticks: (own.length <= OWN_TICKS ? own : tickValues(low, high, isLog)).map((value) => [part(value), text(value)]),
    place: (value) => (value === undefined || value === null || value === "" || !Number.isFinite(Number(value)) ? null : part(Number(value))),
  };
}

function tickValues(low, high, isLog) {
  if (low === high) return [low];
  const inner = isLog
    ? [...new Array(Math.floor(Math.log10(high)) - Math.ceil(Math.log10(low)) + 1)].map((_, place) => 10 ** (Math.ceil(Math.log10(low)) + place))
    : niceTicks(low, high, TICKS);
  const far = (value) => Math.abs((isLog ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low)));
  return [low, ...inner.filter((value) => far(value) > 0.08 && far(value) < 0.92), high];
}

// The rows by their metric, the best first; those without one last.
export function ranked(rows, goal) {
  const sign = goal === "max" ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [left, right] = [a.best ?? null, b.best ?? null];
    if (left === null || right === null) return (left === null) - (right === null) || a.index - b.index;
    return sign * (left - right) || a.index - b.index;
  });
}

// What an element is, in a sentence.
export function rowWords(row, view, isBest) {
  const values = Object.entries(row.values ?? {}).map(([name, value]) => `${clean(name)} ${clean(value)}`);
  const metric = row.best === undefined || row.best === null ? "no metric yet" : `best ${clean(view.metric)} ${text(row.best)}`;
  return [`Element ${row.index}${isBest ? ", the best" : ""}`, ...values, metric, clean(row.state)].join(", ");
}

// `{element, update(view), close}`.
export function parallelView() {
  const plot = h("div", { class: "plot parallel", tabindex: "-1" });
  const said = h("p", { class: "muted", role: "status" });
  const help = h("p", { class: "hidden-text", id: "parallel-help" }, "Tab to a line, then the arrow keys: the next and the previous element by its metric. Enter opens its job.");
  const element = h("figure", { class: "chart", ariaDescribedby: "parallel-help" },
    h("figcaption", {}, "Values and what came of them"), help, plot, said);
  let shown = null;
  let width = 0;
  let current = ""; // the id of the element that the keyboard is on

  function draw() {
    if (!width || !shown) return;
    const hadFocus = plot.contains(document.activeElement);
    const rows = ranked(shown.rows, shown.goal);
    if (!rows.some((row) => row.id === current)) current = rows[0]?.id ?? "";
    clear(plot);
    if (!rows.length) {
      plot.append(h("p", { class: "nothing" }, "The sweep has no element."));
      return;
    }
    plot.append(drawing(rows, axesOf(shown), { width, view: shown, current, focused }));
    if (hadFocus) lineOf(current)?.focus();
  }
  const lineOf = (id) => [...plot.querySelectorAll("a")].find((line) => line.dataset.id === id);

  function focused(line, words) {
    said.textContent = `${words}.`;
    for (const other of plot.querySelectorAll("a")) other.setAttribute("tabindex", other === line ? "0" : "-1");
    current = line.dataset.id;
  }
  plot.addEventListener("keydown", (event) => {
    const lines = [...plot.querySelectorAll("a")];
    const place = lines.indexOf(document.activeElement);
    const steps = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
    if (place < 0 || !(event.key in steps) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    // Lines are drawn from the worst to the best, so that the best lies on top.
    lines[Math.min(lines.length - 1, Math.max(0, place - steps[event.key]))].focus();
  });
  const observer = new ResizeObserver((entries) => {
    const now = Math.max(NARROWEST, Math.floor(entries[0].contentRect.width));
    if (now === width) return;
    width = now;
    draw();
  });
  observer.observe(plot);

  return {
    element,
    update(view) {
      shown = view;
      draw();
    },
    close: () => observer.disconnect(),
  };
}

function drawing(rows, axes, { width, view, current, focused }) {
  const whole = Math.max(width, MARGIN.left + MARGIN.right + AXIS_LEAST * (axes.length - 1));
  const height = 300;
  const inner = { width: whole - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom };
  const toX = (place) => round(MARGIN.left + (axes.length < 2 ? 0.5 : place / (axes.length - 1)) * inner.width);
  const toY = (part) => round(MARGIN.top + (1 - part) * inner.height);
  const made = svg("svg", { width: whole, height, viewBox: `0 0 ${whole} ${height}`, role: "group", "aria-label": "The elements as lines over the axes of their values" });
  const known = rows.filter((row) => row.best !== undefined && row.best !== null).length;
  [...rows.entries()].reverse().forEach(([place, row]) => {
    const isBest = place === 0 && known > 0;
    const words = rowWords(row, view, isBest);
    const grade = place >= known ? "none" : `g${Math.floor((place * GRADES) / Math.max(1, known))}`;
    const points = axes.map((axis, at) => [toX(at), axis.at(row)]).filter(([, part]) => part !== null).map(([x, part]) => `${x},${toY(part)}`);
    const line = svg("a", {
      href: `#/job/${encodeURIComponent(row.id)}`, class: `element ${grade}${isBest ? " best" : ""}`, tabindex: row.id === current ? "0" : "-1",
      "aria-label": words, dataset: { id: row.id },
      onfocus: () => focused(line, words), onmouseenter: () => focused(line, words),
    }, svg("polyline", { class: "reach", points: points.join(" ") }), svg("polyline", { class: "stroke", points: points.join(" ") }));
    made.append(line);
  });
  axes.forEach((axis, place) => made.append(...axisParts(axis, toX(place), toY, { isLast: place === axes.length - 1 })));
  return made;
}

function axisParts(axis, x, toY, { isLast }) {
  const anchor = isLast ? "start" : "end";
  const beside = isLast ? 6 : -6;
  const name = clean(axis.name);
  return [
    svg("line", { class: "axis", x1: x, x2: x, y1: toY(0), y2: toY(1) }),
    svg("text", { class: "axis-name", x, y: 16, "text-anchor": "middle" }, svg("title", {}, name), `${short(name)}${axis.kind === "log" ? " (log)" : ""}`),
    ...axis.ticks.flatMap(([part, words]) => [
      svg("line", { class: "axis", x1: x - 3, x2: x + 3, y1: toY(part), y2: toY(part) }),
      svg("text", { class: "tick", x: x + beside, y: toY(part) + 4, "text-anchor": anchor }, short(clean(words))),
    ]),
  ];
}

function short(words) {
  return words.length > NAME_MAX ? `${words.slice(0, NAME_MAX - 1)}…` : words;
}

function round(value) {
  return Math.round(value * 10) / 10;
}
