// The choices above the maps: image, checkpoint, what is shown and in which colours.

// Of each list: its name, what the state is for a value, and the value that is chosen.
const LISTS = [
  ["beside", (value) => ({ beside: Number(value) }), () => state.beside],
  ["show", (value) => ({ show: value }), () => state.show],
  ["scale", (value) => ({ log: value === "log" }), () => (state.log ? "log" : "linear")],
  ["range", (value) => ({ shared: value === "shared" }), () => (state.shared ? "shared" : "own")],
];
const FRAME_MILLISECONDS = 700; // of a checkpoint while they are played
let playing = null; // the play that is going on, if any

// Makes all controls say what is chosen.
function writeChoices() {
  for (const [id, , value] of LISTS) $(id).value = value();
  writeThumbnails();
  $("play").textContent = playing ? "\u275a\u275a" : "\u25b6";
  $("play").setAttribute("aria-label", playing ? "pause" : "play the checkpoints");
  writeQuery();
  writePrediction();
  writeAbout();
  writeSame();
}

// Changes the state and what the page shows of it; a step for "back".
function change(fields) {
  Object.assign(state, fields);
  stepView();
  return show();
}

function show() {
  hovered = null;
  writeChoices();
  return load();
}

function listenToChoices() {
  for (const [id, fields] of LISTS) $(id).addEventListener("change", () => change(fields($(id).value)));
  $("see").addEventListener("click", () => change({ show: "seen" }));
  $("strongest").addEventListener("toggle", repaint);
  const off = [taps && "average", signed && "log"].filter(Boolean);
  for (const value of off) document.querySelector(`option[value="${value}"]`).disabled = true;
  [$("checkpoint").min, $("checkpoint").max] = [FIRST, LAST];
  $("checkpoints").hidden = FIRST === LAST;
  $("beside-label").hidden = LAST === 0;
  $("beside").append(...data.checkpoints.map((_, i) => new Option(checkpointName(i), i)));
  $("checkpoint").addEventListener("input", () => {
    playing = null;
    state.checkpoint = Number($("checkpoint").value);
    noteView();
    show();
  });
  $("play").addEventListener("click", play);
}

// Shows one checkpoint after the other up to the last, from the first if it is there.
async function play() {
  const mine = playing ? null : {};
  playing = mine;
  if (mine && state.checkpoint === LAST) state.checkpoint = FIRST - 1;
  while (mine && playing === mine && state.checkpoint < LAST) {
    state.checkpoint += 1;
    noteView();
    await Promise.all([show(), new Promise((done) => setTimeout(done, FRAME_MILLISECONDS))]);
  }
  if (playing === mine) playing = null;
  writeChoices();
}
