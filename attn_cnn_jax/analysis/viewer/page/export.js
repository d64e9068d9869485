// The view as a file: one sheet, drawn by the pen of a canvas (PNG) or by that of an SVG.

const MARGIN = 16;
const PNG_SCALE = 2; // pixels of the file for one of the page

// Writes SVG: as much of a canvas' context as `paint.js` uses.
class SvgPen {
  constructor(width, height) {
    this.parts = [
      `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">`,
    ];
    Object.assign(this, { font: FONT, fillStyle: "#000", strokeStyle: "#000", lineWidth: 1, textAlign: "left" });
    this.origin = [0, 0];
  }

  translate(x, y) {
    this.origin = [this.origin[0] + x, this.origin[1] + y];
  }

  box(x, y, width, height) {
    const [left, top] = this.origin;
    return `x="${round(x + left)}" y="${round(y + top)}" width="${round(width)}" height="${round(height)}"`;
  }

  fillRect(...box) {
    this.parts.push(`<rect ${this.box(...box)} fill="${this.fillStyle}"/>`);
  }

  strokeRect(...box) {
    this.parts.push(`<rect ${this.box(...box)} fill="none" stroke="${this.strokeStyle}" stroke-width="${this.lineWidth}"/>`);
  }

  fillText(text, x, y, most) {
    const [, size, family] = this.font.match(/([\d.]+)px (.*)/);
    const [left, top] = this.origin;
    const anchor = this.textAlign === "center" ? "middle" : "start";
    const fit = most && widthOfText(text, size) > most ? ` textLength="${round(most)}" lengthAdjust="spacingAndGlyphs"` : "";
    this.parts.push(
      `<text x="${round(x + left)}" y="${round(y + top)}" font-size="${size}" font-family="${escaped(family)}"` +
        ` font-weight="${this.font.startsWith("bold") ? "bold" : "normal"}" text-anchor="${anchor}"` +
        ` fill="${this.fillStyle}"${fit}>${escaped(text)}</text>`,
    );
  }

  drawImage(source, sx, sy, width, height, ...box) {
    const copy = document.createElement("canvas");
    [copy.width, copy.height] = [Math.max(1, width), Math.max(1, height)];
    copy.getContext("2d").drawImage(source, sx, sy, width, height, 0, 0, copy.width, copy.height);
    this.parts.push(
      `<image ${this.box(...box)} preserveAspectRatio="none" style="image-rendering:pixelated" href="${copy.toDataURL()}"/>`,
    );
  }

  text() {
    return [...this.parts, "</svg>\n"].join("\n");
  }
}

function round(length) {
  return Math.round(100 * length) / 100;
}

// A text as it stands in SVG, which is XML and knows no control characters.
function escaped(text) {
  const names = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
  return text.replace(/[\0-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]/g, "\ufffd").replace(/[&<>"]/g, (mark) => names[mark]);
}

// What stands above the picture.
function headlines() {
  const chosen = (id) => $(id).selectedOptions[0].textContent;
  const query = state.show === "average" ? [] : [`query ${pair(state.query)}`];
  const words = [chosen("show"), ...query, `colours ${chosen("scale")}`, `range ${chosen("range")}`];
  return [
    document.title,
    $("about").textContent,
    `${data.names[state.image]}. ${$("prediction").textContent}`,
    `Shown: ${words.join(", ")}.`,
  ];
}

function sheetSize() {
  const [height] = imageSizeOnPage();
  const top = MARGIN + 20 * headlines().length + 8;
  return {
    top,
    width: Math.ceil(Math.max(480, 3 * MARGIN + layout.side + layout.width)),
    height: Math.ceil(top + Math.max(height + 50, layout.height) + MARGIN),
  };
}

// Image, colour scale and maps as they are on the page, below words that say what they are.
function drawSheet(pen, { top, width, height }) {
  const maps = layout.cells.map(mapOf);
  const largest = Math.max(0, ...maps.map((map) => map.largest));
  pen.fillStyle = styleNamed("--back");
  pen.fillRect(0, 0, width, height);
  pen.fillStyle = styleNamed("--text");
  headlines().forEach((line, i) => {
    pen.font = i === 0 ? `bold ${FONT.replace("12px", "15px")}` : FONT;
    pen.fillText(line, MARGIN, MARGIN + 12 + 20 * i, width - 2 * MARGIN);
  });
  drawImage(pen, MARGIN, top);
  const below = top + imageSizeOnPage()[0] + 10;
  drawScale(pen, INKS[state.show], MARGIN, below, layout.side, 12);
  pen.font = FONT.replace("12px", "11px");
  pen.fillStyle = styleNamed("--text");
  for (const [words, left] of placeTicks(ticksOf(largest), layout.side))
    pen.fillText(words, MARGIN + left, below + 25);
  pen.translate(2 * MARGIN + layout.side, top);
  drawMaps(pen, maps);
}

function pngOfView() {
  const size = sheetSize();
  const canvas = new OffscreenCanvas(PNG_SCALE * size.width, PNG_SCALE * size.height);
  const pen = canvas.getContext("2d");
  pen.scale(PNG_SCALE, PNG_SCALE);
  pen.imageSmoothingEnabled = false;
  drawSheet(pen, size);
  return canvas.convertToBlob();
}

function svgOfView() {
  const size = sheetSize();
  const pen = new SvgPen(size.width, size.height);
  drawSheet(pen, size);
  return new Blob([pen.text()], { type: "image/svg+xml" });
}

// Hands the file to the browser, under a name of the run and the view.
async function save(kind, make) {
  if (!sides.length) return;
  const link = document.createElement("a");
  const words = [document.title, ...addressOf(state).slice(1).split("&"), "view"].filter(Boolean);
  link.download = `${words.join("_").replace(/[^\w.-]+/g, "-").slice(0, 100)}.${kind}`;
  link.href = URL.createObjectURL(await make());
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

function listenToSaving() {
  $("save-png").addEventListener("click", () => save("png", pngOfView));
  $("save-svg").addEventListener("click", () => save("svg", svgOfView));
}
