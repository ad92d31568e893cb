// Line charts: axes with units, gaps where nothing was measured, series told apart by colour and by dash.
//
// Beside each drawing is a sentence that sums it up, and the same figures as a table.

import { clear, clock, h, svg } from "./dom.js";
import { scrolling } from "./parts.js";

const MARGIN = { top: 10, right: 12, bottom: 26, left: 46 };
const NARROWEST = 240;
const ROWS_MAX = 60; // of the table
const SERIES_MAX = 16;
const DASHES = ["", "6 3", "2 3", "8 3 2 3", "12 4", "4 2 1 2 1 2"];
const NEWEST = 3; // steps: of the last one there is often nothing yet
const BEYOND = 1e300; // so that no difference of two numbers overflows

// A chart as `{element, update(series, {from, to})}`.
// 
// `x`: "clock" (seconds since 1970) or "number", of `xLabel`. `unit`: of the values; `format(y)`: a value without it.
// `yMin`, `yMax`: the least range of the axis; `whole`: it counts things. A series is `{name, points: [[x, y or null]]}`, its points in the order of x; `steps`: its
// value holds until the next; `dots`: every point is marked.
export function lineChart({ title, x = "clock", xLabel = "", unit = "", format = shortNumber, yMin = null, yMax = null, whole = false, height = 160 }) {
  const withUnit = (value) => (value === null ? "unknown" : `${format(value)}${unit ? ` ${unit}` : ""}`);
  const small = [unit && `in ${unit}`, xLabel && `by ${xLabel}`].filter(Boolean).join(", ");
  const plot = h("div", { class: "plot" });
  const legend = h("ul", { class: "legend" });
  const sentence = h("p", { class: "chart-says" });
  const table = h("table", { class: "figures" });
  const details = h("details", { class: "as-table" }, h("summary", {}, "The figures"), scrolling(`${title}: the figures`, table));
  const element = h("figure", { class: "chart" }, h("figcaption", {}, title, small ? h("span", { class: "muted" }, ` ${small}`) : ""), plot, legend, sentence, details);
  let shown = { series: [], range: {} };
  let width = 0;

  function draw() {
    if (!width) return;
    const axes = axesOf(shown.series, { ...shown.range, yMin, yMax, whole });
    clear(plot);
    if (axes) plot.append(drawing(shown.series, axes, { width, height, x, format, title }));
    else plot.append(h("p", { class: "nothing" }, "Nothing measured yet."));
  }
  function fillTable() {
    if (details.open) drawTable(table, shown.series, { x, xLabel, format: withUnit });
  }
  details.addEventListener("toggle", fillTable);
  const observer = new ResizeObserver((entries) => {
    const now = Math.max(NARROWEST, Math.floor(entries[0].contentRect.width));
    if (now === width) return;
    width = now;
    draw();
  });
  observer.observe(plot);

  return {
    element,
    update(series, range = {}) {
      shown = { series: series.slice(0, SERIES_MAX).map(cleaned), range };
      clear(legend);
      if (shown.series.length > 1) shown.series.forEach((one, place) => legend.append(legendItem(one, place)));
      if (series.length > SERIES_MAX) legend.append(h("li", {}, `and ${series.length - SERIES_MAX} more, not drawn`));
      sentence.textContent = summaryOf(shown.series, withUnit);
      draw();
      fillTable();
    },
    close: () => observer.disconnect(),
  };
}

// A series whose values are finite numbers or null.
export function cleaned(series) {
  const points = (Array.isArray(series.points) ? series.points : [])
    .filter((point) => Array.isArray(point) && Number.isFinite(point[0]))
    .map(([x, y]) => [bounded(x), Number.isFinite(y) ? bounded(y) : null]);
  return { ...series, name: String(series.name), points };
}

function bounded(value) {
  return Math.min(BEYOND, Math.max(-BEYOND, value));
}

// What the series say, in a sentence: least, most and last of each.
export function summaryOf(series, format = shortNumber) {
  const said = series.slice(0, 6).map((one) => {
    const values = one.points.map((point) => point[1]).filter((value) => value !== null);
    if (!values.length) return `${one.name}: nothing measured`;
    const [least, most] = extent(values);
    const last = one.points.slice(-NEWEST).findLast((point) => point[1] !== null)?.[1] ?? null;
    const range = least === most ? `always ${format(least)}` : `${format(least)} to ${format(most)}`;
    return `${one.name}: ${range}${least === most ? "" : last === null ? ", no value now" : `, last ${format(last)}`}`;
  });
  if (series.length > 6) said.push(`and ${series.length - 6} more`);
  return said.length ? `${said.join("; ")}.` : "Nothing measured yet.";
}

