// Draws nodes and GPUs on a canvas. Colour tells how a GPU is: busy, held but idle, free, slow, out of use, down; a form
// says the same: a level, a hollow cell, an edge, a corner, strokes, a cross. The thin edge of a cell is its job's colour.

import { clean, percent } from "../dom.js";
import { HOLDERS, IDLE, SLOW, holder } from "../words.js";

const NAMED = 100; // px of width from which a cell has a name in it
const INDEXED = 20; // and the index of the GPU

const FACE = "Inter, system-ui, sans-serif";

// The colours of the theme in force, as a canvas takes them.
export function colours(element) {
  const probe = document.createElement("span");
  element.append(probe);
  const read = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const names = ["bg", "panel", "raised", "text", "muted", "line", "edge", "accent", "on-accent", "warn", "bad", "on-c", "busy", "rest", "sick"];
  const made = Object.fromEntries(names.map((name) => [name, read(name)]));
  made.holders = Array.from({ length: HOLDERS }, (_, place) => read(`c${place}`));
  probe.remove();
  return made;
}

export function isIdle(gpu) {
  return gpu.holders.length > 0 && gpu.used !== null && gpu.used !== undefined && gpu.used < IDLE;
}

export function isSlow(gpu) {
  return gpu.quarantined || (gpu.slow ?? 1) >= SLOW;
}

// One node in its block. `scene`: {jobs, wanted (free GPUs are waited for), lit (null, or which GPUs stand out)}.
export function paintNode(ctx, ink, node, block, size, scene) {
  ctx.clearRect(block.x, block.y, block.w, block.h);
  if (size.head) frame(ctx, ink, node, block, size);
  for (const cell of block.cells) {
    const gpu = node.gpus[cell.gpu];
    ctx.globalAlpha = !scene.lit || (gpu && scene.lit(node, gpu)) ? 1 : 0.22;
    if (gpu) paintGpu(ctx, ink, node, gpu, cell, scene);
    else words(ctx, ink.muted, "no GPU", cell.x + 3, cell.y + cell.h / 2 + 4, cell.w - 6, 11);
  }
  ctx.globalAlpha = 1;
  outOfService(ctx, ink, node, block, size);
}

function frame(ctx, ink, node, block, size) {
  ctx.fillStyle = ink.panel;
  ctx.strokeStyle = node.state === "lost" ? ink.bad : node.state === "ready" ? ink.line : ink.warn;
  ctx.lineWidth = 1;
  ctx.fillRect(block.x, block.y, block.w, block.h);
  ctx.strokeRect(block.x + 0.5, block.y + 0.5, block.w - 1, block.h - 1);
  const font = size.head >= 20 ? 12 : 10;
  const line = block.y + size.head - (size.head >= 20 ? 6 : 3);
  const told = size.head >= 20 && node.gpus.length ? headNote(node) : "";
  const room = block.w - 2 * size.pad - 2;
  ctx.font = `600 ${font}px ${FACE}`;
  const nameWidth = ctx.measureText(clean(node.id)).width; // the name goes before the note
  ctx.font = `${font}px ${FACE}`;
  const noteWidth = told ? Math.min(ctx.measureText(told).width, Math.max(0, room - nameWidth - 8)) : 0;
  words(ctx, ink.text, clean(node.id), block.x + size.pad + 1, line, room - noteWidth - 8, font, 600);
  if (told) words(ctx, node.state === "ready" ? ink.muted : ink.text, told, block.x + block.w - size.pad - 1 - noteWidth, line, noteWidth + 1, font);
}

function headNote(node) {
  const held = node.gpus.filter((gpu) => gpu.holders.length).length;
  const out = node.gpus.filter((gpu) => gpu.out).length;
  const state = node.state === "ready" ? (out ? `${out} quarantined · ` : "") : `${node.state} · `;
  return node.gpus.length ? `${state}${held}/${node.gpus.length}` : node.state;
}

// One GPU in its cell: a neutral field, filled from the bottom by what is used; the colours of its jobs are its left edge.
export function paintGpu(ctx, ink, node, gpu, cell, scene) {
  const gap = cell.w >= 40 ? 4 : cell.w >= INDEXED ? 2 : 1;
  const [x, y, w, h] = [cell.x, cell.y, cell.w - gap, cell.h - gap];
  if (gpu.holders.length) paintHeld(ctx, ink, gpu, x, y, w, h, scene);
  else paintFree(ctx, ink, node, gpu, x, y, w, h, scene);
  if (gpu.out) outOfUse(ctx, ink, x, y, w, h);
  if (isSlow(gpu)) slowBadge(ctx, ink, gpu, x, y, w);
}

