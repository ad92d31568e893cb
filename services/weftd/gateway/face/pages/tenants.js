// Tenants: GPU-hours held and used, what each got against what was due to it, quotas, and GPUs held over time.

import { lineChart } from "../chart.js";
import { clean, clock, count, duration, h, moment, percent, text } from "../dom.js";
import { failureText, repeat, slot, table } from "../parts.js";
import { bar } from "../words.js";

const EVERY_MS = 15_000;
const SPANS = [["hour", 3600], ["6 hours", 21600], ["day", 86400], ["7 days", 604800], ["30 days", 2592000]];
const CHARTED_MAX = 8;
const ROWS_MAX = 200;
const POOLS_MAX = 20;

export function mount(root, { api, session, time, params, setParams }) {
  let seconds = SPANS.some(([, each]) => each === Number(params.seconds)) ? Number(params.seconds) : 86400;
  const span = h("select", { id: "usage-span", onchange: () => {
    seconds = Number(span.value);
    setParams?.({ seconds });
    work.soon();
  } }, SPANS.map(([words, each]) => h("option", { value: String(each) }, `the last ${words}`)));
  span.value = String(seconds);
  const said = slot("p", { class: "muted", role: "status" });
  const rows = slot("div");
  const limits = slot("div");
  const quotas = slot("div");
  const chart = lineChart({ title: "GPUs held", yMin: 0, height: 220 });
  root.append(h("div", { class: "stack" },
    h("div", { class: "row" }, h("h1", {}, "Tenants"), h("label", { htmlFor: "usage-span" }, "show"), span), said.element,
    h("section", { class: "panel" }, h("h2", {}, "GPU-hours and shares"), rows.element),
    h("section", { class: "panel" }, chart.element),
    quotas.element, limits.element));
  const work = repeat(refresh, EVERY_MS);
  const forget = time.subscribe(() => work.soon());

  async function refresh(signal) {
    try {
      const view = await api(`/v1/usage?seconds=${seconds}`, { signal });
      show(view);
      const { nodes } = await api("/v1/nodes", { signal });
      const pools = [...new Set(nodes.map((node) => node.pool))].sort().slice(0, POOLS_MAX);
      const set = await Promise.all(pools.map((pool) => api(`/v1/quotas?pool=${encodeURIComponent(pool)}`, { signal })));
      quotas.show(set, () => set.filter((one) => one.quotas.length).map(quotasParts));
      const allowed = session.admin ? await api("/v1/tenants", { signal }) : null;
      limits.show(allowed, () => (allowed ? limitsParts(allowed.tenants) : []));
    } catch (error) {
      if (!signal.aborted) said.show(failureText(error), (sentence) => `Usage cannot be shown: ${sentence}`);
    }
  }

  function show(view) {
    const later = view.begins > view.ends - seconds + 60;
    const [begins, ends] = [clock(view.begins), moment(view.ends)];
    const today = begins.includes(" ") && !clock(view.ends).includes(" ") ? "today, " : ""; // a bare time beside a date says no day
    const parts = [`From ${begins} to ${today}${ends}`];
    if (later) parts.push("there is nothing older");
    if (view.gpu_seconds > 0) parts.push(`${percent(view.gpu_seconds_idle / view.gpu_seconds)} of ${hours(view.gpu_seconds)} GPU-hours were not held`);
    if (time.at !== null) parts.push("this page shows the time until now, not until the moment of the slider");
    said.show(parts, () => `${parts.join("; ")}.`);
    rows.show(view.tenants, () => tenantRows(view));
    chart.element.hidden = !view.tenants.some((one) => one.held?.length);
    chart.update(view.tenants.slice(0, CHARTED_MAX).map((one) => ({
      name: clean(one.tenant), steps: true,
      points: heldPoints(view, one.held ?? []),
    })), { from: firstHeld(view), to: view.ends });
  }

  return {
    unmount() {
      work.stop();
      forget();
      chart.close();
    },
  };
}

// Each value holds until the next, the last until the end.
function heldPoints(view, held) {
  const points = held.map((gpus, place) => [view.begins + place * view.step_seconds, gpus]);
  return points.length ? [...points, [view.ends, held.at(-1)]] : points;
}

// Where the chart begins: a step before the first in which anybody held a GPU.
function firstHeld(view) {
  const first = Math.min(...view.tenants.map((one) => (one.held ?? []).findIndex((gpus) => gpus > 0)).filter((place) => place >= 0));
  return Number.isFinite(first) ? view.begins + Math.max(0, first - 1) * view.step_seconds : view.begins;
}

