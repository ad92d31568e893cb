// What the map's cells mean: small cells, drawn as the map draws them.

import { h } from "../dom.js";
import { colours, paintNode } from "./paint.js";

const SIZE = { cell: [28, 28], head: 0, quiet: true }; // quiet: no word over the cell, it stands beside it
const HELD = [{ job: "x", share: 1 }];
const GPU = { index: 0, used: 0.6, slow: 1, quarantined: false, holders: HELD };
const SAMPLES = [
  ["busy: the filled part is its use", {}],
  ["held, but idle", { used: 0 }],
  ["shared: the edge has the colour of each job", { holders: [{ job: "x", share: 0.5 }, { job: "b", share: 0.5 }] }],
  ["slow", { slow: 1.3 }],
  ["quarantined", { out: "x" }],
  ["free", { holders: [] }],
  ["free, but wanted", { holders: [] }, "ready", true],
  ["on a drained node", {}, "drained"],
  ["its node is silent", {}, "silent"],
  ["its node is lost", {}, "lost"],
];

export function legend() {
  const items = SAMPLES.map(([words, gpu, state = "ready", wanted = false]) => {
    const canvas = h("canvas", { width: 56, height: 56, ariaHidden: "true" });
    const node = { id: "", state, gpus: [{ ...GPU, ...gpu }] };
    return { canvas, node, wanted, element: h("li", {}, canvas, words) };
  });
  const element = h("ul", { class: "legend", ariaLabel: "Meaning of the cells" }, items.map((item) => item.element));
  function draw() {
    if (!element.isConnected) return;
    const ink = colours(element);
    for (const { canvas, node, wanted } of items) {
      const ctx = canvas.getContext("2d");
      ctx.setTransform(2, 0, 0, 2, 0, 0);
      const cell = { gpu: 0, x: 0, y: 0, w: 28, h: 28 };
      paintNode(ctx, ink, node, { ...cell, cells: [cell] }, SIZE, { jobs: {}, wanted, lit: null });
    }
  }
  const details = h("details", { class: "legend-box" }, h("summary", {}, "Meaning of the cells"), element);
  details.addEventListener("toggle", draw);
  return details;
}
