// Draws what is chosen, all maps at once, and says it in words.

const SIDE = 258; // of the image and of the chosen map, in pixels of the page
let scheduled = false;

function repaint() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    paint();
  });
}

function paint() {
  if (!layers.length) return;
  const started = performance.now();
  const maps = layout.cells.map(mapOf);
  const top = Math.max(0, ...maps.map((map) => map.largest));
  paintMaps(maps, top);
  paintImage();
  paintChosen(maps);
  paintScale(top);
  writeTip();
  say(maps);
  attentionViewer.paintMilliseconds = performance.now() - started;
}

// Writes a map's colours into `words`, rows `stride` apart, from `to` on.
function fill(words, stride, to, map, colours) {
  const [height, width] = map.grid;
  let from = map.start;
  for (let row = 0; row < height; row++, to += stride)
    for (let column = 0; column < width; column++) words[to + column] = colours[map.codes[from++]];
}

function paintMaps(maps, top) {
  const words = new Uint32Array(layout.pixels.data.buffer);
  const stride = layout.pixels.width;
  maps.forEach((map, i) => {
    const colours = coloursOf(map, state.shared ? top : map.largest, state.log);
    const [x, y] = layout.cells[i].source;
    fill(words, stride, y * stride + x, map, colours);
  });
  layout.canvas.getContext("2d").putImageData(layout.pixels, 0, 0);

  const canvas = $("maps");
  const context = scaledContext(canvas);
  const style = getComputedStyle(document.documentElement);
  const [text, soft, focus] = ["--text", "--soft", "--focus"].map((n) => style.getPropertyValue(n));
  context.clearRect(0, 0, canvas.width, canvas.height);
  context.font = FONT;
  context.fillStyle = text;
  for (const line of layout.lines) {
    const name = line.layer.heads ? line.layer.name : `${line.layer.name} (no heads)`;
    const width = line.layer.heads ? layout.left - 8 : canvas.width;
    context.fillText(name, 0, line.y + 4, width);
  }
  context.textAlign = "center";
  maps.forEach((map, i) => {
    const cell = layout.cells[i];
    const zoom = zoomOf(cell);
    const [height, width] = map.grid;
    const [w, h] = [width * zoom, height * zoom];
    context.drawImage(layout.canvas, ...cell.source, width, height, cell.x, cell.y, w, h);
    mark(context, markOf(data.layers[cell.layer]), cell.x, cell.y, zoom);
    context.fillStyle = soft;
    context.fillText(briefly(map.largest), cell.x + w / 2, cell.y + cell.height + 14, w + 4);
    if (map.classMass !== null)
      context.fillText(`class ${briefly(map.classMass)}`, cell.x + w / 2, cell.y + cell.height + 27, w + 4);
    if (cell.numberAt !== null) {
      context.fillStyle = text;
      context.fillText(`${i === 0 ? `${plane} ` : ""}${cell.head + 1}`, cell.x + w / 2, cell.numberAt);
    }
    if (i === state.cell) {
      context.strokeStyle = focus;
      context.lineWidth = 2;
      context.strokeRect(cell.x - 2, cell.y - 2, w + 4, h + 4);
    }
  });
  context.textAlign = "left";
}

