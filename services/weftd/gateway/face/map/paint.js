// Draws nodes and GPUs on a canvas. What a colour says is said by a form too: a letter, a name, hatching, a badge.

import { clean, percent } from "../dom.js";
import { HOLDERS, IDLE, SLOW, holder, letter } from "../words.js";

const NAMED = 48; // px of width from which a cell has a name in it
const LETTERED = 20; // and a letter

// The colours of the theme in force, as a canvas takes them.
export function colours(element) {
  const probe = document.createElement("span");
  element.append(probe);
  const read = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const names = ["bg", "panel", "raised", "text", "muted", "line", "edge", "accent", "on-accent", "warn", "bad", "on-c"];
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
  const told = size.head >= 20 ? headNote(node) : "";
  ctx.font = `${font}px system-ui, sans-serif`;
  const noteWidth = told ? Math.min(ctx.measureText(told).width, block.w * 0.6) : 0;
  const room = block.w - 2 * size.pad - 2;
  words(ctx, ink.text, clean(node.id), block.x + size.pad + 1, line, room - noteWidth - 8, font, 600);
  if (told) words(ctx, node.state === "ready" ? ink.muted : ink.text, told, block.x + block.w - size.pad - 1 - noteWidth, line, noteWidth + 1, font);
}

function headNote(node) {
  const held = node.gpus.filter((gpu) => gpu.holders.length).length;
  const out = node.gpus.filter((gpu) => gpu.out).length;
  const state = node.state === "ready" ? (out ? `${out} quarantined, ` : "") : `${node.state}, `;
  return node.gpus.length ? `${state}${held} of ${node.gpus.length} held` : node.state;
}

// One GPU in its cell.
export function paintGpu(ctx, ink, node, gpu, cell, scene) {
  const gap = cell.w >= NAMED ? 4 : cell.w >= LETTERED ? 2 : 1;
  const [x, y, w, h] = [cell.x, cell.y, cell.w - gap, cell.h - gap];
  ctx.fillStyle = ink.raised;
  ctx.fillRect(x, y, w, h);
  if (!gpu.holders.length) paintFree(ctx, ink, node, gpu, x, y, w, h, scene);
  let left = x;
  for (const held of gpu.holders) {
    const width = Math.max(0, Math.min(w * (held.share ?? 1), x + w - left));
    paintHolder(ctx, ink, gpu, held, left, y, width, h, scene);
    left += width;
  }
  if (gpu.holders.length && w >= NAMED) words(ctx, ink["on-c"], useWords(gpu, w), x + 5, y + h - 6, (left - x) - 8, 11);
  if (isSlow(gpu)) slowBadge(ctx, ink, gpu, x, y, w);
}

function useWords(gpu, width) {
  if (gpu.used === null || gpu.used === undefined) return "";
  if (isIdle(gpu)) return "idle";
  return width < 70 ? percent(gpu.used) : `${percent(gpu.used)} used`;
}

// The part of a holder: pale for what it holds, full from the bottom for what is used; hollow if nothing is.
function paintHolder(ctx, ink, gpu, held, x, y, w, h, scene) {
  const colour = ink.holders[holder(held.job)];
  const alpha = ctx.globalAlpha;
  const known = gpu.used !== null && gpu.used !== undefined;
  ctx.fillStyle = "#fff"; // under the pale part: dark text must be readable on it in the dark theme too
  ctx.fillRect(x, y, w, h);
  ctx.fillStyle = colour;
  ctx.globalAlpha = alpha * (known ? 0.4 : 1);
  ctx.fillRect(x, y, w, h);
  ctx.globalAlpha = alpha;
  if (isIdle(gpu)) hollow(ctx, ink, colour, x, y, w, h);
  else if (known) {
    const full = h * Math.min(1, Math.max(0, gpu.used));
    ctx.fillRect(x, y + h - full, w, full);
  }
  if (x > 0 && held.share < 1) {
    ctx.fillStyle = ink["on-c"];
    ctx.fillRect(x + w - 1, y, 1, h); // between the parts of a shared GPU
  }
  const name = scene.jobs[held.job]?.name || held.name || "";
  if (w >= NAMED - 6) words(ctx, ink["on-c"], clean(name) || "another tenant's", x + 5, y + 16, w - 8 - (isSlow(gpu) && w < 90 ? 26 : 0), 12, 600);
  else if (w >= LETTERED / 2 && h >= 14) words(ctx, ink["on-c"], letter(held.job, name), x + 3, y + h / 2 + 4, w - 3, 11, 700);
}

