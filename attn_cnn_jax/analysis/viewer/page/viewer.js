// Starts the page: reads what is chosen and draws it.

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
    const read = (checkpoint) => Promise.all(data.layers.map((_, i) => readLayer(checkpoint, i, state.image)));
    const chosen = chosenCheckpoints();
    const [image, ...maps] = await Promise.all([readImage(state.image), ...chosen.map(read)]);
    if (ticket !== wanted) return;
    [photo, sides, shown] = [image, maps, chosen];
    if (layout.sides === sides.length) paint();
    else resize();
    $("maps").setAttribute("aria-busy", "false");
  } catch (error) {
    complain(`The maps cannot be read: ${error}`);
  }
}

function resize() {
  hovered = null;
  layout.side = sideOf();
  document.documentElement.style.setProperty("--side", `${layout.side}px`);
  const [height, width] = imageSizeOnPage();
  devicePixels($("image"), width, height);
  devicePixels($("chosen"), layout.side, layout.side);
  devicePixels($("legend"), $("legend-box").clientWidth, 12);
  layOut();
  devicePixels($("maps"), layout.width, layout.height);
  if (sides.length) paint();
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
  listenToSaving();
  listenToAddress();
  listenToImages();
  resize(); // which places the cells that an address may name
  Object.assign(state, viewOf(location.hash));
  writeChoices();
  resize(); // again, for the words above the maps may be more
  window.addEventListener("resize", resize);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  load();
}

start();