function paintHeld(ctx, ink, gpu, x, y, w, h, scene) {
  const alpha = ctx.globalAlpha;
  const edge = w >= INDEXED ? 4 : 2;
  if (isIdle(gpu)) { // hollow: held, and nothing runs
    ctx.fillStyle = ink.panel;
    ctx.fillRect(x, y, w, h);
    ctx.strokeStyle = ink.warn;
    ctx.lineWidth = w >= INDEXED ? 2 : 1.5;
    ctx.strokeRect(x + 1, y + 1, w - 2, h - 2);
  } else {
    ctx.fillStyle = ink.rest;
    ctx.fillRect(x, y, w, h);
    const known = gpu.used !== null && gpu.used !== undefined;
    const full = known ? h * Math.min(1, Math.max(0, gpu.used)) : h;
    ctx.fillStyle = ink.busy;
    ctx.globalAlpha = alpha * (known ? 1 : 0.6);
    ctx.fillRect(x, y + h - full, w, full);
    ctx.globalAlpha = alpha;
  }
  let top = y;
  for (const held of gpu.holders) {
    const part = Math.max(2, Math.min(h * (held.share ?? 1), y + h - top));
    ctx.fillStyle = ink.holders[holder(held.job)];
    ctx.fillRect(x, top, edge, part);
    top += part;
  }
  const index = w >= INDEXED ? String(gpu.index) : "";
  if (index) plate(ctx, ink, index, x + edge + 3, y, h, w >= NAMED);
  if (w < NAMED) return;
  const names = gpu.holders.map((held) => clean(scene.jobs[held.job]?.name || held.name || "") || "another tenant's").join(", ");
  tag(ctx, ink, names, x + edge + 22, y + 16, w - edge - 28 - (isSlow(gpu) ? 34 : 0), 600);
  tag(ctx, ink, useWords(gpu), x + edge + 4, y + h - 6, w - edge - 8, 400);
}

// Text over a fill: on a plate of the panel's colour, so that it is readable at every level of use.
function plate(ctx, ink, said, x, y, h, large) {
  const font = h >= 24 ? 11 : 10;
  ctx.font = `600 ${font}px ${FACE}`;
  const width = ctx.measureText(said).width + 4;
  const top = large ? y + 4 : y + (h - font - 3) / 2;
  ctx.fillStyle = ink.panel;
  ctx.fillRect(x - 1, top, width, font + 3);
  ctx.fillStyle = ink.text;
  ctx.fillText(said, x + 1, top + font);
}

function tag(ctx, ink, said, x, baseline, room, weight) {
  if (!said || room < 12) return;
  ctx.font = `${weight} 11px ${FACE}`;
  const width = Math.min(room, ctx.measureText(said).width + 6);
  ctx.fillStyle = ink.panel;
  ctx.fillRect(x, baseline - 11, width, 14);
  words(ctx, ink.text, said, x + 3, baseline, width - 4, 11, weight);
}

function useWords(gpu) {
  if (gpu.used === null || gpu.used === undefined) return "";
  return isIdle(gpu) ? "idle" : `${percent(gpu.used)} used`;
}

function paintFree(ctx, ink, node, gpu, x, y, w, h, scene) {
  const wanted = scene.wanted && node.state === "ready" && !gpu.out;
  ctx.lineWidth = 1;
  ctx.strokeStyle = wanted ? ink.accent : ink.edge;
  ctx.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
  if (w >= INDEXED) words(ctx, ink.muted, String(gpu.index), x + 7, y + h / 2 + 4, w - 8, h >= 24 ? 11 : 10, 500);
  if (w >= NAMED) words(ctx, wanted ? ink.accent : ink.muted, wanted ? "free, wanted" : "free", x + 26, y + h / 2 + 4, w - 30, 11);
  else if (wanted) { // a plus
    const [cx, cy, arm] = [x + w - Math.max(5, Math.floor(w / 4)), y + Math.floor(h / 2), Math.max(2, Math.floor(Math.min(w, h) / 6))];
    ctx.fillStyle = ink.accent;
    ctx.fillRect(cx - arm, cy, 2 * arm + 1, 1);
    ctx.fillRect(cx, cy - arm, 1, 2 * arm + 1);
  }
}

