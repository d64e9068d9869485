"""How a layer computes a pixel: what each head or shift sees, times its matrix."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from attn_cnn_jax.analysis.plots.page import LINE, MARGIN, Heading, Page, bare
from attn_cnn_jax.analysis.plots.style import (
    DIVERGING,
    FONT_SIZE,
    MARK,
    PAGE_WIDTH,
    ink,
    styled,
)

_PANEL, _LEFT, _IMAGE = 0.7, 1.26, 0.95
_CELL_WIDTH, _CELL_HEIGHT, _SIGN = 0.27, 0.19, 0.11
_ACROSS = 3


@dataclasses.dataclass(frozen=True)
class PixelSum:
    """The output of a layer at one pixel, without a bias: sum_h (weights_h x) kernel_h.

    `weights` are over the pixels of the image and `means` what they make of it,
    `products` are means times kernel. For a convolution a "head" is a shift and its
    weights are one at the shifted pixel. `centers` are (row, column) of the image. An
    image is of one channel, between 0 and 1.
    """

    image: Float[np.ndarray, "H W"]
    query: tuple[int, int]
    names: Sequence[str]  # of the heads
    channels: Sequence[str]  # of the output
    centers: Float[np.ndarray, "N 2"]
    weights: Float[np.ndarray, "N H W"]
    means: Float[np.ndarray, "N"]
    kernel: Float[np.ndarray, "N E"]
    products: Float[np.ndarray, "N E"]
    output: Float[np.ndarray, "E"]


@styled
def pixel_sum(
    computed: PixelSum, *, title: str, lines: Sequence[str], mean: str, matrix: str
) -> Figure:
    """Draw the image and the query, the part of every head, and the sum of the parts.

    `mean` and `matrix` are what the columns of numbers are called. The orange of a
    head's panel is where its weights are, relative to the largest.
    """
    count, channels = computed.kernel.shape
    numbers = channels * _CELL_HEIGHT
    row = LINE + max(_PANEL, LINE + numbers) + 0.1
    across = min(count, _ACROSS)
    lines_of_heads = -(-count // across)
    height = max(lines_of_heads * row, LINE + _IMAGE + 0.3 + LINE + numbers)
    page = Page(Heading(title, lines), 0.12 + height + 0.05, PAGE_WIDTH)
    header = page.top + 0.12
    scale = float(max(np.abs(computed.kernel).max(), np.abs(computed.output).max()))
    _draw_sum(page, computed, header, scale)
    step = (PAGE_WIDTH - _LEFT - MARGIN) / across
    for head in range(count):
        line, column = divmod(head, across)
        left, top = _LEFT + column * step, header + line * row
        page.text(left, top, computed.names[head])
        axes = page.axes(left, top + LINE + 0.02, _PANEL, _PANEL)
        axes.set_label(f"weights {head + 1}")
        _draw_weights(axes, computed, head)
        names = (mean, matrix) if line == 0 else ("", "")
        place = left + _PANEL + 0.05, top + LINE
        _draw_product(page, computed, head, *place, names, scale)
    return page.figure


def _draw_image(axes: Axes, computed: PixelSum) -> None:
    axes.imshow(computed.image, cmap="gray_r", vmin=0, vmax=1.6)  # black is for frames
    row, column = computed.query
    axes.add_patch(
        Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, linewidth=1.3, zorder=3)
    )
    bare(axes)


def _draw_weights(axes: Axes, computed: PixelSum, head: int) -> None:
    _draw_image(axes, computed)
    weights = computed.weights[head]
    shade = np.zeros((*weights.shape, 4))
    shade[..., :3] = [int(MARK[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    shade[..., 3] = 0.8 * weights / weights.max()
    image = axes.imshow(shade)
    image.set_label("weights")
    row, column = computed.centers[head]
    axes.plot(column, row, "+", color="black", markersize=4, markeredgewidth=0.8)


def _draw_product(
    page: Page,
    computed: PixelSum,
    head: int,
    left: float,
    top: float,
    names: tuple[str, str],
    scale: float,
) -> None:
    """Draw a mean, its kernel as a column, and the column that is their product."""
    height = len(computed.output) * _CELL_HEIGHT
    middle = top + LINE + height / 2
    columns = [
        ("mean", computed.means[head : head + 1], 1.0),
        ("kernel", computed.kernel[head], scale),
        ("product", computed.products[head], scale),
    ]
    for index, (label, values, largest) in enumerate(columns):
        start = middle - len(values) * _CELL_HEIGHT / 2
        _draw_column(page, values, left, start, largest, f"{label} {head + 1}")
        if index < 2:
            page.text(
                left + _CELL_WIDTH / 2,
                start - 0.02,
                names[index],
                ha="center",
                va="bottom",
                parse_math=True,
            )
        left += _CELL_WIDTH
        if index < 2:
            sign = "·="[index]
            page.text(left + _SIGN / 2, middle, sign, ha="center", va="center")
            left += _SIGN


def _draw_column(
    page: Page,
    values: Float[np.ndarray, "E"],
    left: float,
    top: float,
    largest: float,
    label: str,
) -> None:
    height = len(values) * _CELL_HEIGHT
    axes = page.axes(left, top, _CELL_WIDTH, height)
    axes.set_label(label)
    axes.imshow(
        values[:, None], cmap=DIVERGING, vmin=-largest, vmax=largest, aspect="auto"
    )
    bare(axes)
    for index, value in enumerate(values):
        shade = 0.5 + 0.5 * float(value) / largest
        axes.text(
            0,
            index,
            _short(value),
            ha="center",
            va="center_baseline",
            color=ink(DIVERGING, shade),
            fontsize=FONT_SIZE,
        )


def _draw_sum(page: Page, computed: PixelSum, top: float, scale: float) -> None:
    """Draw the image with the query, and the output under it."""
    row, column = computed.query
    page.text(MARGIN, top, f"image, query ({row}, {column})")
    axes = page.axes(MARGIN, top + LINE + 0.02, _IMAGE, _IMAGE)
    axes.set_label("image")
    _draw_image(axes, computed)
    top += LINE + _IMAGE + 0.3
    page.text(MARGIN, top, "output, their sum")
    left, top = MARGIN + _IMAGE - _CELL_WIDTH, top + LINE + 0.04
    _draw_column(page, computed.output, left, top, scale, "output")
    for index, name in enumerate(computed.channels):
        middle = top + (index + 0.5) * _CELL_HEIGHT
        page.text(left - 0.06, middle, name, ha="right", va="center_baseline")


def _short(value: float) -> str:
    """Return a number with two decimals: .25, −.12, 0, 1.05."""
    text = f"{value:.2f}".replace("0.", ".").replace("-", "−")
    return "0" if text in (".00", "−.00") else text
