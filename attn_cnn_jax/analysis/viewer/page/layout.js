// What is chosen, which pixel means what, and where each map lies on the canvas.

const $ = (id) => document.getElementById(id);
const plane = taps ? "plane" : "head";
const quantity = signed ? "weight" : "probability";
const COLUMNS = 16; // maps side by side at most
const TOP = 20; // of the first row of maps, below the numbers of the columns
const GRID = [0, 1].map((axis) => Math.max(...data.layers.map((l) => l.query[axis])));
const state = {
  image: 0,
  checkpoint: 0,
  query: GRID.map((length) => Math.floor(length / 2)),
  average: false,
  log: false,
  shared: false,
  cell: 0, // the chosen map
};
const layout = { cells: [], lines: [] };
let layers = []; // maps of the chosen image and checkpoint
let photo = null; // the chosen image
let hovered = null; // {cell, pixel}

// Query pixel of a layer: layers may have grids of different sizes (SAN).
function queryOf(layer) {
  return layer.query.map((length, axis) =>
    Math.floor(((state.query[axis] + 0.5) * length) / GRID[axis]),
  );
}

function mapOf(cell) {
  const maps = layers[cell.layer];
  if (state.average) return averageMap(maps, cell.head);
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

function nameOf(cell) {
  return `${data.layers[cell.layer].name}, ${plane} ${cell.head + 1}`;
}

function pair(two) {
  return `(${two[0]}, ${two[1]})`;
}

function signedPair(two) {
  return pair(two.map(withSign));
}

// The number, or what it lies below if it is rounded to 0.
function inWords(map, pixel) {
  const code = map.codes[map.start + pixel];
  if (signed || code > 0 || map.largest === 0) return number(decode(map, code));
  return `below ${number(decode(map, 1) / 2)}`;
}

// What a pixel of a map says; all in words but `key`, the pixel to frame on the image.
function describe(cell, map, pixel) {
  const layer = data.layers[cell.layer];
  const position = positionOf(map, pixel);
  const value = inWords(map, pixel);
  if (state.average)
    return { what: "pixel", where: pair(position), offset: "", of: "Average Attention", value, key: position };
  const offset = offsetOf(layer, position);
  const key = keyAt(layer, offset);
  return { what: "key", where: pair(key), offset: signedPair(offset), of: quantity, value, key };
}

function placeInWords({ what, where, offset }) {
  return `${what} ${where}${offset ? `, offset ${offset}` : ""}`;
}

// Places all maps, layers as rows and heads as columns, as large as the page allows.
function layOut() {
  const ratio = window.devicePixelRatio || 1;
  const columns = Math.max(1, Math.min(COLUMNS, Math.max(...data.layers.map((l) => l.heads))));
  const context = $("maps").getContext("2d");
  context.font = FONT;
  const widths = data.layers.map((l) => context.measureText(l.name).width);
  const left = Math.min(110, Math.ceil(Math.max(...widths)) + 10);
  const gap = columns > 12 ? 4 : 8;
  const available = $("scroll").clientWidth - 6 - left;
  const box = Math.max(28, Math.min(150, Math.floor(available / columns) - gap));
  const below = data.classMass ? 32 : 20;
  // Whole pixels of the screen for each pixel of a map, where it has so many.
  const zoomOf = (grid) => {
    const fit = (box * ratio) / Math.max(...grid);
    return (fit >= 1 ? Math.floor(fit) : fit) / ratio;
  };
  layout.cells = [];
  layout.lines = [];
  layout.columns = columns;
  let y = TOP;
  let named = 0; // columns that have their number above the grid
  data.layers.forEach((layer, index) => {
    const zoom = { single: zoomOf(layer.key), average: zoomOf(layer.query) };
    const heights = [layer.key[0] * zoom.single];
    if (!taps) heights.push(layer.query[0] * zoom.average);
    const height = Math.max(...heights);
    const wrapped = layer.heads > columns;
    const step = height + below + (wrapped ? 14 : 0);
    if (wrapped && index > 0) y += 14;
    layout.lines.push({ layer, y: y + height / 2 });
    for (let head = 0; head < layer.heads; head++) {
      const top = y + Math.floor(head / columns) * step;
      layout.cells.push({
        layer: index,
        head,
        x: left + (head % columns) * (box + gap),
        y: top,
        height,
        zoom,
        // Where its number stands: that of a column once, by the first layer that has it.
        numberAt: wrapped ? top - 6 : head < named ? null : TOP - 6,
      });
    }
    if (!wrapped || index === 0) named = Math.max(named, layer.heads);
    y += Math.max(1, Math.ceil(layer.heads / columns)) * step;
  });
  layout.left = left;
  state.cell = Math.min(state.cell, Math.max(0, layout.cells.length - 1));
  devicePixels($("maps"), left + columns * (box + gap), y);
  // All maps in their own pixels, written at once and then drawn enlarged.
  const grids = data.layers.flatMap((l) => (taps ? [l.key] : [l.key, l.query]));
  const [height, width] = [0, 1].map((axis) => Math.max(...grids.map((grid) => grid[axis])));
  const rows = Math.max(1, Math.ceil(layout.cells.length / columns));
  layout.cells.forEach((cell, i) => {
    cell.source = [(i % columns) * width, Math.floor(i / columns) * height];
  });
  layout.pixels = new ImageData(columns * width, rows * height);
  layout.canvas = new OffscreenCanvas(columns * width, rows * height);
}

function zoomOf(cell) {
  return state.average ? cell.zoom.average : cell.zoom.single;
}

// The {cell, pixel} at a place of the canvas, or null.
function hit(x, y) {
  for (let i = 0; i < layout.cells.length; i++) {
    const cell = layout.cells[i];
    const [height, width] = state.average ? data.layers[cell.layer].query : data.layers[cell.layer].key;
    const column = Math.floor((x - cell.x) / zoomOf(cell));
    const row = Math.floor((y - cell.y) / zoomOf(cell));
    if (row >= 0 && row < height && column >= 0 && column < width)
      return { cell: i, pixel: row * width + column };
  }
  return null;
}