function tenantRows(view) {
  if (!view.tenants.length) return h("p", { class: "muted" }, "No tenant held or wanted a GPU in this time.");
  const most = Math.max(...view.tenants.map((one) => one.gpu_seconds_held), 1);
  const rows = view.tenants.slice(0, ROWS_MAX).map((one) => [
    clean(one.tenant),
    bar(one.gpu_seconds_held / most, hours(one.gpu_seconds_held)),
    one.gpu_seconds_used === null || one.gpu_seconds_used === undefined ? h("span", { class: "muted" }, "unknown")
      : bar(one.gpu_seconds_held ? one.gpu_seconds_used / one.gpu_seconds_held : 0, `${hours(one.gpu_seconds_used)}, ${percent(one.gpu_seconds_held ? one.gpu_seconds_used / one.gpu_seconds_held : 0)} of what it held`),
    one.gpu_seconds_unused === null || one.gpu_seconds_unused === undefined ? h("span", { class: "muted" }, "unknown") : hours(one.gpu_seconds_unused),
    percent(one.share_got ?? 0),
    percent(one.share_due ?? 0),
    differenceWords(one, view.gpu_seconds > 0 ? view.gpu_seconds_idle / view.gpu_seconds : 0),
  ]);
  const left = view.tenants.length - rows.length + (view.left_out ?? 0);
  return [
    table("Tenants", ["tenant", "GPU-hours held", "GPU-hours used", "held, but idle", "#share got", "#share due", "difference"], rows),
    left > 0 ? h("p", { class: "muted" }, `and ${count(left, "more tenant")}`) : "",
    h("p", { class: "muted" }, "Shares are fractions of all GPU-hours of the cluster. Due: the fair share, which an even split among the tenants that wanted GPUs would have given."),
  ];
}

// The words say it, the colour only adds to them. `idle`: the part of all GPU-hours that nobody held: where that is more
// than a tenant lacks, no other tenant has what it lacks.
export function differenceWords({ share_got: got = 0, share_due: due = 0 }, idle = 0) {
  const points = Math.round((got - due) * 100);
  if (points < 0 && idle >= due - got) return h("span", { class: "muted" }, "GPUs were idle");
  if (!points) return h("span", { class: "muted" }, "as due");
  return h("span", { class: points < 0 ? "warn" : "muted" }, `${count(Math.abs(points), "point")} ${points < 0 ? "less" : "more"} than due`);
}

function hours(seconds) {
  return text(Math.round((seconds / 3600) * 100) / 100);
}

// What a pool guarantees and allows, and what of it is held now.
function quotasParts({ pool, gpus, quotas }) {
  const rows = quotas.slice(0, ROWS_MAX).map((one) => [
    `${clean(one.name)}${one.is_group ? " (group)" : ""}`, clean(one.group), text(one.in_force),
    one.limit === null ? "none" : text(one.limit), text(one.weight),
    bar(gpus ? one.holds / gpus : 0, text(one.holds)),
    one.borrows ? h("span", { class: "warn" }, `${text(one.borrows)} borrowed`) : h("span", { class: "muted" }, "nothing borrowed"),
  ]);
  const left = quotas.length - rows.length;
  return h("section", { class: "panel" }, h("h2", {}, `Quotas in pool ${clean(pool)}, of ${count(gpus, "GPU")}`),
    table(`Quotas in pool ${clean(pool)}`, ["quota", "group", "#guaranteed", "#limit", "#weight", "GPUs held", "beyond its guarantee"], rows),
    left > 0 ? h("p", { class: "muted" }, `and ${count(left, "more quota")}`) : "");
}

function limitsParts(tenants) {
  const rows = tenants.slice(0, ROWS_MAX).map((one) => [
    clean(one.id), `${one.jobs_open} of ${one.jobs_open_max}`, text(one.priority_max), one.may_be_unpreemptible ? "yes" : "no",
    one.idle_seconds_max ? duration(one.idle_seconds_max) : "no bound",
  ]);
  return h("section", { class: "panel" }, h("h2", {}, "Limits"),
    table("Limits of tenants", ["tenant", "jobs open", "#highest priority", "may refuse pre-emption", "may leave GPUs idle for"], rows));
}
