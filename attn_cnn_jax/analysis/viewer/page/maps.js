"use strict";
// Reads what encode.py wrote: the maps of a layer as typed arrays.

const data = JSON.parse(document.getElementById("data").textContent);
const signed = data.signed;
const taps = data.kind === "taps";
const KEPT_BYTES = 400e6; // of decoded maps

// Seven bits a character, the first ones first; three characters stand for others.
function unpack(text) {
  const packed = new Uint8Array(Math.floor((7 * text.length) / 8));
  let [bits, count, at] = [0, 0, 0];
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i);
    bits = ((bits << 7) | (code < 128 ? code : data.substitutes[code])) & 0xffff;
    count += 7;
    if (count >= 8) {
      count -= 8;
      packed[at++] = bits >> count;
    }
  }
  return packed;
}

async function inflate(id) {
  const packed = unpack(document.getElementById(id).textContent);
  const gunzip = new DecompressionStream("gzip");
  return new Response(new Blob([packed]).stream().pipeThrough(gunzip)).arrayBuffer();
}

// The opposite of a difference along an axis, modulo 256, in place.
function sumAlong(codes, shape, axis) {
  let inner = 1;
  for (const length of shape.slice(axis + 1)) inner *= length;
  const block = shape[axis] * inner;
  for (let start = 0; start < codes.length; start += block)
    for (let i = start + inner; i < start + block; i++) codes[i] += codes[i - inner];
}

// Codes of the last scale, the square root in equal steps, out of factors: ranks and
// steps of the heads, then of each its integers, low bytes before high ones.
function multiply(buffer, { heads, queries, keys, scale }) {
  const codes = new Uint16Array(heads * queries * keys);
  const ranks = new Uint8Array(buffer, 0, heads);
  const steps = new Float32Array(buffer.slice(heads, 5 * heads));
  const best = scale.length - 1;
  let [at, to] = [5 * heads, 0];
  for (let head = 0; head < heads; head++) {
    const [rank, rows] = [ranks[head], queries + keys];
    const bytes = new Uint8Array(buffer, at, 2 * rank * rows);
    at += bytes.length;
    const factors = new Float64Array(rank * rows); // [query or key, column]
    for (let column = 0, i = 0; column < rank; column++)
      for (let row = 0; row < rows; row++, i++) {
        const zigzag = bytes[i] | (bytes[i + rank * rows] << 8);
        factors[row * rank + column] = (zigzag >>> 1) ^ -(zigzag & 1);
      }
    const squared = steps[head] ** 2;
    for (let query = 0; query < queries; query++)
      for (let key = queries; key < rows; key++) {
        let sum = 0;
        for (let a = query * rank, b = key * rank, end = a + rank; a < end; ) sum += factors[a++] * factors[b++];
        codes[to++] = Math.min(best, Math.round(best * Math.exp(0.5 * squared * sum)));
      }
  }
  return codes;
}

function parseLayer(buffer, layer) {
  const shape = [...layer.query, ...layer.key];
  const queries = shape[0] * shape[1];
  const keys = shape[2] * shape[3];
  const rows = layer.heads * queries;
  let at = 0;
  const take = (Type, count) => {
    const array = new Type(buffer, at, count);
    at += array.byteLength;
    return array;
  };
  const maps = { ...layer, queries, keys, bytes: buffer.byteLength };
  maps.low = signed ? take(Float32Array, rows) : null;
  maps.high = take(Float32Array, rows);
  maps.classMass = data.classMass ? take(Float32Array, rows) : null;
  if (!taps) {
    maps.averageHigh = take(Float32Array, layer.heads);
    maps.averageCodes = take(Uint8Array, rows);
  }
  const number = take(Uint8Array, 1)[0];
  maps.scale = data.scales[number];
  if (number === data.scales.length - 1) {
    maps.codes = multiply(buffer.slice(at), maps);
    maps.bytes += maps.codes.byteLength;
    return maps;
  }
  const axes = take(Uint8Array, layer.heads);
  maps.codes = take(Uint8Array, rows * keys);
  for (let head = 0; head < layer.heads; head++) {
    const codes = maps.codes.subarray(head * queries * keys, (head + 1) * queries * keys);
    for (let axis = 3; axis >= 0; axis--)
      if (axes[head] & (1 << axis)) sumAlong(codes, shape, axis);
  }
  return maps;
}

const kept = new Map(); // id: promise of maps, the least recently used first

// Maps of a layer; those that do not depend on the image are stored for image 0.
async function readLayer(checkpoint, layer, image) {
  const id = `maps-${checkpoint}-${layer}-${data.layers[layer].shared ? 0 : image}`;
  const found = kept.get(id) || inflate(id).then((b) => parseLayer(b, data.layers[layer]));
  kept.delete(id);
  kept.set(id, found);
  const maps = await found;
  let bytes = 0;
  for (const [other, promise] of [...kept].reverse()) {
    bytes += (await promise).bytes;
    if (bytes > KEPT_BYTES) kept.delete(other);
  }
  return maps;
}

// One map: codes from `start` on, its grid, range and scale.
function singleMap(maps, head, query) {
  const row = head * maps.queries + query;
  return {
    codes: maps.codes,
    start: row * maps.keys,
    grid: maps.key,
    low: signed ? maps.low[row] : 0,
    high: maps.high[row],
    scale: maps.scale,
    classMass: maps.classMass ? maps.classMass[row] : null,
  };
}

function averageMap(maps, head) {
  return {
    codes: maps.averageCodes,
    start: head * maps.queries,
    grid: maps.query,
    low: 0,
    high: maps.averageHigh[head],
    scale: data.scales[1],
    classMass: null,
  };
}

function decode(map, code) {
  return map.low + (map.high - map.low) * map.scale[Math.min(code, map.scale.length - 1)];
}

function valueAt(map, pixel) {
  return decode(map, map.codes[map.start + pixel]);
}

// The largest absolute value that colours must reach.
function largest(map) {
  return Math.max(Math.abs(map.low), Math.abs(map.high));
}

function strongestPixel(map) {
  const size = map.grid[0] * map.grid[1];
  let best = 0;
  for (let pixel = 1; pixel < size; pixel++)
    if (Math.abs(valueAt(map, pixel)) > Math.abs(valueAt(map, best))) best = pixel;
  return best;
}
