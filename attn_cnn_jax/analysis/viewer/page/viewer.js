// Starts the page: its controls, and what the pointer and the keys do.

// For the console and for tests: the state, and decoded values.
const attentionViewer = {
  state,
  paint,
  paintMilliseconds: 0,
  get cells() {
    return layout.cells;
  },
  grid(cell) {
    return mapOf(layout.cells[cell]).grid;
  },
  values(cell) {
    const map = mapOf(layout.cells[cell]);
    const size = map.grid[0] * map.grid[1];
    return Array.from({ length: size }, (_, pixel) => valueAt(map, pixel));
  },
};

let wanted = 0;

// Reads the maps of the chosen image and checkpoint, then draws them.
async function load() {
  const ticket = ++wanted;
  $("maps").setAttribute("aria-busy", "true");
  try {
    const reads = data.layers.map((_, i) => readLayer(state.checkpoint, i, state.image));
    const [image, ...read] = await Promise.all([readImage(state.image), ...reads]);
    if (ticket !== wanted) return;
    [photo, layers] = [image, read];
    paint();
    $("maps").setAttribute("aria-busy", "false");
  } catch (error) {
    complain(`The maps cannot be read: ${error}`);
  }
}

function complain(text) {
  $("problem").textContent = text;
  $("problem").hidden = false;
}

const images = new Map();

async function readImage(index) {
  if (!images.has(index)) {
    const [height, width] = data.imageSize;
    const rgb = new Uint8Array(await inflate(`image-${index}`));
    const pixels = new ImageData(width, height);
    for (let i = 0; i < height * width; i++)
      pixels.data.set([rgb[3 * i], rgb[3 * i + 1], rgb[3 * i + 2], 255], 4 * i);
    const canvas = new OffscreenCanvas(width, height);
    canvas.getContext("2d").putImageData(pixels, 0, 0);
    images.set(index, canvas);
  }
  return images.get(index);
}

function moveQuery(row, column) {
  const inside = [row, column].map((p, axis) => Math.min(GRID[axis] - 1, Math.max(0, Math.floor(p) || 0)));
  if (inside[0] === state.query[0] && inside[1] === state.query[1]) return;
  state.query = inside;
  writeQuery();
  repaint();
}

// At once and not with the drawing, by when somebody may be typing a number.
function writeQuery() {
  [$("row").value, $("column").value] = state.query;
}

const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

function listenToImage() {
  const canvas = $("image");
  const toPointer = (event) => {
    const place = canvas.getBoundingClientRect();
    const row = ((event.clientY - place.top) / place.height) * GRID[0];
    moveQuery(row, ((event.clientX - place.left) / place.width) * GRID[1]);
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    toPointer(event);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (event.buttons & 1) toPointer(event);
  });
  canvas.addEventListener("keydown", (event) => {
    const [row, column] = state.query;
    const step = ARROWS[event.key];
    if (step) moveQuery(row + step[0], column + step[1]);
    else if (event.key === "Home") moveQuery(row, 0);
    else if (event.key === "End") moveQuery(row, GRID[1] - 1);
    else return;
    event.preventDefault();
  });
  ["row", "column"].forEach((id, axis) => {
    $(id).max = GRID[axis] - 1;
    $(id).addEventListener("change", () => {
      const query = [...state.query];
      query[axis] = Number($(id).value);
      moveQuery(...query);
      writeQuery();
    });
  });
  writeQuery();
}

function choose(cell) {
  state.cell = cell;
  repaint();
}

function listenToMaps() {
  const canvas = $("maps");
  const toPointer = (event) => {
    const place = canvas.getBoundingClientRect();
    hovered = hit(event.clientX - place.left, event.clientY - place.top);
    showTip(event);
    if (layers.length) repaint();
  };
  canvas.addEventListener("pointermove", toPointer);
  canvas.addEventListener("pointerdown", (event) => {
    toPointer(event);
    if (hovered) choose(hovered.cell);
  });
  canvas.addEventListener("pointerleave", () => {
    hovered = null;
    $("tip").hidden = true;
    if (layers.length) repaint();
  });
  canvas.addEventListener("keydown", (event) => {
    const step = ARROWS[event.key];
    if (!step || !layout.cells.length) return;
    event.preventDefault();
    const next = neighbour(layout.cells[state.cell], step);
    if (next >= 0) choose(next);
  });
}

// The map one layer up or down (at the same head, or its last), or one head beside.
function neighbour(cell, [down, right]) {
  const of = (layer, head) => layout.cells.findIndex((c) => c.layer === layer && c.head === head);
  if (right) return of(cell.layer, cell.head + right);
  for (let layer = cell.layer + down; layer >= 0 && layer < data.layers.length; layer += down)
    if (data.layers[layer].heads) return of(layer, Math.min(cell.head, data.layers[layer].heads - 1));
  return -1;
}

