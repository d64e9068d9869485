// The images: those of the page, and the user's own where attention needs none.

const images = new Map(); // index: canvas

async function readImage(index) {
  if (!images.has(index)) {
    const [height, width] = data.imageSize;
    const rgb = new Uint8Array(await inflate(`image-${index}`));
    const pixels = new ImageData(width, height);
    for (let i = 0; i < height * width; i++)
      pixels.data.set([rgb[3 * i], rgb[3 * i + 1], rgb[3 * i + 2], 255], 4 * i);
    const canvas = new OffscreenCanvas(width, height);
    canvas.getContext("2d").putImageData(pixels, 0, 0);
    images.set(index, canvas);
  }
  return images.get(index);
}

async function addThumbnail(index) {
  const [label, input, canvas] = ["label", "input", "canvas"].map((tag) => document.createElement(tag));
  const name = data.names[index];
  label.className = "thumbnail";
  label.title = name;
  Object.assign(input, { type: "radio", name: "image", checked: index === state.image });
  input.setAttribute("aria-label", name);
  input.addEventListener("change", () => change({ image: index }));
  [canvas.height, canvas.width] = data.imageSize;
  label.append(input, canvas);
  $("thumbnails").append(label);
  $("thumbnails").hidden = data.names.length < 2;
  canvas.getContext("2d").drawImage(await readImage(index), 0, 0);
}

// Checks the chosen one and brings it into sight.
function writeThumbnails() {
  const strip = $("thumbnails");
  [...strip.children].forEach((label, index) => {
    const chosen = index === state.image;
    label.querySelector("input").checked = chosen;
    if (!chosen) return;
    const start = label.offsetLeft - strip.offsetLeft;
    if (start < strip.scrollLeft || start + label.offsetWidth > strip.scrollLeft + strip.clientWidth)
      strip.scrollLeft = start - strip.clientWidth / 2;
  });
}

// Cut in the middle to the model's proportions, resized, on white, as on the command line.
function fitted(picture) {
  const [height, width] = data.imageSize;
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d");
  const scale = Math.max(width / picture.width, height / picture.height);
  const [w, h] = [picture.width * scale, picture.height * scale];
  context.imageSmoothingQuality = "high";
  context.fillStyle = "#fff";
  context.fillRect(0, 0, width, height);
  context.drawImage(picture, (width - w) / 2, (height - h) / 2, w, h);
  if (data.grey) makeGrey(context, width, height);
  return canvas;
}

function makeGrey(context, width, height) {
  const pixels = context.getImageData(0, 0, width, height);
  for (let i = 0; i < pixels.data.length; i += 4) {
    const [red, green, blue] = pixels.data.subarray(i, i + 3);
    pixels.data.fill(Math.round(0.299 * red + 0.587 * green + 0.114 * blue), i, i + 3);
  }
  context.putImageData(pixels, 0, 0);
}

async function addOwn(file) {
  let picture;
  $("problem").hidden = true;
  try {
    picture = await createImageBitmap(file);
  } catch {
    complain(`${file.name} cannot be read as an image.`);
    return;
  }
  const index = data.names.push(file.name) - 1;
  images.set(index, fitted(picture));
  addThumbnail(index);
  await change({ image: index });
}

function listenToImages() {
  data.names.forEach((_, index) => addThumbnail(index));
  $("own").hidden = !data.checkpoints.every(({ shared }) => shared.every(Boolean));
  $("own-file").addEventListener("change", async () => {
    for (const file of $("own-file").files) await addOwn(file);
    $("own-file").value = "";
  });
}
