// Where each map lies on the canvas, and how large image and maps are.

const COLUMNS = 16; // maps side by side at most
const NAME = 15; // height of a layer's name above its maps, on a narrow page
const NUMBERS = 18; // height of the numbers of the columns
const BETWEEN = 20; // from a checkpoint's maps to those beside them
const WRAPPED = 14; // height of the numbers of a row of a layer with more rows
const SMALLEST = 28; // of a map, in pixels of the page
const SCROLLED = 52; // of a map where not all fit on the screen
const LARGEST = 240;
const layout = { cells: [], lines: [], side: 250 };

function isNarrow() {
  return styleNamed("--narrow") === "1";
}

// Longest side of the image and of the chosen map, in pixels of the page.
function sideOf() {
  const side = Math.min(0.19 * window.innerWidth, 0.29 * window.innerHeight);
  return isNarrow() ? 150 : Math.round(Math.min(320, Math.max(140, side)));
}

// Places all maps, layers as rows and heads as columns, as large as the screen allows; two
// checkpoints side by side, or each layer of one below that of the other.
function layOut() {
  const chosen = layout.cells[state.cell];
  Object.assign(layout, { cells: [], lines: [] }, arrangement());
  placeMaps();
  if (chosen) state.cell = Math.max(0, cellAt(chosen.layer, chosen.head, Math.min(chosen.side, layout.sides - 1)));
  makeRoom();
}

// How many maps stand side by side, how large each is, and what stands around it.
function arrangement() {
  const columns = Math.max(1, Math.min(COLUMNS, Math.max(...data.layers.map((l) => l.heads))));
  const above = isNarrow(); // where the name of a layer stands, else on its left
  const left = above ? 2 : widthOfNames();
  const gap = above ? 3 : columns > 12 ? 4 : 8;
  const below = data.classMass ? 31 : 18;
  const rowsOf = (layer) => Math.max(1, Math.ceil(layer.heads / columns));
  const count = Math.max(1, sides.length);

  const { top } = $("scroll").getBoundingClientRect();
  const room = [window.innerHeight - top - window.scrollY - 8, $("scroll").clientWidth - 6 - left];
  const wideOf = (beside) => Math.floor((room[1] - (beside - 1) * BETWEEN) / (beside * columns) - gap);
  const boxOf = (beside, down) => {
    const around = (layer) => below + (above ? NAME : 2) + (layer.heads > columns ? WRAPPED : 0);
    const spent = data.layers.reduce((sum, l) => sum + down * rowsOf(l) * around(l), NUMBERS + beside * NAME);
    const rows = data.layers.reduce((sum, l) => sum + down * rowsOf(l), 0);
    return Math.min(wideOf(beside), Math.floor((room[0] - spent) / rows));
  };
  const across = count > 1 && boxOf(count, 1) >= Math.max(SMALLEST, boxOf(1, count));
  const fitting = Math.min(LARGEST, across ? boxOf(count, 1) : boxOf(1, count));
  const box = fitting >= SMALLEST ? fitting : Math.max(SMALLEST, Math.min(SCROLLED, wideOf(1)));
  return { sides: count, across, columns, left, above, below, gap, box, rowsOf };
}

function placeMaps() {
  const { sides: count, across, columns, left, above, below, gap, box, rowsOf } = layout;
  const block = columns * (box + gap) + BETWEEN; // of a checkpoint's maps
  const first = NUMBERS + (above ? NAME : 0) + (across ? NAME : 0);
  const named = [0, 0]; // columns of each block that have their number above the grid
  let y = first;
  for (let side = 0; across && side < count; side++)
    layout.lines.push({ side, x: left + side * block, y: NAME - 4 });
  const rows = data.layers.flatMap((layer, index) => [...Array(count).keys()].map((side) => [layer, index, side]));
  for (const [layer, index, side] of rows) {
    const zoom = { single: zoomOfGrid(layer.key, box), average: zoomOfGrid(layer.query, box) };
    const heights = [layer.key[0] * zoom.single];
    if (!taps) heights.push(layer.query[0] * zoom.average);
    const height = layer.heads ? Math.max(...heights) : SMALLEST / 2;
    const wrapped = layer.heads > columns;
    const step = height + below + (wrapped ? WRAPPED : 2);
    const place = across ? side : 0; // of its block
    const isFirst = index === 0 && side === 0;
    if (!place) {
      if (!isFirst) y += (above ? NAME : 0) + (wrapped ? WRAPPED : 0);
      const nameAt = isFirst ? first - NUMBERS - 4 : y - 4 - (wrapped ? WRAPPED : 0);
      layout.lines.push({ layer, side, x: 0, y: above ? nameAt : y + height / 2 + 4 });
    }
    for (let head = 0; head < layer.heads; head++) {
      const top = y + Math.floor(head / columns) * step;
      const x = left + place * block + (head % columns) * (box + gap);
      // Where its number stands: that of a column once, by the first layer that has it.
      const numberAt = wrapped ? top - 5 : head < named[place] ? null : first - 5;
      layout.cells.push({ layer: index, head, side, x, y: top, height, zoom, numberAt });
    }
    if (!wrapped || index === 0) named[place] = Math.max(named[place], layer.heads);
    if (!across || side === count - 1) y += rowsOf(layer) * step;
  }
  layout.width = left + (across ? count : 1) * block - BETWEEN;
  layout.height = y;
}