function hollow(ctx, ink, colour, x, y, w, h) {
  const edge = w >= LETTERED ? 3 : 2;
  ctx.fillStyle = colour;
  ctx.fillRect(x, y, w, h);
  ctx.fillStyle = w >= LETTERED ? "#fff" : ink.bg;
  ctx.fillRect(x + edge, y + edge, Math.max(0, w - 2 * edge), Math.max(0, h - 2 * edge));
}

function paintFree(ctx, ink, node, gpu, x, y, w, h, scene) {
  const wanted = scene.wanted && node.state === "ready";
  ctx.lineWidth = 1;
  ctx.strokeStyle = wanted ? ink.accent : ink.edge;
  ctx.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
  if (wanted && w < NAMED) { // a plus
    const [cx, cy, arm] = [x + Math.floor(w / 2), y + Math.floor(h / 2), Math.max(2, Math.floor(Math.min(w, h) / 4))];
    ctx.fillStyle = ink.accent;
    ctx.fillRect(cx - arm, cy, 2 * arm + 1, 1);
    ctx.fillRect(cx, cy - arm, 1, 2 * arm + 1);
  }
  if (w < NAMED) return;
  words(ctx, wanted ? ink.accent : ink.muted, "free", x + 5, y + 16, w - 8, 12, 600);
  if (wanted) words(ctx, ink.accent, "wanted", x + 5, y + h - 6, w - 8, 11);
}

function slowBadge(ctx, ink, gpu, x, y, w) {
  const label = gpu.slow >= SLOW ? `${gpu.slow.toFixed(2)}x` : "slow";
  ctx.fillStyle = ink.bad;
  if (w < 30) { // a dark corner with a light edge: it stands out from any holder's colour
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
  const font = w >= 70 ? 11 : 9;
  ctx.font = `700 ${font}px system-ui, sans-serif`;
  const width = ctx.measureText(label).width + 6;
  ctx.fillRect(x + w - width, y, width, font + 5);
  words(ctx, ink.panel, label, x + w - width + 3, y + font + 1, width, font, 700);
}

// Hatching and a word over a node that takes no work.
function outOfService(ctx, ink, node, block, size) {
  if (node.state === "ready") return;
  const top = block.y + size.head;
  const height = block.h - size.head;
  ctx.save();
  ctx.beginPath();
  ctx.rect(block.x, top, block.w, height);
  ctx.clip();
  if (node.state === "lost") {
    ctx.globalAlpha = 0.6;
    ctx.fillStyle = ink.bg;
    ctx.fillRect(block.x, top, block.w, height);
    ctx.globalAlpha = 1;
  }
  ctx.strokeStyle = node.state === "lost" ? ink.bad : ink.text;
  ctx.lineWidth = size.head ? 1.5 : 1;
  ctx.beginPath();
  const step = size.head ? 12 : 6;
  if (node.state === "silent") {
    for (let y = top + step / 2; y < top + height; y += step) line(ctx, block.x, y, block.x + block.w, y);
  } else {
    for (let x = block.x - height; x < block.x + block.w; x += step) line(ctx, x, top + height, x + height, top);
    if (node.state === "lost") for (let x = block.x; x < block.x + block.w + height; x += step) line(ctx, x, top + height, x - height, top);
  }
  ctx.stroke();
  ctx.restore();
  if (!size.quiet && (!size.head || size.cell[0] >= NAMED)) label(ctx, ink, node, block, top, height, size);
}

function label(ctx, ink, node, block, top, height, size) {
  const font = size.head ? 12 : 9;
  ctx.font = `700 ${font}px system-ui, sans-serif`;
  const whole = ctx.measureText(node.state).width + 8;
  const said = whole <= block.w ? node.state : node.state[0].toUpperCase();
  const width = Math.min(block.w, said === node.state ? whole : font + 3);
  const [x, y] = [block.x + (block.w - width) / 2, top + height / 2];
  ctx.fillStyle = node.state === "lost" ? ink.bad : ink.text;
  ctx.fillRect(x, y - font / 2 - 2, width, font + 4 - (size.head ? 0 : 2));
  words(ctx, ink.panel, said, x + (said === node.state ? 4 : 2), y + font / 2 - 1.5, width, font, 700);
}

function line(ctx, x0, y0, x1, y1) {
  ctx.moveTo(x0, y0);
  ctx.lineTo(x1, y1);
}

// A text that ends with "…" where there is no room for all of it.
function words(ctx, colour, text, x, y, room, size, weight = 400) {
  if (!text || room < size / 2) return;
  ctx.font = `${weight} ${size}px system-ui, sans-serif`;
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
