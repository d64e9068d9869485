"use strict";
// Reads what encode.py wrote: the maps of a layer as typed arrays.

const data = JSON.parse(document.getElementById("data").textContent);
const signed = data.signed;
const taps = data.kind === "taps";
const KEPT_BYTES = 400e6; // of decoded maps

// The byte of each character of windows-1252, which has one for every byte.
const byteOf = {};
[...new TextDecoder("windows-1252").decode(Uint8Array.from({ length: 256 }, (_, byte) => byte))].forEach(
  (character, byte) => (byteOf[character.charCodeAt(0)] = byte),
);

// The bytes of a block; after "=" stands what the parser would have changed, plus 64.
function unescaped(text) {
  const bytes = new Uint8Array(text.length);
  let count = 0;
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i);
    bytes[count++] = code === 61 ? text.charCodeAt(++i) - 64 : byteOf[code];
  }
  return bytes.subarray(0, count);
}

// The text of a block, which the parser may not have come to yet.
async function blockText(id) {
  for (;;) {
    const element = document.getElementById(id);
    if (element && (element.nextElementSibling || document.readyState !== "loading")) return element.textContent;
    if (document.readyState !== "loading") throw new Error(`the page ends before ${id}`);
    await new Promise((parsed) => setTimeout(parsed, 10));
  }
}

async function inflate(id) {
  const packed = unescaped(await blockText(id));
  const gunzip = new DecompressionStream("gzip");
  return new Response(new Blob([packed]).stream().pipeThrough(gunzip)).arrayBuffer();
}

function parseLayer(buffer, layer) {
  const queries = layer.query[0] * layer.query[1];
  const keys = layer.key[0] * layer.key[1];
  const rows = layer.heads * queries;
  let at = 0;
  const take = (Type, count) => {
    const array = new Type(buffer, at, count);
    at += array.byteLength;
    return array;
  };
  return {
    ...layer,
    queries,
    keys,
    bytes: buffer.byteLength,
    largest: take(Float32Array, rows),
    classMass: data.classMass ? take(Float32Array, rows) : null,
    averageLargest: taps ? null : take(Float32Array, layer.heads),
    codes: take(Uint8Array, rows * keys),
    averageCodes: taps ? null : take(Uint8Array, rows),
  };
}

const kept = new Map(); // id: promise of maps, the least recently used first

// Maps of a layer; those that do not depend on the image are stored for image 0.
async function readLayer(checkpoint, layer, image) {
  const { blocks, shared } = data.checkpoints[checkpoint];
  const id = `maps-${blocks}-${layer}-${shared[layer] ? 0 : image}`;
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

// One map: codes from `start` on, its grid and its largest absolute value.
function singleMap(maps, head, query) {
  const row = head * maps.queries + query;
  const classMass = maps.classMass && maps.classMass[row];
  return { codes: maps.codes, start: row * maps.keys, grid: maps.key, largest: maps.largest[row], classMass };
}

function averageMap(maps, head) {
  const [start, largest] = [head * maps.queries, maps.averageLargest[head]];
  return { codes: maps.averageCodes, start, grid: maps.query, largest, classMass: null };
}

function decode(map, code) {
  return map.largest * data.shares[code];
}

function valueAt(map, pixel) {
  return decode(map, map.codes[map.start + pixel]);
}

function strongestPixel(map) {
  const size = map.grid[0] * map.grid[1];
  let best = 0;
  for (let pixel = 1; pixel < size; pixel++)
    if (Math.abs(valueAt(map, pixel)) > Math.abs(valueAt(map, best))) best = pixel;
  return best;
}
