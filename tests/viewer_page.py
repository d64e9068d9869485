"""Maps for the viewer that are made up, and what is seen and done on its page."""

import gzip
import json
import re

import matplotlib
import numpy as np

from attn_cnn_jax.analysis.attention_maps import AttentionMaps

GRID = (4, 5)
SIZES = {  # options of a page: a laptop's screen, a small window, a phone
    "laptop": {"viewport": {"width": 1400, "height": 900}},
    "small": {"viewport": {"width": 800, "height": 600}},
    "phone": {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2},
}


def blocks(page: bytes) -> dict[str, bytes]:
    """The unpacked blocks of a page by their id."""
    found = re.findall(rb'<script type="text/plain" id="(\S+)">([^<]*)</script>', page)
    return {name.decode(): gzip.decompress(unescaped(text)) for name, text in found}


def unescaped(text: bytes) -> bytes:
    return re.sub(b"=(.)", lambda found: bytes([found[1][0] - 64]), text)


def description(page: str) -> dict:
    """What the page says of itself as JSON."""
    (text,) = re.findall(
        r'<script type="application/json" id="data">(.*)</script>', page
    )
    return json.loads(text)


def settle(page) -> None:
    """Wait for the maps and for a frame in which they are drawn."""
    page.wait_for_selector("#maps[aria-busy=false]")
    page.evaluate(
        "() => new Promise(done => requestAnimationFrame("
        "() => requestAnimationFrame(done)))"
    )


def softmaxed(shape: tuple[int, ...], num_keys: int, seed: int) -> np.ndarray:
    scores = 3 * np.random.default_rng(seed).normal(size=(*shape, num_keys))
    probs = np.exp(scores)
    return (probs / probs.sum(-1, keepdims=True)).astype(np.float32)


def grid_maps(seed: int = 0, **fields) -> AttentionMaps:
    """Two images; a layer of three heads, and one of two that knows no image."""
    first = softmaxed((2, 3, *GRID), 20, seed).reshape(2, 3, *GRID, *GRID)
    second = softmaxed((1, 2, *GRID), 20, seed + 1).reshape(1, 2, *GRID, *GRID)
    values = {
        "kind": "grid",
        "layers": ("layer 1", "layer 2"),
        "probs": (first, second),
        "class_mass": None,
        "images": np.random.default_rng(9).integers(0, 256, (2, 8, 10, 3), np.uint8),
        "names": ("test image 3 (cat)", "test image 8 (ship)"),
        "run": "a_run",
        "step": 300,
        "epoch": 1.5,
    }
    return AttentionMaps(**{**values, **fields})


def tap_maps(*, softmaxed: bool) -> AttentionMaps:
    """Windows of 3 x 3 on a grid of 6 x 6, then on one of 3 x 3."""
    draw = np.random.default_rng(4)
    weights = [draw.normal(size=(2, n, n, 9, 2)).astype(np.float32) for n in (6, 3)]
    if softmaxed:
        weights = [np.exp(w) / np.exp(w).sum(3, keepdims=True) for w in weights]
    names = ("stage 1 block 1", "stage 2 block 1")
    return grid_maps(
        kind="taps", layers=names, probs=tuple(weights), softmaxed=softmaxed
    )


def query(page) -> list[int]:
    return page.evaluate("attentionViewer.state.query")


def values(page, cell: int) -> np.ndarray:
    return np.array(page.evaluate("i => attentionViewer.values(i)", cell))


def assert_shows(page, cell: int, expected: np.ndarray) -> None:
    largest = np.abs(expected).max()
    error = np.abs(values(page, cell) - expected.ravel()).max()
    assert error <= largest / 255 * (1 + 1e-5)


def colours(page, cell: int) -> np.ndarray:
    """RGB in the middle of each pixel of a map, as they stand on the canvas."""
    return np.array(
        page.evaluate(
            """index => {
              const cell = attentionViewer.cells[index];
              const maps = document.getElementById("maps");
              const copy = new OffscreenCanvas(maps.width, maps.height);
              const context = copy.getContext("2d", {willReadFrequently: true});
              context.drawImage(maps, 0, 0);
              const average = attentionViewer.state.show === "average";
              const zoom = average ? cell.zoom.average : cell.zoom.single;
              const [height, width] = attentionViewer.grid(index);
              const found = [];
              for (let row = 0; row < height; row++)
                for (let column = 0; column < width; column++) {
                  const x = cell.x + (column + 0.5) * zoom;
                  const y = cell.y + (row + 0.5) * zoom;
                  const ratio = devicePixelRatio;
                  const area = [Math.floor(x * ratio), Math.floor(y * ratio), 1, 1];
                  found.push([...context.getImageData(...area).data].slice(0, 3));
                }
              return found;
            }""",
            cell,
        )
    )


def assert_viridis(found: np.ndarray, shares: np.ndarray) -> None:
    expected = 255 * matplotlib.colormaps["viridis"](shares.ravel())[:, :3]
    assert np.abs(found - expected).max() <= 8


def point(page, cell: int, row: int, column: int) -> tuple[float, float]:
    """Where a map's pixel lies on the page."""
    place = page.locator("#maps").bounding_box()
    x, y, zoom = page.evaluate(
        "i => { const c = attentionViewer.cells[i]; return [c.x, c.y, c.zoom.single] }",
        cell,
    )
    return place["x"] + x + (column + 0.5) * zoom, place["y"] + y + (row + 0.5) * zoom


def image_point(page, row: int, column: int, grid=GRID) -> tuple[float, float]:
    place = page.locator("#image").bounding_box()
    return (
        place["x"] + (column + 0.5) * place["width"] / grid[1],
        place["y"] + (row + 0.5) * place["height"] / grid[0],
    )
