// Draws what is chosen, all maps at once. A `pen` is a canvas' context, or an SVG's.

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
  if (!sides.length) return;
  const started = performance.now();
  const maps = layout.cells.map(mapOf);
  const top = Math.max(0, ...maps.map((map) => map.largest));
  writePixels(maps, top);
  drawMaps(penOf($("maps")), maps);
  drawImage(penOf($("image")));
  if (maps[state.cell]) drawChosen(penOf($("chosen")), maps);
  drawLegend(top);
  writeTip();
  say(maps);
  attentionViewer.paintMilliseconds = performance.now() - started;
}

// Writes the colours of all maps onto `layout.canvas`, each in its own pixels.
function writePixels(maps, top) {
  const words = new Uint32Array(layout.pixels.data.buffer);
  const stride = layout.pixels.width;
  const ink = INKS[state.show];
  maps.forEach((map, i) => {
    const colours = coloursOf(map, state.shared ? top : map.largest, state.log, ink);
    const [x, y] = layout.cells[i].source;
    fill(words, stride, y * stride + x, map, colours);
  });
  layout.canvas.getContext("2d").putImageData(layout.pixels, 0, 0);
}

// Writes a map's colours into `words`, rows `stride` apart, from `to` on.
function fill(words, stride, to, map, colours) {
  const [height, width] = map.grid;
  let from = map.start;
  for (let row = 0; row < height; row++, to += stride)
    for (let column = 0; column < width; column++) words[to + column] = colours[map.codes[from++]];
}

function drawMaps(pen, maps) {
  const [text, soft, focus] = ["--text", "--soft", "--focus"].map(styleNamed);
  pen.font = FONT;
  pen.textAlign = "left";
  pen.fillStyle = text;
  for (const line of layout.lines) {
    const width = line.layer?.heads && !layout.above ? layout.left - 8 : layout.width;
    pen.fillStyle = line.side ? soft : text;
    pen.fillText(nameOfLine(line), line.x, line.y, width);
  }
  pen.textAlign = "center";
  maps.forEach((map, i) => {
    const cell = layout.cells[i];
    const zoom = zoomOf(cell);
    const [h, w] = map.grid.map((length) => length * zoom);
    drawMap(pen, cell, map, cell.x, cell.y, zoom);
    pen.fillStyle = soft;
    pen.fillText(briefly(map.largest), cell.x + w / 2, cell.y + cell.height + 13, w + 4);
    if (map.classMass !== null)
      pen.fillText(`class ${briefly(map.classMass)}`, cell.x + w / 2, cell.y + cell.height + 26, w + 4);
    if (cell.numberAt !== null) {
      pen.fillStyle = text;
      pen.fillText(`${cell.head === 0 && cell.layer === layout.cells[0].layer && w > 40 ? `${plane} ` : ""}${cell.head + 1}`, cell.x + w / 2, cell.numberAt);
    }
    if (i === state.cell) {
      pen.strokeStyle = focus;
      pen.lineWidth = 2;
      pen.strokeRect(cell.x - 2, cell.y - 2, w + 4, h + 4);
    }
  });
  pen.textAlign = "left";
}

// One map out of those that `writePixels` wrote, on the image where that shows through.
function drawMap(pen, cell, map, x, y, zoom) {
  const [height, width] = map.grid;
  if (INKS[state.show] !== PALETTE) drawKeys(pen, cell, map, x, y, zoom);
  pen.drawImage(layout.canvas, ...cell.source, width, height, x, y, width * zoom, height * zoom);
  if (state.show !== "average") mark(pen, markOf(data.layers[cell.layer]), x, y, zoom);
}