function showTip(event) {
  writeTip();
  const tip = $("tip");
  if (tip.hidden) return;
  const right = event.clientX + 14 + tip.offsetWidth > window.innerWidth;
  tip.style.left = `${right ? event.clientX - 14 - tip.offsetWidth : event.clientX + 14}px`;
  const low = event.clientY + 14 + tip.offsetHeight > window.innerHeight;
  tip.style.top = `${low ? event.clientY - 14 - tip.offsetHeight : event.clientY + 14}px`;
}

// What the tip says, again after the query or the maps have changed under the pointer.
function writeTip() {
  const tip = $("tip");
  tip.hidden = !hovered || !layers.length;
  if (tip.hidden) return;
  const cell = layout.cells[hovered.cell];
  const map = mapOf(cell);
  const said = describe(cell, map, hovered.pixel);
  const lines = [nameOf(cell), placeInWords(said), `${said.of} ${said.value}`];
  if (map.classMass !== null) lines.push(`class token ${number(map.classMass)}`);
  tip.textContent = lines.join("\n");
}

function listenToChoices() {
  for (const [name, field, value] of [
    ["map", "average", "average"],
    ["scale", "log", "log"],
    ["range", "shared", "shared"],
  ])
    for (const input of document.getElementsByName(name))
      input.addEventListener("change", () => {
        state[field] = input.value === value;
        hovered = null;
        repaint();
      });
  $("strongest").addEventListener("toggle", repaint);
  const slider = $("checkpoint");
  slider.max = data.checkpoints.length - 1;
  slider.value = state.checkpoint = data.checkpoints.length - 1;
  $("checkpoints").hidden = data.checkpoints.length < 2;
  const tellCheckpoint = () => {
    $("checkpoint-name").textContent = data.checkpoints[state.checkpoint];
    slider.setAttribute("aria-valuetext", data.checkpoints[state.checkpoint]);
  };
  slider.addEventListener("input", () => {
    state.checkpoint = Number(slider.value);
    tellCheckpoint();
    load();
  });
  tellCheckpoint();
}

async function showThumbnails() {
  const [height, width] = data.imageSize;
  const draws = data.names.map(async (name, index) => {
    const [label, input, canvas, words] = ["label", "input", "canvas", "span"].map((tag) => document.createElement(tag));
    label.className = "thumbnail";
    Object.assign(input, { type: "radio", name: "image", checked: index === state.image });
    input.addEventListener("change", () => {
      state.image = index;
      load();
    });
    words.textContent = name;
    canvas.setAttribute("aria-hidden", "true");
    [canvas.width, canvas.height] = [width, height];
    label.title = name;
    label.append(input, canvas, words);
    $("thumbnails").append(label);
    return async () => canvas.getContext("2d").drawImage(await readImage(index), 0, 0);
  });
  for (const draw of await Promise.all(draws)) await draw();
}

function writeTexts() {
  $("about").textContent = data.about;
  for (const element of document.querySelectorAll(".head-name")) element.textContent = plane;
  for (const element of document.querySelectorAll(".quantity")) element.textContent = quantity;
  const names = ["layer", plane, "key", "offset", quantity, ...(data.classMass ? ["class token"] : [])];
  $("strongest-names").append(
    ...names.map((name) => {
      const item = document.createElement("th");
      item.scope = "col";
      item.textContent = name;
      return item;
    }),
  );
  $("image").setAttribute("aria-label", "Image: the arrow keys move the query pixel");
  $("maps").setAttribute("aria-label", `Maps of all layers and ${plane}s: the arrow keys choose one`);
  $("maps-help").textContent =
    `Layers are rows, ${plane}s are columns; the framed pixel is ` +
    (taps ? "offset (0, 0), the query itself. Taps are offsets: " : "the query. Offset: ") +
    "key minus query as (row, column). " +
    `Point at a map for its numbers, click it or use the arrow keys to choose it. ` +
    `Numbers are exact to 1/255 of the map's ${signed ? "largest absolute value" : "maximum"}.`;
  $("map-help").textContent = taps
    ? "No Average Attention here: it compares what all queries give to one key pixel, and taps are offsets, not pixels."
    : "Average Attention is a map over queries: what each gives to a key, as a share of what all give to it, averaged over keys.";
  const off = [taps && "average", signed && "log"].filter(Boolean);
  for (const value of off) document.querySelector(`input[value="${value}"]`).disabled = true;
}

function resize() {
  hovered = null;
  const [height, width] = data.imageSize.map((s) => (s * SIDE) / Math.max(...data.imageSize));
  devicePixels($("image"), width, height);
  devicePixels($("chosen"), SIDE, SIDE);
  drawLegend($("legend"), SIDE);
  layOut();
  if (layers.length) paint();
}

function start() {
  if (typeof DecompressionStream === "undefined" || typeof OffscreenCanvas === "undefined") {
    complain("This browser is too old for this page: it needs Chrome 80, Firefox 113 or Safari 16.4.");
    return;
  }
  if (document.characterSet !== "windows-1252") {
    complain(`This page was opened as ${document.characterSet}, which its server says; it is windows-1252, as its file says.`);
    return;
  }
  writeTexts();
  listenToImage();
  listenToMaps();
  listenToChoices();
  resize();
  window.addEventListener("resize", resize);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  load();
  showThumbnails();
}

start();
