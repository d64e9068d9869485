// What is chosen, and which pixel means what.

const $ = (id) => document.getElementById(id);
const styleNamed = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const plane = taps ? "plane" : "head";
const quantity = signed ? "weight" : "probability";
const GRID = [0, 1].map((axis) => Math.max(...data.layers.map((l) => l.query[axis])));
const SHOWN = ["map", "seen", "overlay", "average"];
const LAST = data.checkpoints.length - 1; // those of other runs come before the run's own
const FIRST = data.checkpoints.findIndex(({ run }) => run === data.checkpoints[LAST].run);
const DEFAULTS = {
  image: 0,
  checkpoint: LAST,
  query: GRID.map((length) => Math.floor(length / 2)),
  beside: FIRST > 0 ? 0 : -1, // another checkpoint, below each layer of the first; -1: none
  pinned: false, // else the query follows the pointer
  show: "map",
  log: false,
  shared: false,
  cell: 0, // the chosen map
};
const state = { ...DEFAULTS };
let sides = []; // the layers' maps of the chosen image: of the checkpoint, of that beside
let shown = []; // the checkpoints of `sides`, while the state may already name others
let photo = null; // the chosen image
let hovered = null; // {cell, pixel}

// Query pixel of a layer: layers may have grids of different sizes (SAN).
function queryOf(layer) {
  return layer.query.map((length, axis) =>
    Math.floor(((state.query[axis] + 0.5) * length) / GRID[axis]),
  );
}

function mapOf(cell) {
  const maps = sides[cell.side][cell.layer];
  if (state.show === "average") return averageMap(maps, cell.head);
  const [row, column] = queryOf(maps);
  return singleMap(maps, cell.head, row * maps.query[1] + column);
}

// The pixel of a map that marks the query: itself, or the middle of the taps.
function markOf(layer) {
  return taps ? layer.key.map((length) => (length - 1) / 2) : queryOf(layer);
}

function positionOf(map, pixel) {
  return [Math.floor(pixel / map.grid[1]), pixel % map.grid[1]];
}

// Key minus query, of a pixel of a map.
function offsetOf(layer, position) {
  return position.map((p, axis) => p - markOf(layer)[axis]);
}

// The key pixel that lies at an offset; taps are reflected at the border.
function keyAt(layer, offset) {
  return queryOf(layer).map((query, axis) => {
    const last = layer.query[axis] - 1;
    const inside = Math.abs(query + offset[axis]);
    return inside > last ? Math.max(0, 2 * last - inside) : inside;
  });
}

function moveQuery(row, column) {
  const inside = [row, column].map((p, axis) => Math.min(GRID[axis] - 1, Math.max(0, Math.floor(p) || 0)));
  if (inside[0] === state.query[0] && inside[1] === state.query[1]) return;
  state.query = inside;
  writeQuery();
  noteView();
  repaint();
}

function pin(pinned) {
  if (pinned === state.pinned) return;
  state.pinned = pinned;
  writeQuery();
  noteView();
  repaint();
}

// The checkpoints that are chosen: one, or two beside each other.
function chosenCheckpoints() {
  return state.beside < 0 ? [state.checkpoint] : [state.checkpoint, state.beside];
}

function choose(cell) {
  state.cell = cell;
  noteView();
  repaint();
}
