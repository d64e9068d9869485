"""How much of each layer its closest convolution explains: by size, and over epochs."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attn_cnn_jax.analysis.closest_convolution import ConvolutionTable
from attn_cnn_jax.analysis.plots.page import LINE, Heading, Page
from attn_cnn_jax.analysis.plots.style import DASHES, color, current, marker, styled

_LEFT, _GAP = 0.45, 0.55  # inches
_HEIGHT, _UNDER = 2.1, 0.45
_LEGEND, _LONG_LEGEND = 1.5, 2.65  # of layers alone, and with what they cover
_NARROW = 5.0  # pages narrower than this have all below each other
_NOTE = (
    "R² is that on test images to which the convolution was not fitted. A layer is its "
    "attention alone, and beyond the border the convolution sees the nearest pixel."
)


@styled
def closest_convolution(table: ConvolutionTable, *, title: str) -> Figure:
    """Draw R^2 of the closest K x K convolution against K, a line a layer."""
    sizes = table.kernel_sizes
    heading = "How much of a layer is a convolution?"
    page, [axes] = _page(heading, title, len(table.layers), ["R²"], _LONG_LEGEND)
    for index, one in enumerate(table.layers):
        there = [size for size in sizes if one.r_squared(size) is not None]
        scores = [one.r_squared(size) for size in there]
        coverage = table.coverage.get(one.layer)
        name = one.layer
        if coverage is not None:
            count = len(coverage.covered)
            name += f" ({count} {'offset' if count == 1 else 'offsets'} covered)"
        _line(axes, index, [sizes.index(size) for size in there], scores, name)
    _look(axes, "closest convolution", "R²")
    axes.set_xlim(-0.25, len(sizes) - 0.75)
    axes.set_xticks(range(len(sizes)), [f"{size} × {size}" for size in sizes])
    _up_to_one(axes)
    _legend(axes)
    return page.figure


@styled
def convolution_epochs(
    tables: Sequence[ConvolutionTable], *, kernel_size: int, title: str
) -> Figure:
    """Draw R^2 of the closest convolution and covered offsets against the epoch.

    The tables are those of one run's checkpoints. A layer whose offsets or R^2 are not
    known has no line.
    """
    layers = [one.layer for one in tables[0].layers]
    heading = "Does the network become a convolution while it trains?"
    panels = ["R²", "covered offsets"]
    page, [score, covered] = _page(heading, title, len(layers), panels, _LEGEND)
    epochs = [table.epoch for table in tables]
    for index, layer in enumerate(layers):
        scores = [table.layers[index].r_squared(kernel_size) for table in tables]
        _line(score, index, epochs, scores, layer)
        coverages = [table.coverage.get(layer) for table in tables]
        counts = [None if c is None else float(len(c.covered)) for c in coverages]
        _line(covered, index, epochs, counts, layer)
    _look(
        score, "epoch", f"R² of the closest {kernel_size} × {kernel_size} convolution"
    )
    _look(covered, "epoch", "offsets that the heads cover")
    _up_to_one(score)
    covered.set_ylim(0, max(1.0, covered.get_ylim()[1]))
    covered.yaxis.set_major_locator(MaxNLocator("auto", integer=True))
    _legend(covered)
    return page.figure


def _page(
    heading: str, title: str, num_layers: int, panels: Sequence[str], legend: float
) -> tuple[Page, list[Axes]]:
    """Return the page and its panels, with room for the legend at the last one."""
    narrow, lines = current().width < _NARROW, num_layers * 1.35 * LINE + 0.2
    step = _HEIGHT + _UNDER + 0.25
    below = len(panels) * step + lines if narrow else max(_HEIGHT + _UNDER, lines)
    page = Page(Heading(heading, [title], [_NOTE]), 0.3 + below)
    count, top = len(panels), page.top + 0.3
    wide = (page.width - _LEFT - (count - 1) * _GAP - legend) / count
    axes = []
    for index, label in enumerate(panels):
        place = _LEFT + index * (wide + _GAP), top, wide
        if narrow:
            place = _LEFT, top + index * step, page.width - _LEFT - 0.15
        axes.append(page.axes(*place, _HEIGHT, label=label))
    return page, axes


def _line(
    axes: Axes,
    index: int,
    x: Sequence[int | float],
    y: Sequence[float | None],
    name: str,
) -> None:
    values = np.array([np.nan if value is None else value for value in y], float)
    axes.plot(
        x,
        values,
        color=color(index),
        linestyle=DASHES[index % len(DASHES)],
        marker=marker(index),
        markersize=3.5,
        linewidth=1.1,
        label=name,
        clip_on=False,
        zorder=3,
    )


def _look(axes: Axes, x_label: str, title: str) -> None:
    axes.set_xlabel(x_label)
    axes.set_title(title, loc="left", pad=3)
    axes.grid(linewidth=0.3, color="0.88")
    axes.tick_params(length=2, width=0.5, pad=2)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)


def _up_to_one(axes: Axes) -> None:
    """Let R^2 end at 1, which is a convolution."""
    low = axes.get_ylim()[0]
    axes.set_ylim(min(low, 0.9), 1)


def _legend(axes: Axes) -> None:
    narrow = current().width < _NARROW
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(0.0, -_UNDER / _HEIGHT) if narrow else (1.03, 1.0),
        borderaxespad=0,
        frameon=False,
        handlelength=3,
    )
