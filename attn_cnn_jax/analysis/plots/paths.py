"""Paths of the centres of attention, from where they start to the taps of a kernel."""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter

from attn_cnn_jax.analysis.plots.page import LINE, MARGIN, Heading, Page, bare
from attn_cnn_jax.analysis.plots.style import (
    MARK,
    PAGE_WIDTH,
    SEQUENTIAL,
    color,
    marker,
    styled,
)

_GAP = 0.1
_LARGE = 3.15  # inches, the side of the panel of the first seed
_A_LINE = 7  # small panels
_AROUND = 1.3  # pixels around the kernel that a panel shows
_DARKEST = 0.45  # of the colour map, so that lines are seen on every cell
_EXPLANATION = (
    "A hollow marker is where a head's centre starts, a filled one where it ends. "
    "Cells are offsets (row down, column right), the black one is the query pixel, and "
    "the shade is the size of the kernel's weights at that tap, white where all are 0. "
    "The first start is large, and orange in the curves; the others are grey there."
)


@styled
def paths_of_centers(
    steps: Int[np.ndarray, "R"],  # noqa: F821
    centers: Float[np.ndarray, "S R N 2"],
    errors: Float[np.ndarray, "S R"],
    covered: Int[np.ndarray, "S R"],
    weights: Float[np.ndarray, "K K"],
    *,
    title: str,
    seeds: Sequence[str],
) -> Figure:
    """Draw where the centres of N heads went in R recorded steps, from S starts.

    `errors` are relative, `covered` numbers of taps, `weights` the norm of the kernel
    at each tap, 0 for none; `seeds` name the starts. The first is drawn large, with
    its error and its covered taps in colour among those of all.
    """
    others = len(centers) - 1
    lines = math.ceil(others / _A_LINE)
    side = (PAGE_WIDTH - 2 * MARGIN - (_A_LINE - 1) * _GAP) / _A_LINE
    heading = Heading("A head for every tap?", [title], [_EXPLANATION])
    above, height = LINE + 0.08, _LARGE + 0.42 + lines * (side + LINE + 0.06)
    page = Page(heading, above + height, PAGE_WIDTH)
    top = page.top + above
    below = top + _LARGE + 0.42
    reach = len(weights) / 2 + _AROUND
    large = page.axes(0.28, top, _LARGE, _LARGE)
    _panel(large, centers[0], weights, reach, 3.6)
    large.set_title(seeds[0], pad=3)
    large.set_label(seeds[0])
    half = math.floor(reach)
    ticks = range(-half, half + 1)
    large.set(xticks=ticks, yticks=ticks)
    large.tick_params(length=0, pad=2)
    left = 0.28 + _LARGE + 0.55
    wide, high = PAGE_WIDTH - left - 0.15, (_LARGE - 0.3) / 2
    _curves(
        page.axes(left, top, wide, high),
        steps,
        np.maximum(errors, np.finfo(np.float32).tiny),
        "error: energy of the residual / of the convolution",
    )
    _log_scale(page.figure.axes[-1])
    counts = page.axes(left, top + high + 0.3, wide, high)
    taps = int((weights > 0).sum())
    counts.axhline(taps, color="0.35", linewidth=0.6, linestyle=(0, (1, 1.2)))
    _curves(counts, steps, covered, f"taps covered, of {taps}")
    counts.set(ylim=(-0.03 * taps, 1.06 * taps))
    counts.set_xlabel("step", labelpad=1)
    for index in range(others):
        line, column = divmod(index, _A_LINE)
        place = MARGIN + column * (side + _GAP), below + line * (side + LINE + 0.06)
        axes = page.axes(place[0], place[1], side, side)
        _panel(axes, centers[index + 1], weights, reach, 1.8)
        bare(axes)
        axes.set_title(seeds[index + 1], pad=2)
        axes.set_label(seeds[index + 1])
    return page.figure


def _panel(
    axes: Axes,
    centers: Float[np.ndarray, "R N 2"],
    weights: np.ndarray,
    reach: float,
    markersize: float,
) -> None:
    axes.set(xlim=(-reach, reach), ylim=(reach, -reach), aspect="equal")
    edge = len(weights) / 2
    axes.imshow(
        weights,
        cmap=SEQUENTIAL,
        norm=Normalize(0, weights.max() / _DARKEST),
        extent=(-edge, edge, edge, -edge),
        zorder=0,
    )
    axes.set(xlim=(-reach, reach), ylim=(reach, -reach))  # imshow sets its own
    between = np.arange(-math.floor(reach) - 0.5, reach)
    axes.hlines(between, -reach, reach, colors="0.8", linewidths=0.3, zorder=1)
    axes.vlines(between, -reach, reach, colors="0.8", linewidths=0.3, zorder=1)
    axes.add_patch(Rectangle((-0.5, -0.5), 1, 1, fill=False, linewidth=1.2, zorder=2))
    for head in range(centers.shape[1]):
        rows, columns = centers[:, head].T
        look = {"color": color(head), "marker": marker(head), "markersize": markersize}
        axes.plot(
            columns,
            rows,
            color=color(head),
            linewidth=markersize / 4,
            zorder=3,
            label=f"head {head + 1}",
        )
        axes.plot(
            columns[:1],
            rows[:1],
            **look,
            markerfacecolor="white",
            markeredgewidth=markersize / 5,
            zorder=4,
        )
        look["markersize"] = 1.5 * markersize
        axes.plot(
            columns[-1:],
            rows[-1:],
            **look,
            markeredgecolor="white",
            markeredgewidth=markersize / 7,
            zorder=5,
        )


def _log_scale(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
    axes.tick_params(which="minor", length=1, width=0.4)
    axes.tick_params(labelbottom=False)


def _curves(axes: Axes, steps: np.ndarray, values: np.ndarray, name: str) -> None:
    for seed in range(len(values) - 1, -1, -1):
        look = {"color": MARK, "linewidth": 1.3, "zorder": 4}
        if seed:
            look = {"color": "0.6", "linewidth": 0.7, "zorder": 3}
        axes.plot(steps, values[seed], **look)
    axes.set_title(name, loc="left", pad=3)
    axes.set_label(name.partition(":")[0].partition(",")[0])
    axes.set_xlim(0, max(1, int(steps[-1])))
    axes.grid(linewidth=0.3, color="0.88")
    axes.tick_params(length=2, width=0.5, pad=2)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
