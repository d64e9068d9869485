// The pointer and the keys on the image, which move the query, and on the maps.

const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

// A mouse moves the query wherever it goes until a click pins it; where a drag ends it is
// pinned too. A finger moves it by touch alone, and so pins nothing.
function listenToImage() {
  const canvas = $("image");
  let pressed = null; // the query where the button went down
  const toPointer = (event) => {
    const place = canvas.getBoundingClientRect();
    const row = ((event.clientY - place.top) / place.height) * GRID[0];
    moveQuery(row, ((event.clientX - place.left) / place.width) * GRID[1]);
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    canvas.setPointerCapture(event.pointerId);
    toPointer(event);
    pressed = state.query;
    if (event.pointerType !== "touch") pin(!state.pinned);
  });
  canvas.addEventListener("pointermove", (event) => {
    const dragging = event.buttons & 1 && pressed;
    if (!dragging && (state.pinned || event.pointerType === "touch")) return;
    toPointer(event);
    if (dragging && state.query !== pressed && event.pointerType !== "touch") pin(true);
  });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => (pressed = null));
  canvas.addEventListener("keydown", (event) => {
    const [row, column] = state.query;
    const step = ARROWS[event.key];
    if (step) moveQuery(row + step[0], column + step[1]);
    else if (event.key === "Home") moveQuery(row, 0);
    else if (event.key === "End") moveQuery(row, GRID[1] - 1);
    else if (event.key === "Enter" || event.key === " ") pin(!state.pinned);
    else return;
    event.preventDefault();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") pin(false);
  });
  ["row", "column"].forEach((id, axis) => {
    $(id).max = GRID[axis] - 1;
    $(id).addEventListener("change", () => {
      const query = [...state.query];
      query[axis] = Number($(id).value);
      moveQuery(...query);
      writeQuery();
    });
  });
}

function listenToMaps() {
  const canvas = $("maps");
  const toPointer = (event) => {
    const place = canvas.getBoundingClientRect();
    hovered = hit(event.clientX - place.left, event.clientY - place.top);
    showTip(event);
    if (sides.length) repaint();
  };
  canvas.addEventListener("pointermove", toPointer);
  canvas.addEventListener("pointerdown", (event) => {
    toPointer(event);
    if (hovered) choose(hovered.cell);
  });
  canvas.addEventListener("pointerleave", () => {
    hovered = null;
    $("tip").hidden = true;
    if (sides.length) repaint();
  });
  canvas.addEventListener("keydown", (event) => {
    const step = ARROWS[event.key];
    if (!step || !layout.cells.length) return;
    event.preventDefault();
    const next = neighbour(layout.cells[state.cell], step);
    if (next >= 0) choose(next);
  });
}
