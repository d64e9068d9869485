// From values to colours: viridis for probabilities; blue, white, orange for weights.

const FONT = '12px system-ui, "Liberation Sans", sans-serif';
const DECADES = 4; // of the logarithmic scale; below lies the lowest colour
const ANCHORS = signed
  ? ["1f4e9c", "6f9bd1", "c5d9ee", "f7f7f4", "f5d3b0", "e0913f", "a34a00"]
  : [
      "440154", "48186a", "472d7b", "424086", "3b528b", "33638d", "2c728e", "26828e",
      "21918c", "1fa088", "28ae80", "3fbc73", "5ec962", "84d44b", "addc30", "d8e219",
      "fde725",
    ];

// 256 colours as the bytes R, G, B, A of a little-endian integer.
const PALETTE = Uint32Array.from({ length: 256 }, (_, level) => {
  const place = (level / 255) * (ANCHORS.length - 1);
  const left = Math.min(Math.floor(place), ANCHORS.length - 2);
  const mixed = [0, 2, 4].map((i) => {
    const [a, b] = [left, left + 1].map((k) => parseInt(ANCHORS[k].slice(i, i + 2), 16));
    return Math.round(a + (b - a) * (place - left));
  });
  return ((255 << 24) | (mixed[2] << 16) | (mixed[1] << 8) | mixed[0]) >>> 0;
});

// Where a value lies between the ends of the colour scale, 0 to 1; `top` is its end.
function place(value, top, log) {
  if (top === 0) return signed ? 0.5 : 0;
  const share = value / top;
  if (signed) return 0.5 + 0.5 * share;
  if (!log) return share;
  return share > 0 ? Math.max(0, 1 + Math.log10(share) / DECADES) : 0;
}

// The value at a place of the scale.
function valueOfPlace(share, top, log) {
  if (signed) return (2 * share - 1) * top;
  return log ? top * 10 ** (DECADES * (share - 1)) : top * share;
}

function paletteColour(share) {
  return PALETTE[Math.round(255 * Math.min(1, Math.max(0, share)))];
}

// The colour of each code of a map.
function coloursOf(map, top, log) {
  return data.shares.map((_, code) => paletteColour(place(decode(map, code), top, log)));
}

function drawLegend(canvas, width) {
  const pixels = devicePixels(canvas, width, 14);
  const line = new ImageData(256, 1);
  const colours = new Uint32Array(line.data.buffer);
  colours.set(PALETTE);
  const strip = new OffscreenCanvas(256, 1);
  strip.getContext("2d").putImageData(line, 0, 0);
  pixels.drawImage(strip, 0, 0, canvas.width, canvas.height);
}

// Gives a canvas its size on the page and one pixel for each of the screen's.
function devicePixels(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  return context;
}

function number(value, digits = 3) {
  if (value === 0) return "0";
  if (Math.abs(value) < 0.001) return value.toExponential(1).replace("-", "\u2212");
  return value.toPrecision(digits).replace("-", "\u2212");
}

function briefly(value) {
  return value > 0 && value < 0.001 ? "<0.001" : number(value, 2);
}

function withSign(value) {
  if (value === 0) return "0";
  return value > 0 ? `+${value}` : `\u2212${-value}`;
}
