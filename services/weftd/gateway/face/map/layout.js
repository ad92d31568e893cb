// Where each node and GPU is on the map: a ladder of densities, from cells with names to cells of 10 px. Pure.
// A node is one row of cells; nodes of more than eight GPUs have several.

// `cell`: width and height of a GPU with its gap; `head`: of the line with the node's name; `pad`: inside a node's
// frame; `gap`: between nodes; `rowGap`: between rows of nodes, if that is another. The first size at which all nodes fit the height is taken, else the last.
const LADDER = [
  { cell: [120, 44], head: 28, pad: 8, gap: 12 },
  { cell: [64, 32], head: 28, pad: 8, gap: 12 },
  { cell: [40, 28], head: 24, pad: 6, gap: 8 },
  { cell: [28, 28], head: 20, pad: 4, gap: 8 },
  { cell: [22, 20], head: 16, pad: 2, gap: 6 },
  { cell: [18, 18], head: 0, pad: 1, gap: 4 },
  { cell: [14, 14], head: 0, pad: 1, gap: 3 },
  { cell: [10, 10], head: 0, pad: 0, gap: 2, rowGap: 1 },
];
const FIRST = 2; // the largest size that is taken without zooming: a row of eight cells of 28 px for each node
const COLUMNS_MAX = 8; // GPUs of a node side by side
const POOL_HEAD = 22;
const STRETCHED = 40; // px of width from which cells are made wider
const STRETCH_MAX = 1.6;

export const ZOOMS = LADDER.length;

const NAMES = new Intl.Collator("en", { numeric: true });

// The nodes in the order of the map: by pool, then by name, node-9 before node-10.
export function inOrder(nodes) {
  return [...nodes].sort((a, b) => NAMES.compare(a.pool, b.pool) || NAMES.compare(a.id, b.id));
}

// {size, blocks, cells, pools, width, height}; `blocks` by node: {node, x, y, w, h, cells}, `cells` of all GPUs in
// order: {node, gpu (its place in the node, -1: the node has none), x, y, w, h}, in pixels of the page. `zoom`: so many
// sizes larger than what fits, or smaller; `step` tells which size it was.
export function layOut(nodes, width, height, zoom = 0) {
  const ordered = inOrder(nodes);
  for (let step = FIRST; step < LADDER.length; step += 1) {
    const last = step === LADDER.length - 1;
    const made = flow(ordered, LADDER[step], width, last ? Infinity : height, last);
    if (!made) continue;
    const wanted = Math.max(0, Math.min(LADDER.length - 1, step - zoom));
    return { ...(wanted === step ? made : flow(ordered, LADDER[wanted], width, Infinity, true)), step: wanted };
  }
  return null;
}

// Nodes from left to right, in rows; null if they need more than `height`, or, unless a node `wraps`, more than `width`.
function flow(nodes, size, width, height, wraps) {
  const rowGap = size.rowGap ?? size.gap;
  const cell = stretched(nodes, size, width);
  const [cellWidth, cellHeight] = cell;
  const pools = [];
  const blocks = [];
  const several = nodes.length > 0 && nodes[0].pool !== nodes[nodes.length - 1].pool;
  let [x, y, rowHeight, pool] = [0, 0, 0, null];
  for (const node of nodes) {
    if (several && node.pool !== pool) {
      y += rowHeight && rowHeight + rowGap;
      pools.push({ pool: node.pool, y });
      [x, y, rowHeight, pool] = [0, y + POOL_HEAD, 0, node.pool];
    }
    const number = Math.max(1, node.gpus.length);
    const room = Math.max(1, Math.floor((width - 2 * size.pad) / cellWidth));
    const columns = Math.min(number, COLUMNS_MAX, room);
    if (!wraps && columns < Math.min(number, COLUMNS_MAX)) return null;
    const w = columns * cellWidth + 2 * size.pad;
    const h = size.head + Math.ceil(number / columns) * cellHeight + 2 * size.pad;
    if (x > 0 && x + w > width) {
      y += rowHeight + rowGap;
      [x, rowHeight] = [0, 0];
    }
    blocks.push({ node: node.id, x, y, w, h, cells: cellsOf(node, number, columns, x, y, { ...size, cell }) });
    x += w + size.gap;
    rowHeight = Math.max(rowHeight, h);
    if (y + rowHeight > height) return null;
  }
  return { size: { ...size, cell }, blocks, pools, cells: blocks.flatMap((block) => block.cells), width, height: y + rowHeight };
}

// Large cells are made wider, so that the nodes fill the width.
function stretched(nodes, size, width) {
  const [w, h] = size.cell;
  if (w < STRETCHED) return size.cell;
  const widest = Math.min(COLUMNS_MAX, nodes.reduce((most, node) => Math.max(most, node.gpus.length), 1));
  const beside = Math.floor((width + size.gap) / (widest * w + 2 * size.pad + size.gap));
  if (beside < 1) return size.cell;
  const room = (width + size.gap) / Math.min(beside, nodes.length) - size.gap - 2 * size.pad;
  return [Math.floor(Math.min(room / widest, STRETCH_MAX * w)), h];
}

function cellsOf(node, number, columns, x, y, size) {
  const [w, h] = size.cell;
  return Array.from({ length: number }, (_, place) => ({
    node: node.id,
    gpu: node.gpus.length ? place : -1,
    x: x + size.pad + (place % columns) * w,
    y: y + size.head + size.pad + Math.floor(place / columns) * h,
    w, h,
  }));
}

// The cell at a point, or null. Between the cells of a node: its nearest.
export function cellAt(layout, x, y) {
  const block = layout.blocks.find((each) => x >= each.x && x < each.x + each.w && y >= each.y && y < each.y + each.h);
  return block ? nearest(block.cells, x, y) : null;
}

// The cell that an arrow key leads to from another; the same if there is none further.
export function neighbour(layout, cell, key) {
  const place = layout.cells.indexOf(cell);
  if (key === "ArrowLeft") return layout.cells[Math.max(0, place - 1)];
  if (key === "ArrowRight") return layout.cells[Math.min(layout.cells.length - 1, place + 1)];
  if (key === "Home") return layout.cells[0];
  if (key === "End") return layout.cells[layout.cells.length - 1];
  const up = key === "ArrowUp";
  const beyond = layout.cells.filter((each) => (up ? each.y < cell.y : each.y > cell.y));
  if (!beyond.length) return cell;
  const row = beyond.reduce((y, each) => (up ? Math.max(y, each.y) : Math.min(y, each.y)), up ? -Infinity : Infinity);
  return nearest(beyond.filter((each) => each.y === row), cell.x + cell.w / 2, row);
}

function nearest(cells, x, y) {
  const far = (cell) => Math.abs(cell.x + cell.w / 2 - x) + Math.abs(cell.y + cell.h / 2 - y);
  return cells.reduce((best, cell) => (far(cell) < far(best) ? cell : best));
}
