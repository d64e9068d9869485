// Where each map lies on the canvas, and how large image and maps are.

const COLUMNS = 16; // maps side by side at most
const NAME = 15; // height of a layer's name above its maps, on a narrow page
const NUMBERS = 18; // height of the numbers of the columns
const WRAPPED = 14; // height of the numbers of a row of a layer with more rows
const SMALLEST = 28; // of a map, in pixels of the page
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

// Places all maps, layers as rows and heads as columns, as large as the screen allows.
function layOut() {
  const columns = Math.max(1, Math.min(COLUMNS, Math.max(...data.layers.map((l) => l.heads))));
  const above = isNarrow();
  const left = above ? 2 : widthOfNames();
  const gap = above ? 3 : columns > 12 ? 4 : 8;
  const below = data.classMass ? 31 : 18;
  const overhead = (layer) => below + (above ? NAME : 2) + (layer.heads > columns ? WRAPPED : 0);
  const rowsOf = (layer) => Math.max(1, Math.ceil(layer.heads / columns));

  const wide = ($("scroll").clientWidth - 6 - left) / columns - gap;
  const top = $("scroll").getBoundingClientRect().top + window.scrollY;
  const spent = data.layers.reduce((sum, l) => sum + rowsOf(l) * overhead(l), NUMBERS);
  const rows = data.layers.reduce((sum, l) => sum + rowsOf(l), 0);
  const high = (window.innerHeight - top - 8 - spent) / rows;
  const box = Math.max(SMALLEST, Math.min(LARGEST, Math.floor(wide), Math.floor(high)));

  layout.cells = [];
  layout.lines = [];
  layout.columns = columns;
  layout.left = left;
  layout.above = above;
  const first = NUMBERS + (above ? NAME : 0);
  let y = first;
  let named = 0; // columns that have their number above the grid
  data.layers.forEach((layer, index) => {
    const zoom = { single: zoomOfGrid(layer.key, box), average: zoomOfGrid(layer.query, box) };
    const heights = [layer.key[0] * zoom.single];
    if (!taps) heights.push(layer.query[0] * zoom.average);
    const height = layer.heads ? Math.max(...heights) : SMALLEST / 2;
    const wrapped = layer.heads > columns;
    const step = height + below + (wrapped ? WRAPPED : 2);
    if (index > 0) y += (above ? NAME : 0) + (wrapped ? WRAPPED : 0);
    const nameAt = index === 0 ? NAME - 4 : y - 4 - (wrapped ? WRAPPED : 0);
    layout.lines.push({ layer, y: above ? nameAt : y + height / 2 + 4 });
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
        numberAt: wrapped ? top - 5 : head < named ? null : first - 5,
      });
    }
    if (!wrapped || index === 0) named = Math.max(named, layer.heads);
    y += rowsOf(layer) * step;
  });
  layout.width = left + columns * (box + gap);
  layout.height = y;
  state.cell = Math.min(state.cell, Math.max(0, layout.cells.length - 1));
  makeRoom();
}

function widthOfNames() {
  const context = $("maps").getContext("2d");
  context.font = FONT;
  const widths = data.layers.map((l) => context.measureText(l.name).width);
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

// The map one layer up or down (at the same head, or its last), or one head beside.
function neighbour(cell, [down, right]) {
  const of = (layer, head) => layout.cells.findIndex((c) => c.layer === layer && c.head === head);
  if (right) return of(cell.layer, cell.head + right);
  for (let layer = cell.layer + down; layer >= 0 && layer < data.layers.length; layer += down)
    if (data.layers[layer].heads) return of(layer, Math.min(cell.head, data.layers[layer].heads - 1));
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