function widthOfNames() {
  const context = $("maps").getContext("2d");
  context.font = FONT;
  const names = data.layers.map((l) => l.name);
  if (sides.length > 1) names.push(shortName(shown[1]));
  const widths = names.map((name) => context.measureText(name).width);
  return Math.min(110, Math.ceil(Math.max(...widths)) + 10);
}

// Whole pixels of the screen for each pixel of a map, where it has so many.
function zoomOfGrid(grid, box) {
  const ratio = window.devicePixelRatio || 1;
  const fit = (box * ratio) / Math.max(...grid);
  return (fit >= 1 ? Math.floor(fit) : fit) / ratio;
}

// Room for all maps in their own pixels, written at once and then drawn enlarged.
function makeRoom() {
  const grids = data.layers.flatMap((l) => (taps ? [l.key] : [l.key, l.query]));
  const [height, width] = [0, 1].map((axis) => Math.max(...grids.map((grid) => grid[axis])));
  const rows = Math.max(1, Math.ceil(layout.cells.length / layout.columns));
  layout.cells.forEach((cell, i) => {
    cell.source = [(i % layout.columns) * width, Math.floor(i / layout.columns) * height];
  });
  layout.pixels = new ImageData(layout.columns * width, rows * height);
  layout.canvas = new OffscreenCanvas(layout.columns * width, rows * height);
}

function zoomOf(cell) {
  return state.show === "average" ? cell.zoom.average : cell.zoom.single;
}

// The {cell, pixel} at a place of the canvas, or null.
function hit(x, y) {
  for (let i = 0; i < layout.cells.length; i++) {
    const cell = layout.cells[i];
    const layer = data.layers[cell.layer];
    const [height, width] = state.show === "average" ? layer.query : layer.key;
    const column = Math.floor((x - cell.x) / zoomOf(cell));
    const row = Math.floor((y - cell.y) / zoomOf(cell));
    if (row >= 0 && row < height && column >= 0 && column < width)
      return { cell: i, pixel: row * width + column };
  }
  return null;
}

// The index of a map, -1 where there is none.
function cellAt(layer, head, side) {
  return layout.cells.findIndex((c) => c.layer === layer && c.head === head && c.side === side);
}

// The map one row up or down (at the same head, or its last), or one head beside.
function neighbour(cell, [down, right]) {
  const { layer, head, side } = cell;
  const [across, below] = layout.across ? [layout.sides, 1] : [1, layout.sides];
  if (right) {
    const next = cellAt(layer, head + right, side);
    if (next >= 0 || across === 1) return next;
    return cellAt(layer, right > 0 ? 0 : data.layers[layer].heads - 1, side + right);
  }
  const row = below > 1 ? layer * below + side : layer;
  for (let other = row + down; other >= 0 && other < data.layers.length * below; other += down) {
    const there = Math.floor(other / below);
    const { heads } = data.layers[there];
    if (heads) return cellAt(there, Math.min(head, heads - 1), below > 1 ? other % below : side);
  }
  return -1;
}

// Gives a canvas its size on the page and one pixel for each of the screen's.
function devicePixels(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
}

// The pen of a canvas, cleared, that counts in pixels of the page.
function penOf(canvas) {
  const context = canvas.getContext("2d");
  const ratio = window.devicePixelRatio || 1;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingEnabled = false;
  return context;
}

// Height and width of the image on the page.
function imageSizeOnPage() {
  return data.imageSize.map((s) => (s * layout.side) / Math.max(...data.imageSize));
}
