// What the map's cells mean: small cells, drawn as the map draws them.

import { h } from "../dom.js";
import { colours, paintNode } from "./paint.js";

const SIZE = { cell: [22, 18], head: 0, quiet: true }; // quiet: no word over the cell, it stands beside it
const HELD = [{ job: "x", share: 1 }];
const GPU = { index: 0, used: 0.6, slow: 1, quarantined: false, holders: HELD };
const SAMPLES = [
  ["held, and used so far", {}],
  ["held, but idle", { used: 0 }],
  ["shared", { holders: [{ job: "x", share: 0.5 }, { job: "b", share: 0.5 }] }],
  ["slow", { slow: 1.3 }],
  ["free", { holders: [] }],
  ["free, but wanted", { holders: [] }, "ready", true],
  ["drained", {}, "drained"],
  ["quarantined", {}, "quarantined"],
  ["silent", {}, "silent"],
  ["lost", {}, "lost"],
];

export function legend() {
  const items = SAMPLES.map(([words, gpu, state = "ready", wanted = false]) => {
    const canvas = h("canvas", { width: 44, height: 36, ariaHidden: "true" });
    const node = { id: "", state, gpus: [{ ...GPU, ...gpu }] };
    return { canvas, node, wanted, element: h("li", {}, canvas, words) };
  });
  const element = h("ul", { class: "legend", ariaLabel: "What the cells mean" }, items.map((item) => item.element));
  function draw() {
    if (!element.isConnected) return;
    const ink = colours(element);
    for (const { canvas, node, wanted } of items) {
      const ctx = canvas.getContext("2d");
      ctx.setTransform(2, 0, 0, 2, 0, 0);
      const cell = { gpu: 0, x: 0, y: 0, w: 22, h: 18 };
      paintNode(ctx, ink, node, { ...cell, cells: [cell] }, SIZE, { jobs: {}, wanted, lit: null });
    }
  }
  const details = h("details", { class: "legend-box" }, h("summary", {}, "What the cells mean"), element);
  details.addEventListener("toggle", draw);
  return details;
}