function scaledContext(canvas) {
  const context = canvas.getContext("2d");
  const ratio = window.devicePixelRatio || 1;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

// A frame around a pixel that stands out on any colour, drawn outside of it.
function mark(context, [row, column], left, top, zoom) {
  const [x, y] = [left + column * zoom, top + row * zoom];
  for (const [colour, width] of [["#000", 2], ["#fff", 1.25]]) {
    context.fillStyle = colour;
    const outer = [x - width, y - width, zoom + 2 * width, zoom + 2 * width];
    context.beginPath();
    context.rect(...outer);
    context.rect(x, y, zoom, zoom);
    context.fill("evenodd");
  }
}

function paintImage() {
  const canvas = $("image");
  const context = scaledContext(canvas);
  const [height, width] = data.imageSize;
  const zoom = SIDE / Math.max(height, width);
  context.imageSmoothingEnabled = false;
  context.drawImage(photo, 0, 0, width * zoom, height * zoom);
  if (hovered) {
    const cell = layout.cells[hovered.cell];
    const layer = data.layers[cell.layer];
    const { key } = describe(cell, mapOf(cell), hovered.pixel);
    frame(context, key, layer.query, "#ffb000");
  }
  frame(context, state.query, GRID, "#ff2d95");
}

// Frames a pixel of a grid on the image.
function frame(context, [row, column], grid, colour) {
  const [height, width] = data.imageSize.map((s) => (s * SIDE) / Math.max(...data.imageSize));
  const [h, w] = [height / grid[0], width / grid[1]];
  for (const [stroke, line] of [["#fff", 5], ["#000", 4], [colour, 2]]) {
    context.strokeStyle = stroke;
    context.lineWidth = line;
    context.strokeRect(column * w + 1, row * h + 1, w - 2, h - 2);
  }
}

// The chosen map enlarged, out of those that `paintMaps` wrote.
function paintChosen(maps) {
  const map = maps[state.cell];
  if (!map) return;
  const cell = layout.cells[state.cell];
  const [height, width] = map.grid;
  const canvas = $("chosen");
  const context = scaledContext(canvas);
  context.clearRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingEnabled = false;
  const zoom = (SIDE - 4) / Math.max(height, width);
  context.drawImage(layout.canvas, ...cell.source, width, height, 2, 2, width * zoom, height * zoom);
  mark(context, markOf(data.layers[cell.layer]), 2, 2, zoom);
  if (hovered && hovered.cell === state.cell)
    mark(context, positionOf(map, hovered.pixel), 2, 2, zoom);
}

function paintScale(top) {
  const own = !state.shared;
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => {
    const value = valueOfPlace(share, own ? 1 : top, state.log);
    if (!own) return number(value, 2);
    if (state.log && share < 1) return `max\u00a0/\u00a010${["\u2074", "\u00b3", "\u00b2", ""][4 * share]}`;
    if (value === 0) return "0";
    const sign = value < 0 ? "\u2212" : "";
    return Math.abs(value) === 1 ? `${sign}max` : `${sign}${Math.abs(value)}\u00a0max`;
  });
  if (state.log) ticks[0] = `\u2264\u00a0${ticks[0]}`;
  const text = ticks.join();
  if ($("ticks").dataset.text === text) return;
  $("ticks").dataset.text = text;
  const shown = [...ticks.keys()].filter((i) => !(state.log || signed) || i % 2 === 0);
  $("ticks").replaceChildren(
    ...shown.map((i) => {
      const tick = document.createElement("span");
      tick.textContent = ticks[i];
      tick.style.left = `${25 * i}%`;
      return tick;
    }),
  );
  const largestOf = signed ? "largest absolute value" : "maximum";
  $("legend-note").textContent = own
    ? `max: the map's own ${largestOf}, the number below it.`
    : `Up to the ${largestOf} of all maps on the page; each map's own is below it.`;
  $("legend").setAttribute("aria-label", `Colour scale: ${ticks.join(", ")}`);
}

let sayLater = 0;

// Words for the pointer at once; for a screen reader when the query rests.
function say(maps) {
  const cell = layout.cells[state.cell];
  if (cell) $("chosen-name").textContent = nameOf(cell);
  clearTimeout(sayLater);
  sayLater = setTimeout(() => {
    const words = [`Query pixel: row ${state.query[0]}, column ${state.query[1]}.`];
    if (cell) {
      const map = maps[state.cell];
      const best = describe(cell, map, strongestPixel(map));
      words.push(`${nameOf(cell)}: strongest ${placeInWords(best)}, ${best.of} ${best.value}.`);
      if (map.classMass !== null) words.push(`Class token: ${number(map.classMass)}.`);
    }
    $("status").textContent = words.join(" ");
    $("chosen").setAttribute("aria-label", words.join(" "));
    if ($("strongest").open) fillTable(maps);
  }, 120);
}

function fillTable(maps) {
  const rows = maps.map((map, i) => {
    const cell = layout.cells[i];
    const best = describe(cell, map, strongestPixel(map));
    const row = document.createElement("tr");
    const words = [data.layers[cell.layer].name, `${cell.head + 1}`, best.where, best.offset, best.value];
    if (data.classMass) words.push(map.classMass === null ? "" : number(map.classMass));
    row.append(
      ...words.map((word) => {
        const item = document.createElement("td");
        item.textContent = word;
        return item;
      }),
    );
    return row;
  });
  $("strongest").querySelector("tbody").replaceChildren(...rows);
}
