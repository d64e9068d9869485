// What the page says: of a pixel, of the chosen map, of the run, of how to read it.

function nameOf(cell) {
  const name = `${data.layers[cell.layer].name}, ${plane} ${cell.head + 1}`;
  return cell.side ? `${name}, ${shortName(shown[1])}` : name;
}

// A checkpoint, and its run where the page has several.
function checkpointName(index) {
  const { run, name } = data.checkpoints[index];
  return FIRST > 0 ? `${run}, ${name}` : name;
}

// What tells one of the shown checkpoints from the other.
function shortName(index) {
  const { run, epoch } = data.checkpoints[index];
  const isOfAnother = shown.some((other) => data.checkpoints[other].run !== run);
  return isOfAnother ? run : `epoch ${Number(epoch.toPrecision(4))}`;
}

// What stands at a row of maps, or above all maps of a checkpoint.
function nameOfLine({ layer, side }) {
  if (!layer || side) return shortName(shown[side]);
  return layer.heads ? layer.name : `${layer.name} (no heads)`;
}

function pair(two) {
  return `(${two[0]}, ${two[1]})`;
}

function signedPair(two) {
  return pair(two.map(withSign));
}

// The number, or what it lies below if it is rounded to 0.
function inWords(map, pixel) {
  const code = map.codes[map.start + pixel];
  if (signed || code > 0 || map.largest === 0) return number(decode(map, code));
  return `below ${number(decode(map, 1) / 2)}`;
}

// What a pixel of a map says; all in words but `key`, the pixel to frame on the image.
function describe(cell, map, pixel) {
  const layer = data.layers[cell.layer];
  const position = positionOf(map, pixel);
  const value = inWords(map, pixel);
  if (state.show === "average")
    return { what: "pixel", where: pair(position), offset: "", of: "Average Attention", value, key: position };
  const offset = offsetOf(layer, position);
  const key = keyAt(layer, offset);
  return { what: "key", where: pair(key), offset: signedPair(offset), of: quantity, value, key };
}

function placeInWords({ what, where, offset }) {
  return `${what} ${where}${offset ? `, offset ${offset}` : ""}`;
}

function writeQuery() {
  [$("row").value, $("column").value] = state.query;
  $("image").classList.toggle("pinned", state.pinned);
  const help = state.pinned
    ? "is pinned: click again or press Escape to free it."
    : "follows the mouse over the image until a click pins it; or touch, drag or use the arrow keys.";
  $("pin-help").textContent =
    state.show === "average" ? "Average Attention is over all queries." : `The query ${pair(state.query)} ${help}`;
}

function percent(share) {
  return share > 0.999 && share < 1 ? ">\u00a099.9\u00a0%" : `${(100 * share).toFixed(1)}\u00a0%`;
}

// The name of the image, what the network says it is, and what it is.
function writePrediction() {
  $("image-name").textContent = data.names[state.image];
  const guesses = chosenCheckpoints().map((checkpoint, side) => {
    const found = data.checkpoints[checkpoint].guesses[state.image]; // none of an own image
    if (!found) return "";
    const [first, second] = found.map(([index, share]) => `${data.classes[index]} (${percent(share)})`);
    return `${side ? "Beside" : "Predicted"}: ${first}${second ? `, then ${second}` : ""}. `;
  });
  const label = data.labels[state.image];
  const truth = Number.isInteger(label) ? `True label: ${data.classes[label]}.` : "";
  $("prediction").textContent = `${guesses.join("")}${truth}`.trim();
}

function writeAbout() {
  const words = chosenCheckpoints().map((checkpoint) => {
    const { accuracy } = data.checkpoints[checkpoint];
    return checkpointName(checkpoint) + (accuracy === null ? "" : `, test accuracy ${percent(accuracy)}`);
  });
  $("about").textContent = [`${data.about}, ${words.join("; beside it ")}.`, ...data.notes].join(" ");
  $("checkpoint-name").textContent = checkpointName(state.checkpoint);
  $("checkpoint").value = state.checkpoint;
  $("checkpoint").setAttribute("aria-valuetext", checkpointName(state.checkpoint));
}

// Why another image changes no map, where that is so.
function writeSame() {
  const shared = chosenCheckpoints().map((checkpoint) => data.checkpoints[checkpoint].shared);
  const same = data.layers.filter((_, i) => shared.every((layers) => layers[i])).map((layer) => layer.name);
  $("same").hidden = !same.length || ["seen", "overlay"].includes(state.show);
  const all = same.length === data.layers.length;
  $("same-words").textContent =
    `${all ? `All ${plane}s` : `The ${plane}s of ${same.join(", ")}`} attend by position alone: another image ` +
    `changes ${all ? "no map" : "none of their maps"}, only what they see of it.`;
}