function extent(values) {
  let [least, most] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < least) least = value;
    if (value > most) most = value;
  }
  return [least, most];
}

// The ranges of both axes, or null if there is nothing to draw.
export function axesOf(series, { from = null, to = null, yMin = null, yMax = null, whole = false } = {}) {
  const points = series.flatMap((one) => one.points);
  const measured = points.filter((point) => point[1] !== null);
  if (!measured.length) return null;
  const [firstX, lastX] = extent(points.map((point) => point[0]));
  let [low, high] = extent(measured.map((point) => point[1]));
  if (yMin !== null) low = Math.min(low, yMin);
  if (yMax !== null) high = Math.max(high, yMax);
  if (low === high) [low, high] = low > 0 ? [0, low * 1.25] : low < 0 ? [low * 1.25, 0] : [0, 1];
  const ticks = niceTicks(low, high, 4).filter((tick) => !whole || Number.isInteger(tick));
  let [begin, end] = [from ?? firstX, to ?? lastX];
  if (!(end > begin)) [begin, end] = [begin - 1, begin + 1];
  return { begin, end, low: Math.min(low, ticks[0] ?? low), high: Math.max(high, ticks.at(-1) ?? high), ticks };
}

// About `count` round numbers from `low` to `high`, the first at or below and the last at or above.
export function niceTicks(low, high, count) {
  const rough = (high - low) / count;
  if (!(rough > 0) || !Number.isFinite(rough)) return [low, high];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((part) => part * power).find((size) => size >= rough * 0.999) ?? rough;
  const ticks = [];
  const first = Math.floor(low / step + 1e-9);
  for (let place = 0; place <= count + 2; place += 1) {
    ticks.push((first + place) * step);
    if (ticks.at(-1) >= high - step * 1e-9) break;
  }
  return ticks;
}

// At most about two points a pixel: the least and the most of each column, and every gap.
export function thinned(points, columns) {
  if (points.length <= columns * 2) return points;
  const [begin, end] = [points[0][0], points.at(-1)[0]];
  const column = (x) => Math.floor(((x - begin) / (end - begin || 1)) * columns);
  const kept = [];
  let group = [];
  const flush = () => {
    const measured = group.filter((point) => point[1] !== null);
    if (measured.length) {
      const least = measured.reduce((a, b) => (b[1] < a[1] ? b : a));
      const most = measured.reduce((a, b) => (b[1] > a[1] ? b : a));
      kept.push(...(least[0] <= most[0] ? [least, most] : [most, least]));
    }
    if (measured.length < group.length && (!measured.length || group.at(-1)[1] === null)) kept.push([group.at(-1)[0], null]);
    group = [];
  };
  for (const point of points) {
    if (group.length && column(point[0]) !== column(group[0][0])) flush();
    group.push(point);
  }
  if (group.length) flush();
  return kept;
}

