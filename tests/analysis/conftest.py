"""Heads written down by hand, runs of random variables, figures, a browser."""

import os
import shutil
from collections.abc import Callable, Sequence

import jax
import numpy as np
import pytest
from matplotlib.text import Text
from viewer_page import settle

from attn_cnn_jax import checkpoint, models
from attn_cnn_jax import config as config_lib
from attn_cnn_jax.analysis.attention_maps import AttentionMaps
from attn_cnn_jax.analysis.viewer import write_viewer
from attn_cnn_jax.run import Run

CHROMIUM = next(filter(None, map(shutil.which, ["chromium", "chromium-browser"])), None)
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
QUIET += [f"--disable-{part}" for part in ("background-networking", "sync")]
QUIET += ["--disable-component-update"]


class Heads:
    """Probabilities of one head each, [Hq, Wq, Hk, Wk], and maps made of them."""

    def dirac(self, offset: tuple[int, int], grid: tuple[int, int]) -> np.ndarray:
        """All on query + offset, or on the query itself where that is outside."""
        probs = np.zeros((*grid, *grid), np.float32)
        for row in range(grid[0]):
            for column in range(grid[1]):
                key = row + offset[0], column + offset[1]
                inside = 0 <= key[0] < grid[0] and 0 <= key[1] < grid[1]
                probs[(row, column, *(key if inside else (row, column)))] = 1
        return probs

    def uniform(self, grid: tuple[int, int]) -> np.ndarray:
        """The same for all keys."""
        return np.full((*grid, *grid), 1 / (grid[0] * grid[1]), np.float32)

    def fixed(self, key: tuple[int, int], grid: tuple[int, int]) -> np.ndarray:
        """All on one pixel, whatever the query."""
        probs = np.zeros((*grid, *grid), np.float32)
        probs[:, :, key[0], key[1]] = 1
        return probs

    def random(self, *shape: int, seed: int = 0) -> np.ndarray:
        """Softmax of noise over the last two axes."""
        scores = np.random.default_rng(seed).normal(size=shape)
        probs = np.exp(2 * scores)
        return (probs / probs.sum(axis=(-2, -1), keepdims=True)).astype(np.float32)

    def maps(
        self,
        *layers: np.ndarray,
        num_images: int = 1,
        kind: str = "grid",
        class_mass: Sequence[np.ndarray] | None = None,
        softmaxed: bool = True,
    ) -> AttentionMaps:
        """Layers [B or 1, N, ...] as `AttentionMaps` of blank images."""
        return AttentionMaps(
            kind=kind,
            layers=tuple(f"layer {i + 1}" for i in range(len(layers))),
            probs=layers,
            class_mass=None if class_mass is None else tuple(class_mass),
            images=np.zeros((num_images, 8, 8, 1), np.uint8),
            names=tuple(f"image {i + 1}" for i in range(num_images)),
            run="by_hand_seed1",
            step=20,
            epoch=2.5,
            softmaxed=softmaxed,
        )


@pytest.fixture
def heads() -> Heads:
    return Heads()


class Drawn:
    """What is drawn on a figure, for tests to look at."""

    def axes(self, figure, label: str):
        """The axes of that label, of which there is one."""
        (found,) = [axes for axes in figure.axes if axes.get_label() == label]
        return found

    def array(self, axes) -> np.ndarray:
        """The one heat map of the axes."""
        (image,) = axes.get_images()
        return np.asarray(image.get_array())

    def texts(self, figure) -> list[str]:
        """All that is written on it."""
        return [text.get_text() for text in figure.findobj(Text)]

    def words(self, figure) -> str:
        """All that is written on it in a line, for lines are broken anywhere."""
        return " ".join(" ".join(self.texts(figure)).split())

    def middle(self, patch) -> tuple[float, float]:
        """(row, column) of the middle of a rectangle."""
        across, down = patch.get_width() / 2, patch.get_height() / 2
        return patch.get_y() + down, patch.get_x() + across


@pytest.fixture
def drawn() -> Drawn:
    return Drawn()


def small_model(family: str):
    """The model of a config: a small network of the family, "shared" ones too."""
    kind = family.removeprefix("shared ")
    if kind == "vit":
        model = config_lib.vit()
        model.update(width=16, num_layers=2, num_heads=3, head_dim=4, mlp_dim=16)
        model.update(stem_width=4)
    elif kind == "san":  # 4 x 4, 4 x 4 and 2 x 2 pixels, 2 planes each
        model = config_lib.san("pairwise")
        model.update(widths=(64, 64), num_blocks=(2, 1), kernel_sizes=(3, 3))
    elif kind == "san_hierarchical":
        model = config_lib.san_hierarchical("patchwise")
        model.update(width=64, num_passes=2)
    elif kind == "resnet":
        model = config_lib.resnet("resnet10")
        model.width = 4
    else:
        model = config_lib.self_attention(kind)
        model.update(width=16, num_layers=2, num_heads=4, mlp_dim=16)
    if family.startswith("shared "):
        model.share_weights = True
    return model


@pytest.fixture
def random_variables():
    """`random_variables(config)`: of its network on images of 8 x 8, not compiled."""

    def draw(config):
        model = models.build(config.model, 10)
        shapes = jax.eval_shape(
            lambda: models.initial_variables(model, jax.random.key(0), (8, 8, 1))
        )
        rng = np.random.default_rng(3)

        def leaf(shape):
            scale = 0.3 if shape.ndim < 2 else shape.shape[-2] ** -0.5
            return (scale * rng.normal(size=shape.shape)).astype(shape.dtype)

        variables = jax.tree.map(leaf, shapes)
        if "batch_stats" in variables:  # variances that divide nothing by next to 0
            stats = variables["batch_stats"]
            variables["batch_stats"] = jax.tree.map(lambda a: 0.5 + np.abs(a), stats)
        return variables

    return draw


@pytest.fixture
def make_run(tiny_config, tmp_path, random_variables):
    """`make_run(family, change, **fields)`: a `Run` of random variables.

    `fields` are those of its model; `change(config, variables)` alters the variables.
    """

    def make(family: str, change: Callable = lambda *_: None, **fields) -> Run:
        config = tiny_config()
        config.model = small_model(family)
        config.model.update_from_flattened_dict(fields)
        variables = random_variables(config)
        change(config, variables)
        checkpoint.write_variables(tmp_path / "tiny_seed3", config, variables)
        return Run(tmp_path / "tiny_seed3")

    return make


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        if os.environ.get("CI"):
            pytest.fail("CI has no Chromium; install Debian's package chromium")
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--headless", *QUIET]
        )
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Opens checkpoints as a page; at the end it must have been silent and alone."""
    said, asked, pages = [], [], []
    path = tmp_path / "viewer.html"

    def open_page(*checkpoints, title="Attention", facts=None, at="", **options):
        write_viewer(path, checkpoints, title=title, facts=facts)
        size = options.pop("viewport", {"width": 1280, "height": 1000})
        page = browser.new_page(viewport=size, **options)
        page.set_default_timeout(20_000)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri() + at)
        settle(page)
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert said == []
    assert asked == [path.as_uri()] * len(pages)  # without what stands behind #
