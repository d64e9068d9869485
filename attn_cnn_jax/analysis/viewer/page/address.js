// The view in the page's address: a link that restores it, and steps for "back".

const whole = (text, end) => (/^\d{1,9}$/.test(text) && Number(text) < end ? Number(text) : null);
const twoOf = (text, mark) => (text || "").split(mark);

const idOf = ({ run, step }) => `${step}.${run}`;

// What the address says of a view; images, layers and heads count from 1.
function addressOf(view) {
  const parts = new URLSearchParams();
  const { layer, head } = layout.cells[view.cell] || { layer: 0, head: 0 };
  const put = (name, differs, text) => differs && parts.set(name, text);
  put("image", view.image !== 0, view.image + 1);
  put("step", view.checkpoint !== DEFAULTS.checkpoint, data.checkpoints[view.checkpoint].step);
  put("beside", view.beside !== DEFAULTS.beside, view.beside < 0 ? "nothing" : idOf(data.checkpoints[view.beside]));
  put("query", view.query.some((p, axis) => p !== DEFAULTS.query[axis]), view.query.join("."));
  put("pinned", view.pinned, 1);
  put("show", view.show !== "map", view.show);
  put("scale", view.log, "log");
  put("range", view.shared, "shared");
  put("head", view.cell !== 0, `${layer + 1}.${head + 1}`);
  return `#${parts}`;
}

// The view that an address names; what it names wrongly is as at the start.
function viewOf(address) {
  const parts = new URLSearchParams(address.slice(1));
  const view = { ...DEFAULTS };
  const image = whole(parts.get("image"), data.names.length + 1);
  if (image) view.image = image - 1;
  const step = data.checkpoints.findIndex((c, i) => i >= FIRST && `${c.step}` === parts.get("step"));
  if (step >= 0) view.checkpoint = step;
  const beside = data.checkpoints.findIndex((c) => idOf(c) === parts.get("beside"));
  if (beside >= 0) view.beside = beside;
  if (parts.get("beside") === "nothing") view.beside = -1;
  const query = twoOf(parts.get("query"), ".").map((text, axis) => whole(text, GRID[axis]));
  if (query.length === 2 && !query.includes(null)) view.query = query;
  view.pinned = parts.get("pinned") === "1";
  const show = parts.get("show");
  if (SHOWN.includes(show) && !(taps && show === "average")) view.show = show;
  view.log = parts.get("scale") === "log" && !signed;
  view.shared = parts.get("range") === "shared";
  const [layer, head] = twoOf(parts.get("head"), ".").map(Number);
  const cell = cellAt(layer - 1, head - 1, 0);
  if (cell >= 0) view.cell = cell;
  return view;
}

let noteLater = 0;

// Brings the address up to date when the view rests: browsers forbid doing so at each move.
function noteView() {
  clearTimeout(noteLater);
  noteLater = setTimeout(() => writeAddress("replaceState"), 250);
}

function stepView() {
  clearTimeout(noteLater);
  writeAddress("pushState");
}

function writeAddress(how) {
  const address = addressOf(state);
  if (address === (location.hash || "#")) return;
  try {
    history[how](null, "", address);
  } catch {
    // A page inside another one may have no address of its own.
  }
}

function listenToAddress() {
  window.addEventListener("hashchange", () => {
    clearTimeout(noteLater);
    playing = null;
    Object.assign(state, viewOf(location.hash));
    show();
  });
}