// Answers to the questions that such maps raise most.
function writeAnswers() {
  const average = state.show === "average";
  $("which-query").textContent = average
    ? "None: Average Attention is a map over queries. It shows what each query gives to a key, as a share of what all give to it, averaged over keys."
    : `Pixel ${pair(state.query)}, framed on the image and in each map: a map shows what this one query takes from each key.`;
  $("which-layer").textContent =
    `All of them: rows are layers in the order of computation, columns their ${plane}s; nothing is averaged over them. ` +
    "Only the first layer attends to the image itself; a later one attends to what the layers before made of each pixel.";
  const sums = signed
    ? `The weights of a ${plane} are not normalised and may be negative.`
    : `The probabilities of a ${plane} sum to 1 over all keys${data.classMass ? ", with the class token, which has its number below the map" : ""}.`;
  const end = signed ? "largest absolute value" : "maximum";
  const range = state.shared
    ? `Colours reach up to the ${end} of all maps on the page, so that they can be compared.`
    : `Colours of each map reach up to its own ${end}, the number below it, so that the same colour is not the same ${average ? "average" : quantity} in two maps.`;
  $("which-norm").textContent = `${average ? "Each key's column is divided by its sum over the queries." : sums} ${range}${wayOfShowing()}`;
}

function wayOfShowing() {
  if (state.show === "seen") return " What a head gives nothing is grey; the rest of the image shows in proportion.";
  if (state.show === "overlay") return " The tint is stronger where the attention is.";
  return "";
}

// Words for the pointer at once; for a screen reader when the query rests.
let sayLater = 0;

function say(maps) {
  const cell = layout.cells[state.cell];
  if (cell) $("chosen-name").textContent = nameOf(cell);
  clearTimeout(sayLater);
  sayLater = setTimeout(() => {
    const words = state.show === "average" ? [] : [`Query pixel: row ${state.query[0]}, column ${state.query[1]}.`];
    if (cell) {
      const map = maps[state.cell];
      const best = describe(cell, map, strongestPixel(map));
      words.push(`${nameOf(cell)}: strongest ${placeInWords(best)}, ${best.of} ${best.value}.`);
      if (map.classMass !== null) words.push(`Class token: ${number(map.classMass)}.`);
    }
    $("status").textContent = words.join(" ");
    $("chosen").setAttribute("aria-label", words.join(" "));
    writeAnswers();
    if ($("strongest").open) writeTable(maps);
  }, 120);
}

function elements(tag, words) {
  return words.map((word) => {
    const item = document.createElement(tag);
    item.textContent = word;
    return item;
  });
}

function writeTable(maps) {
  const rows = maps.map((map, i) => {
    const cell = layout.cells[i];
    const best = describe(cell, map, strongestPixel(map));
    const row = document.createElement("tr");
    const side = cell.side ? `, ${shortName(shown[1])}` : "";
    const layer = `${data.layers[cell.layer].name}${side}`;
    const words = [layer, `${cell.head + 1}`, best.where, best.offset, best.value];
    if (data.classMass) words.push(map.classMass === null ? "" : number(map.classMass));
    row.append(...elements("td", words));
    return row;
  });
  $("strongest").querySelector("tbody").replaceChildren(...rows);
}

// Places the words at the pointer, on the side where there is room.
function showTip(event) {
  writeTip();
  const tip = $("tip");
  if (tip.hidden) return;
  const right = event.clientX + 14 + tip.offsetWidth > window.innerWidth;
  tip.style.left = `${Math.max(0, right ? event.clientX - 14 - tip.offsetWidth : event.clientX + 14)}px`;
  const low = event.clientY + 14 + tip.offsetHeight > window.innerHeight;
  tip.style.top = `${low ? event.clientY - 14 - tip.offsetHeight : event.clientY + 14}px`;
}

// What the tip says, again after the query or the maps have changed under the pointer.
function writeTip() {
  const tip = $("tip");
  tip.hidden = !hovered || !sides.length;
  if (tip.hidden) return;
  const cell = layout.cells[hovered.cell];
  const map = mapOf(cell);
  const said = describe(cell, map, hovered.pixel);
  const lines = [nameOf(cell), placeInWords(said), `${said.of} ${said.value}`];
  if (map.classMass !== null) lines.push(`class token ${number(map.classMass)}`);
  tip.textContent = lines.join("\n");
}

// What stays as it is.
function writeTexts() {
  for (const element of document.querySelectorAll(".head-name")) element.textContent = plane;
  const names = ["layer", plane, "key", "offset", quantity, ...(data.classMass ? ["class token"] : [])];
  $("strongest-names").append(...elements("th", names));
  for (const name of $("strongest-names").children) name.scope = "col";
  $("image").setAttribute("aria-label", "Image: the arrow keys move the query pixel");
  $("maps").setAttribute("aria-label", `Maps of all layers and ${plane}s: the arrow keys choose one`);
  $("maps-help").textContent =
    "Point at a map for its numbers, click it or use the arrow keys to choose it. Rows and columns count from 0. " +
    (taps ? "Taps are offsets: " : "Offset: ") +
    `key minus query as (row, column). Numbers are exact to 1/255 of the map's ${signed ? "largest absolute value" : "maximum"}. ` +
    "The address of this page is a link to the view.";
}

function complain(text) {
  $("problem").textContent = text;
  $("problem").hidden = false;
}