// A GPU in quarantine: its edge and strokes in the colour of sickness.
function outOfUse(ctx, ink, x, y, w, h) {
  ctx.save();
  ctx.beginPath();
  ctx.rect(x, y, w, h);
  ctx.clip();
  ctx.strokeStyle = ink.sick;
  ctx.lineWidth = w >= INDEXED ? 2 : 1;
  ctx.beginPath();
  for (let at = x - h; at < x + w; at += w >= INDEXED ? 8 : 4) line(ctx, at, y + h, at + h, y);
  ctx.stroke();
  ctx.strokeRect(x + 1, y + 1, w - 2, h - 2);
  ctx.restore();
}

function slowBadge(ctx, ink, gpu, x, y, w) {
  const label = gpu.slow >= SLOW ? `${gpu.slow.toFixed(2)}x` : "slow";
  ctx.fillStyle = ink.bad;
  if (w < NAMED) { // a dark corner with a light edge: it stands out from any holder's colour
    const side = Math.min(w, 11);
    ctx.fillStyle = "#8c0d0d";
    ctx.strokeStyle = "#ffffff";
    ctx.lineWidth = 1.5;
    ctx.beginPath();
    ctx.moveTo(x + w - side, y);
    ctx.lineTo(x + w, y);
    ctx.lineTo(x + w, y + side);
    ctx.closePath();
    ctx.fill();
    ctx.beginPath();
    ctx.moveTo(x + w - side, y);
    ctx.lineTo(x + w, y + side);
    ctx.stroke();
    return;
  }
  const font = 11;
  ctx.font = `700 ${font}px ${FACE}`;
  const width = ctx.measureText(label).width + 6;
  ctx.fillRect(x + w - width, y, width, font + 5);
  words(ctx, ink.panel, label, x + w - width + 3, y + font + 1, width, font, 700);
}

// A node that takes no work: its cells are faint, or crossed out if it is lost, and its state is a word at its head; where
// there is no head, its letter is in a corner.
function outOfService(ctx, ink, node, block, size) {
  if (node.state === "ready") return;
  const top = block.y + size.head;
  const height = block.h - size.head;
  const colour = node.state === "lost" ? ink.bad : node.state === "quarantined" ? ink.sick : ink.warn;
  ctx.globalAlpha = node.state === "drained" ? 0.35 : 0.55;
  ctx.fillStyle = ink.panel;
  ctx.fillRect(block.x, top, block.w, height);
  ctx.globalAlpha = 1;
  ctx.strokeStyle = colour;
  ctx.lineWidth = 1.5;
  ctx.beginPath();
  if (node.state === "lost") {
    line(ctx, block.x, top, block.x + block.w, top + height);
    line(ctx, block.x, top + height, block.x + block.w, top);
  } else if (node.state === "silent") line(ctx, block.x, top + height / 2, block.x + block.w, top + height / 2);
  else if (!size.head) line(ctx, block.x, top + height - 1, block.x + block.w, top + height - 1);
  ctx.stroke();
  if (size.quiet || size.head) return;
  const font = 9;
  ctx.fillStyle = colour;
  ctx.fillRect(block.x, top, font + 2, font + 2);
  words(ctx, ink.panel, node.state[0].toUpperCase(), block.x + 2, top + font, font + 2, font, 700);
}

function line(ctx, x0, y0, x1, y1) {
  ctx.moveTo(x0, y0);
  ctx.lineTo(x1, y1);
}

// A text that ends with "…" where there is no room for all of it.
function words(ctx, colour, text, x, y, room, size, weight = 400) {
  if (!text || room < size / 2) return;
  ctx.font = `${weight} ${size}px ${FACE}`;
  ctx.fillStyle = colour;
  let shown = text.length > 64 ? text.slice(0, 64) : text;
  if (ctx.measureText(shown).width > room) {
    let [low, high] = [0, shown.length];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (ctx.measureText(`${shown.slice(0, middle)}…`).width <= room) low = middle;
      else high = middle - 1;
    }
    shown = low ? `${shown.slice(0, low)}…` : "";
  }
  ctx.fillText(shown, x, y);
}
