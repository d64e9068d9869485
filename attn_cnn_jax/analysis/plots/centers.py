"""Centres of attention of quadratic heads, with the contours of their mass."""

import math
from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from attn_cnn_jax.analysis.learned_positions import MAX_CONDITION, GaussianHeads
from attn_cnn_jax.analysis.plots.gaussians import draw_heads
from attn_cnn_jax.analysis.plots.page import LINE, MARGIN, Heading, Page
from attn_cnn_jax.analysis.plots.style import (
    PAGE_HEIGHT,
    color,
    current,
    marker,
    styled,
)

_LEFT, _GAP = 0.42, 0.1
_LEGEND = 0.8  # inches, the width of an entry
_SMALLEST, _LARGEST = 0.9, 2.4  # inches, sides of a panel
_REACH = 4.5  # pixels, the largest offset of a panel
_NUMBERED = 1.4  # in panels larger than this heads are numbers, else markers
_EXPLANATION = (
    "Contours hold 50 % (solid) and 90 % (dotted) of a head's Gaussian, of which the "
    "pixels are samples. The square is the query pixel, a hollow marker stands for a "
    "centre outside the panel, and the axes are offsets in pixels, rows down. A head "
    "is called uniform where it looks at all pixels of the grid alike, and strip where "
    f"the condition number of its precision is above {MAX_CONDITION:g}."
)

Panel = tuple[GaussianHeads, str]  # and its name


@styled
def centers_over_training(
    checkpoints: Sequence[Sequence[GaussianHeads]],
    *,
    title: str,
    checkpoint_names: Sequence[str],
    layers: Sequence[str],
) -> Figure:
    """Draw checkpoints as rows and layers as columns (report, Fig. 2).

    `checkpoints[i][j]`: heads of layer j. Solid and dotted: 50 % and 90 % of a head's
    mass on the plane, softmax over a continuum of offsets. Panels show offsets up to
    4.5 pixels; heads whose centre lies outside are a marker on the border.
    """
    lines = [list(zip(row, layers, strict=True)) for row in checkpoints]
    heading = "Centres of attention over training"
    return _draw(heading, title, lines, checkpoint_names)


@styled
def centers_of_layer(
    heads: Sequence[GaussianHeads],
    *,
    title: str,
    layer: str,
    checkpoint_names: Sequence[str],
) -> Figure:
    """Draw one layer over training, a panel for each checkpoint (paper, Fig. 3)."""
    panels = list(zip(heads, checkpoint_names, strict=True))
    return _draw(
        f"Centres of attention of {layer} over training",
        title,
        _in_lines(panels, 4),
    )


@styled
def centers_of_layers(
    heads: Sequence[GaussianHeads],
    *,
    title: str,
    layers: Sequence[str],
) -> Figure:
    """Draw all layers of one checkpoint, a panel for each (paper, Fig. 4)."""
    panels = list(zip(heads, layers, strict=True))
    return _draw("Centres of attention", title, _in_lines(panels, 3))


def _in_lines(panels: list[Panel], most: int) -> list[list[Panel]]:
    most = min(most, max(1, int(current().width / 1.6)))
    most = math.ceil(len(panels) / math.ceil(len(panels) / most))
    return [panels[i : i + most] for i in range(0, len(panels), most)]


def _draw(
    heading: str,
    title: str,
    lines: Sequence[Sequence[Panel]],
    row_names: Sequence[str] | None = None,
) -> Figure:
    """Draw panels with their names above, or above the first line of named rows."""
    top = Heading(heading, [title], [_EXPLANATION])
    heads = max(len(heads.centers) for line in lines for heads, _ in line)
    legend = LINE * math.ceil(heads / _per_line(heads))
    named = LINE if row_names is None else 0.0  # above the panels of every line
    above, last = 0.05 + LINE - named, 0.3 + legend
    width = current().width
    high = PAGE_HEIGHT - top.height(width) - above - last
    high = high / len(lines) - _GAP - named
    across = (width - 2 * MARGIN - _LEFT) / max(map(len, lines)) - _GAP
    side = min(across, max(high, _SMALLEST), _LARGEST)
    step = side + _GAP + named
    page = Page(top, above + len(lines) * step + last)
    first = page.top + above
    marked: set[int] = set()
    indent = _LEFT + (across - side) * max(map(len, lines)) / 2
    for i, line in enumerate(lines):
        for j, (heads_here, name) in enumerate(line):
            left, top = indent + j * (side + _GAP), first + i * step + named
            axes = page.axes(left, top, side, side)
            marked |= draw_heads(axes, heads_here, _REACH, numbered=side > _NUMBERED)
            is_last = i == len(lines) - 1 or j >= len(lines[i + 1])
            axes.tick_params(labelleft=j == 0, labelbottom=is_last)
            if row_names is None or i == 0:
                axes.set_title(name, pad=2.5)
            if row_names is not None and j == 0:
                axes.set_ylabel(row_names[i], labelpad=1)
            axes.set_label(name if row_names is None else f"{row_names[i]}, {name}")
    _legend(page, heads, marked, page.height - legend - 0.08)
    return page.figure


def _per_line(heads: int) -> int:
    """Return how many heads stand in a line of the legend."""
    fitting = int(current().width / _LEGEND)
    if heads <= min(9, fitting + 1):
        return max(1, heads)
    return fitting


def _legend(page: Page, heads: int, marked: set[int], top: float) -> None:
    """Name the colours of the heads, with the markers of those that have one."""
    per_line = _per_line(heads)
    handles = [
        Line2D(
            [],
            [],
            color=color(head),
            marker=marker(head) if head in marked else "",
            markersize=3.2,
            linewidth=0.9,
            label=f"head {head + 1}",
        )
        for column in range(per_line)
        for head in range(column, heads, per_line)  # a legend fills its columns first
    ]
    page.figure.legend(
        handles=handles,
        loc="upper center",
        ncols=per_line,
        frameon=False,
        bbox_to_anchor=(0.5, 1 - top / page.height),
        borderpad=0,
        borderaxespad=0,
        handlelength=1.6,
        columnspacing=1.0,
        labelspacing=0.25,
        handletextpad=0.4,
    )