// The part of the image at each key of a map.
function drawKeys(pen, cell, map, x, y, zoom) {
  const [height, width] = data.imageSize;
  if (!taps) {
    const across = map.grid[1] * zoom;
    pen.imageSmoothingEnabled = across < width;
    pen.drawImage(photo, 0, 0, width, height, x, y, across, map.grid[0] * zoom);
    pen.imageSmoothingEnabled = false;
    return;
  }
  const layer = data.layers[cell.layer];
  const [h, w] = [height / layer.query[0], width / layer.query[1]];
  for (let pixel = 0; pixel < map.grid[0] * map.grid[1]; pixel++) {
    const [row, column] = positionOf(map, pixel);
    const key = keyAt(layer, offsetOf(layer, [row, column]));
    pen.drawImage(photo, key[1] * w, key[0] * h, w, h, x + column * zoom, y + row * zoom, zoom, zoom);
  }
}

// A frame around a pixel that stands out on any colour, drawn outside of it.
function mark(pen, [row, column], left, top, zoom) {
  const [x, y] = [left + column * zoom, top + row * zoom];
  for (const [colour, width] of [["#000", 2], ["#fff", 1.25]]) {
    pen.strokeStyle = colour;
    pen.lineWidth = width;
    pen.strokeRect(x - width / 2, y - width / 2, zoom + width, zoom + width);
  }
}

function drawImage(pen, x = 0, y = 0) {
  const [height, width] = imageSizeOnPage();
  pen.drawImage(photo, 0, 0, photo.width, photo.height, x, y, width, height);
  if (hovered) {
    const cell = layout.cells[hovered.cell];
    const { key } = describe(cell, mapOf(cell), hovered.pixel);
    frame(pen, key, data.layers[cell.layer].query, "#ffb000", x, y);
  }
  if (state.show !== "average") frame(pen, state.query, GRID, "#ff2d95", x, y);
}

// Frames a pixel of a grid on the image that lies at (x, y).
function frame(pen, [row, column], grid, colour, x, y) {
  const [h, w] = imageSizeOnPage().map((length, axis) => length / grid[axis]);
  for (const [stroke, line] of [["#fff", 5], ["#000", 4], [colour, 2]]) {
    pen.strokeStyle = stroke;
    pen.lineWidth = line;
    pen.strokeRect(x + column * w + 1, y + row * h + 1, w - 2, h - 2);
  }
}

// The chosen map enlarged.
function drawChosen(pen, maps) {
  const map = maps[state.cell];
  const cell = layout.cells[state.cell];
  const zoom = (layout.side - 4) / Math.max(...map.grid);
  drawMap(pen, cell, map, 2, 2, zoom);
  if (hovered && hovered.cell === state.cell) mark(pen, positionOf(map, hovered.pixel), 2, 2, zoom);
}

// The bar of the colour scale and its ticks, but those for which there is no room.
function drawLegend(top) {
  const canvas = $("legend");
  const ticks = ticksOf(top);
  const text = [state.show, canvas.width, ...ticks].join();
  if (canvas.dataset.text === text) return;
  canvas.dataset.text = text;
  const width = parseFloat(canvas.style.width);
  drawScale(penOf(canvas), INKS[state.show], 0, 0, width, 12);
  canvas.setAttribute("aria-label", `Colour scale: ${ticks.join(", ")}`);
  $("ticks").replaceChildren(
    ...placeTicks(ticks, width).map(([words, left]) => {
      const tick = document.createElement("span");
      tick.textContent = words;
      tick.style.left = `${left}px`;
      return tick;
    }),
  );
}

// [words, left] of the ticks that stand apart: both ends, then the middle, then quarters.
function placeTicks(ticks, width) {
  const placed = [];
  for (const group of [[0, 4], [2], [1, 3]]) {
    const boxes = group.map((i) => {
      const wide = widthOfText(ticks[i], 11);
      const left = Math.max(0, Math.min(width - wide, (width * i) / 4 - wide / 2));
      return [ticks[i], left, left + wide];
    });
    const apart = ([, left, end]) => placed.every(([, other, last]) => left >= last + 6 || end + 6 <= other);
    if (boxes.every(apart)) placed.push(...boxes);
  }
  return placed;
}

// Width of a text in pixels of the page.
function widthOfText(words, size) {
  const context = layout.canvas.getContext("2d");
  context.font = FONT.replace("12px", `${size}px`);
  return context.measureText(words).width;
}
