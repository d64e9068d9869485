// From values to colours: viridis for probabilities; blue, white, orange for weights.

const FONT = '12px system-ui, "Liberation Sans", sans-serif';
const DECADES = 4; // of the logarithmic scale; below lies the lowest colour
const GREY = 0x77; // what no head sees
const ANCHORS = signed
  ? ["1f4e9c", "6f9bd1", "c5d9ee", "f7f7f4", "f5d3b0", "e0913f", "a34a00"]
  : [
      "440154", "48186a", "472d7b", "424086", "3b528b", "33638d", "2c728e", "26828e",
      "21918c", "1fa088", "28ae80", "3fbc73", "5ec962", "84d44b", "addc30", "d8e219",
      "fde725",
    ];

// R, G, B and alpha, 0 to 255, as a little-endian integer.
function rgba(red, green, blue, alpha) {
  return ((alpha << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

// 256 opaque colours, from one end of the scale to the other.
const PALETTE = Uint32Array.from({ length: 256 }, (_, level) => {
  const place = (level / 255) * (ANCHORS.length - 1);
  const left = Math.min(Math.floor(place), ANCHORS.length - 2);
  const mixed = [0, 2, 4].map((i) => {
    const [a, b] = [left, left + 1].map((k) => parseInt(ANCHORS[k].slice(i, i + 2), 16));
    return Math.round(a + (b - a) * (place - left));
  });
  return rgba(...mixed, 255);
});

// How strong attention is at a level of the palette, 0 to 1: weights count by their size.
const STRENGTH = Float64Array.from({ length: 256 }, (_, level) =>
  signed ? Math.abs(level / 127.5 - 1) : level / 255,
);

// What is drawn at each level: a colour, a grey veil over the image, or a tint of it.
const VEIL = PALETTE.map((_, level) => rgba(GREY, GREY, GREY, Math.round(255 * (1 - STRENGTH[level]))));
const TINT = PALETTE.map((word, level) => ((word & 0xffffff) | ((40 + 160 * STRENGTH[level]) << 24)) >>> 0);
const INKS = { map: PALETTE, average: PALETTE, seen: VEIL, overlay: TINT };

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

// The colour of each code of a map.
function coloursOf(map, top, log, ink) {
  return data.shares.map((_, code) => {
    const share = place(decode(map, code), top, log);
    return ink[Math.round(255 * Math.min(1, Math.max(0, share)))];
  });
}

// Draws the colour scale as a bar; what a head sees, on white.
function drawScale(context, ink, x, y, width, height) {
  const line = new ImageData(256, 1);
  new Uint32Array(line.data.buffer).set(ink);
  const strip = new OffscreenCanvas(256, 1);
  strip.getContext("2d").putImageData(line, 0, 0);
  context.fillStyle = "#fff";
  context.fillRect(x, y, width, height);
  context.drawImage(strip, 0, 0, 256, 1, x, y, width, height);
}

// What stands below the scale's bar, at 0, 1/4, ..., 1 of its length.
function ticksOf(top) {
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => {
    const value = valueOfPlace(share, state.shared ? top : 1, state.log);
    if (state.shared) return number(value, 2);
    if (state.log && share < 1) return `max\u00a0/\u00a010${["\u2074", "\u00b3", "\u00b2", ""][4 * share]}`;
    if (value === 0) return "0";
    const sign = value < 0 ? "\u2212" : "";
    return Math.abs(value) === 1 ? `${sign}max` : `${sign}${Math.abs(value)}\u00a0max`;
  });
  if (state.log) ticks[0] = `\u2264\u00a0${ticks[0]}`;
  return ticks;
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