function drawing(series, axes, { width, height, x, format, title }) {
  const inner = { width: width - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom };
  const toX = (value) => round(MARGIN.left + ((value - axes.begin) / (axes.end - axes.begin)) * inner.width);
  const toY = (value) => round(MARGIN.top + (1 - (value - axes.low) / (axes.high - axes.low)) * inner.height);
  const made = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}, a chart` });
  for (const tick of axes.ticks) {
    const y = toY(tick);
    made.append(
      svg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y }),
      svg("text", { class: "tick", x: MARGIN.left - 6, y: y + 4, "text-anchor": "end" }, format(tick)),
    );
  }
  for (const [value, label, anchor] of xTicks(axes, x, inner.width)) {
    made.append(svg("text", { class: "tick", x: toX(value), y: height - 8, "text-anchor": anchor }, label));
  }
  series.forEach((one, place) => {
    const inside = one.points.filter((point) => point[0] >= axes.begin && point[0] <= axes.end);
    const points = thinned(inside, inner.width);
    const path = pathOf(points, toX, toY, one.steps);
    made.append(svg("path", { class: `line s${place % 8}`, d: path, "stroke-dasharray": DASHES[place % DASHES.length] }));
    const alone = one.dots ? points.filter((point) => point[1] !== null) : lonely(points);
    for (const [at, value] of alone) {
      made.append(svg("circle", { class: `dot s${place % 8}`, cx: toX(at), cy: toY(value), r: one.dots ? 3.5 : 1.5 }));
    }
  });
  return made;
}

function round(value) {
  return Math.round(Math.min(1e5, Math.max(-1e5, value)) * 10) / 10;
}

// Points between two gaps, of which a line shows nothing.
function lonely(points) {
  return points.filter(
    (point, place) => point[1] !== null && (points[place - 1]?.[1] ?? null) === null && (points[place + 1]?.[1] ?? null) === null,
  );
}

function pathOf(points, toX, toY, steps) {
  const parts = [];
  let before = null;
  for (const [at, value] of points) {
    if (value === null) {
      if (steps && before !== null) parts.push(`H${toX(at)}`);
      before = null;
      continue;
    }
    if (before === null) parts.push(`M${toX(at)} ${toY(value)}`);
    else if (steps) parts.push(`H${toX(at)}V${toY(value)}`);
    else parts.push(`L${toX(at)} ${toY(value)}`);
    before = value;
  }
  return parts.join("");
}

function xTicks(axes, x, width) {
  const spread = axes.end - axes.begin;
  if (x === "clock") {
    const label = (at) => timeLabel(at, spread);
    const marks = [[axes.begin, label(axes.begin), "start"]];
    if (width > 360) marks.push([axes.begin + spread / 2, label(axes.begin + spread / 2), "middle"]);
    return [...marks, [axes.end, label(axes.end), "end"]];
  }
  return niceTicks(axes.begin, axes.end, width > 360 ? 6 : 3)
    .filter((tick) => tick >= axes.begin && tick <= axes.end)
    .map((tick) => [tick, shortNumber(tick), "middle"]);
}

function timeLabel(at, spread) {
  const date = new Date(at * 1000);
  if (Number.isNaN(date.getTime())) return "?";
  const two = (value) => String(value).padStart(2, "0");
  const day = `${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  const minutes = `${two(date.getHours())}:${two(date.getMinutes())}`;
  if (spread > 2 * 86400) return `${day} ${minutes}`;
  return spread > 3600 ? minutes : `${minutes}:${two(date.getSeconds())}`;
}

// `3`, `0.31`, `12.5k`, `4M`: short, with at most three digits.
export function shortNumber(value) {
  if (value === null || !Number.isFinite(value)) return "?";
  const size = Math.abs(value);
  for (const [unit, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (size >= 1e15) return value.toExponential(1);
    if (size >= unit) return `${trimmed(value / (letter === "k" ? 1e3 : unit))}${letter}`;
  }
  return size && size < 1e-3 ? value.toExponential(1) : trimmed(value);
}

function trimmed(value) {
  return String(Number(value.toPrecision(Math.abs(value) >= 100 ? 4 : 3)));
}

function legendItem(series, place) {
  const sample = svg(
    "svg",
    { width: 26, height: 10, "aria-hidden": "true" },
    svg("line", { class: `line s${place % 8}`, x1: 0, x2: 26, y1: 5, y2: 5, "stroke-dasharray": DASHES[place % DASHES.length] }),
  );
  return h("li", {}, sample, series.name);
}

function drawTable(table, series, { x, xLabel, format }) {
  clear(table);
  const at = new Map();
  series.forEach((one, place) => {
    for (const [when, value] of one.points) {
      if (!at.has(when)) at.set(when, []);
      at.get(when)[place] = value;
    }
  });
  const all = [...at.keys()].sort((a, b) => a - b);
  const every = Math.max(1, Math.ceil(all.length / ROWS_MAX));
  const kept = all.filter((_, place) => (all.length - 1 - place) % every === 0);
  const head = (name) => h("th", { scope: "col" }, name);
  table.append(
    h("caption", {}, every > 1 ? `Each ${every}th of ${all.length} measurements` : "All measurements"),
    h("thead", {}, h("tr", {}, head(x === "clock" ? "time" : xLabel || "x"), ...series.map((one) => head(one.name)))),
    h("tbody", {}, ...kept.map((when) => {
      const cells = series.map((_, place) => h("td", {}, format(at.get(when)[place] ?? null)));
      const label = x === "clock" ? clock(when) : shortNumber(when);
      return h("tr", {}, h("th", { scope: "row" }, label), ...cells);
    })),
  );
}
