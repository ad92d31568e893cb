// The map of the cluster: a canvas, a cursor over it, a card beside the cursor, and tables for screen readers.

import { clear, h } from "../dom.js";
import { describe, nodeCard, nodeTable } from "./card.js";
import { ZOOMS, cellAt, layOut, neighbour } from "./layout.js";
import { paced } from "../pace.js";
import { colours, isIdle, paintNode } from "./paint.js";

const KEYS = new Set(["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"]);
const USE_MS = 1000; // a change of use alone is drawn at most so often; holders, states and speeds at once
const PIXELS_MAX = 16_000; // of a canvas's height: browsers draw no higher one

// `open(jobId)`: to the page of a job. `height()`: the room for the map, in pixels.
export function clusterMap({ open, height }) {
  const canvas = h("canvas", { ariaHidden: "true" });
  const cursor = h("div", { class: "map-cursor", hidden: true });
  const card = h("div", { class: "panel map-card", hidden: true });
  const said = h("div", { class: "hidden-text", ariaLive: "polite" });
  const table = h("div", { class: "hidden-text" });
  const stage = h("div", {
    class: "map", tabindex: "0", role: "application", ariaRoledescription: "map", ariaDescribedby: "map-help",
    onkeydown: keyed, onpointermove: pointed, onpointerleave: () => pinned || hide(), onclick: clicked,
    onfocus: () => at || point(layout?.cells[0]), onblur: () => pinned || hide(),
  }, canvas, cursor, card);
  const empty = h("p", { hidden: true }, "No node has joined the cluster.");
  const element = h("div", { class: "map-frame" }, stage, empty, said, table,
    h("p", { class: "hidden-text", id: "map-help" },
      "Arrow keys move between GPUs, Enter opens the job, space marks all of its GPUs, Escape ends that."));

  const farther = h("button", { type: "button", class: "small", ariaLabel: "Smaller cells", onclick: () => zoomBy(-1) }, "−");
  const closer = h("button", { type: "button", class: "small", ariaLabel: "Larger cells", onclick: () => zoomBy(1) }, "+");
  const zooms = h("span", { class: "row", role: "group", ariaLabel: "Size of the cells" }, farther, closer);

  function zoomBy(steps) {
    zoom += steps;
    place();
  }

  const ctx = canvas.getContext("2d");
  let ink = null;
  let scene = { nodes: [], jobs: {}, wanted: false };
  let nodes = new Map(); // id -> node
  let blocks = new Map(); // id -> block
  let looks = new Map(); // id -> what of it is drawn: nodes that look the same are not drawn again
  let layout = null;
  let zoom = 0;
  let at = null; // the cell under the cursor
  let pinned = false;
  let marked = null; // a function that tells which GPUs stand out
  let frame = 0;
  let dirty = new Set();
  let all = true;
  const drawLater = paced(draw, USE_MS);

  const watch = new ResizeObserver(() => {
    if (layout && Math.abs(element.clientWidth - layout.width) >= 1) place();
  });
  watch.observe(element);
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  scheme.addEventListener("change", recolour);
  addEventListener("themechange", recolour);
  addEventListener("resize", place);

  function show(next) {
    scene = next;
    nodes = new Map(next.nodes.map((node) => [node.id, node]));
    place();
  }

  // Nodes that changed; the number of nodes, and of their GPUs, is the same.
  function update(next, ids) {
    const repaint = next.wanted !== scene.wanted;
    scene = next;
    let urgent = false;
    for (const id of ids) {
      const node = next.nodeOf(id);
      if (!node) continue;
      const known = nodes.get(id);
      nodes.set(id, node);
      if (!known || known.gpus.length !== node.gpus.length || known.pool !== node.pool) return show(next);
      const [drawn, now] = [looks.get(id), lookOf(node)];
      if (drawn?.form !== now.form) urgent = true;
      else if (drawn.use === now.use) continue;
      dirty.add(id);
      if (at?.node === id) tell(false);
    }
    if (repaint) all = true;
    if (all || urgent) draw();
    else if (dirty.size) drawLater();
  }

  // What of a node is drawn. A use that differs by less than can be seen is the same.
  function lookOf(node) {
    const held = (gpu) => gpu.holders.map((each) => `${each.job}:${each.share}:${scene.jobs[each.job]?.name ?? ""}`).join("+");
    return {
      form: node.state + node.gpus.map((gpu) => `${isIdle(gpu)},${gpu.slow},${gpu.quarantined},${Boolean(gpu.out)},${held(gpu)}`).join("|"),
      use: node.gpus.map((gpu) => Math.round((gpu.used ?? -1) * 16)).join(),
    };
  }

  function place() {
    const width = element.clientWidth;
    if (!width) return;
    layout = layOut(scene.nodes, width, height(), zoom);
    closer.disabled = !layout.step;
    farther.disabled = layout.step === ZOOMS - 1;
    blocks = new Map(layout.blocks.map((block) => [block.node, block]));
    const ratio = Math.min(devicePixelRatio || 1, PIXELS_MAX / Math.max(1, layout.height));
    canvas.width = Math.ceil(width * ratio);
    canvas.height = Math.ceil(Math.max(1, layout.height) * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${layout.height}px`;
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    empty.hidden = scene.nodes.length > 0;
    if (at) at = layout.cells.find((cell) => cell.node === at.node && cell.gpu === at.gpu) || null;
    if (at) tell(false);
    else hide();
    all = true;
    draw();
  }

  function recolour() {
    ink = null;
    all = true;
    draw();
  }

  function draw() {
    if (!frame) frame = requestAnimationFrame(paint);
  }

  function paint() {
    frame = 0;
    if (!layout) return;
    ink ||= colours(element);
    const lit = { ...scene, lit: marked };
    if (all) {
      ctx.clearRect(0, 0, layout.width, layout.height);
      for (const { pool, y } of layout.pools) {
        ctx.font = "600 12px Inter, system-ui, sans-serif";
        ctx.fillStyle = ink.muted;
        ctx.fillText(`pool ${pool}`, 0, y + 14);
      }
    }
    for (const id of all ? nodes.keys() : dirty) {
      const [node, block] = [nodes.get(id), blocks.get(id)];
      if (!node || !block) continue;
      paintNode(ctx, ink, node, block, layout.size, lit);
      looks.set(id, lookOf(node));
    }
    all = false;
    dirty = new Set();
  }

  // The cursor, the card and what is read aloud.

  function point(cell, { aloud = true } = {}) {
    if (!cell) return;
    at = cell;
    tell(aloud);
  }

  function tell(aloud) {
    const node = nodes.get(at.node);
    const gpu = node.gpus[at.gpu];
    cursor.hidden = card.hidden = false;
    Object.assign(cursor.style, { left: `${at.x - 2}px`, top: `${at.y - 2}px`, width: `${at.w + 2}px`, height: `${at.h + 2}px` });
    clear(card).append(nodeCard(node, gpu, scene, pinned));
    const right = at.x + at.w + 8 + card.offsetWidth <= layout.width;
    const beside = right ? at.x + at.w + 8 : Math.max(0, Math.min(at.x - card.offsetWidth - 8, layout.width - card.offsetWidth));
    const overlaps = !right && at.x - card.offsetWidth - 8 < 0;
    card.style.left = `${beside}px`;
    card.style.top = `${overlaps ? at.y + at.h + 8 : Math.max(0, Math.min(at.y, layout.height - card.offsetHeight))}px`;
    if (!aloud) return;
    said.textContent = describe(node, gpu, scene);
    clear(table).append(nodeTable(node, scene));
  }

  function hide() {
    at = null;
    pinned = false;
    cursor.hidden = card.hidden = true;
    if (marked) mark(null);
  }

  function mark(which) {
    marked = which;
    all = true;
    draw();
  }

  function markJobs() {
    const jobs = new Set((nodes.get(at.node).gpus[at.gpu]?.holders || []).map((held) => held.job));
    mark(jobs.size ? (node, gpu) => gpu.holders.some((held) => jobs.has(held.job)) : null);
  }

  function pin() {
    pinned = true;
    markJobs();
    tell(true);
  }

  function pointed(event) {
    if (pinned || card.contains(event.target)) return;
    const cell = cellUnder(event);
    if (cell === at) return;
    if (cell) point(cell, { aloud: false });
    else if (document.activeElement !== stage) hide();
  }

  function cellUnder(event) {
    const box = canvas.getBoundingClientRect();
    return layout && cellAt(layout, event.clientX - box.left, event.clientY - box.top);
  }

  function clicked(event) {
    if (card.contains(event.target)) return; // a link in it
    const cell = cellUnder(event);
    const again = pinned && cell === at;
    hide();
    if (cell && !again) {
      point(cell);
      pin();
    }
  }

  function keyed(event) {
    if (event.target !== stage || !layout?.cells.length || event.ctrlKey || event.metaKey || event.altKey) return;
    if (KEYS.has(event.key)) {
      if (pinned) hide();
      point(at ? neighbour(layout, at, event.key) : layout.cells[0]);
      cursor.scrollIntoView({ block: "nearest" });
    } else if (event.key === " " && at) {
      if (pinned) hide();
      else pin();
    } else if (event.key === "Enter" && at) {
      const held = nodes.get(at.node).gpus[at.gpu]?.holders[0];
      if (held) open(held.job);
    } else if (event.key === "Escape") hide();
    else return;
    event.preventDefault();
  }

  return {
    element,
    zooms,
    show,
    update,
    label: (words) => stage.setAttribute("aria-label", words),

    // Marks the GPUs for which `matches(node, gpu)`, and returns their cells; null: none is marked.
    find(matches) {
      hide();
      mark(matches);
      if (!matches || !layout) return [];
      return layout.cells.filter((cell) => cell.gpu >= 0 && matches(nodes.get(cell.node), nodes.get(cell.node).gpus[cell.gpu]));
    },

    point(cell) {
      point(cell);
      cursor.scrollIntoView({ block: "nearest" });
    },

    end() {
      cancelAnimationFrame(frame);
      drawLater.end();
      watch.disconnect();
      scheme.removeEventListener("change", recolour);
      removeEventListener("themechange", recolour);
      removeEventListener("resize", place);
    },
  };
}
