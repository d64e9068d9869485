"""The heads of one quadratic layer on the plane of offsets."""

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Ellipse, Rectangle
from matplotlib.patheffects import withStroke

from attn_cnn_jax.analysis.learned_positions import GaussianHeads
from attn_cnn_jax.analysis.plots.style import color, marker

_MASSES = {0.5: "-", 0.9: (0, (1, 1.2))}  # what a contour encloses: its line style
_LONGEST = 1e3  # times the reach of the panel: longer axes are drawn so long
_SHORTEST = 1e-3  # pixels


def radius(mass: float) -> float:
    """Return the Mahalanobis radius of the ellipse around `mass` of a 2-D Gaussian.

    The squared radius is chi-square with 2 degrees of freedom: -2 ln(1 - mass).
    """
    return math.sqrt(-2 * math.log1p(-mass))


def draw_heads(
    axes: Axes, heads: GaussianHeads, reach: float, numbered: bool
) -> set[int]:
    """Draw the heads of a layer, offsets up to `reach`; name the degenerate ones.

    Returns the heads that are drawn as markers, from 0: all, or where heads are
    `numbered` those whose centre is farther away.
    """
    half = math.floor(reach)
    axes.set(xlim=(-reach, reach), ylim=(reach, -reach), aspect="equal")
    ticks = [tick for tick in range(-half, half + 1) if tick % 2 == 0]
    axes.set(xticks=ticks, yticks=ticks)
    axes.tick_params(length=0, pad=1.5)
    edges = np.arange(-half - 0.5, half + 1)
    axes.hlines(edges, -reach, reach, colors="0.88", linewidths=0.4, zorder=0)
    axes.vlines(edges, -reach, reach, colors="0.88", linewidths=0.4, zorder=0)
    axes.add_patch(Rectangle((-0.5, -0.5), 1, 1, fill=False, linewidth=1.3, zorder=3))
    notes: dict[str, list[str]] = {}
    marked = set()
    for head, (center, precision, kind) in enumerate(
        zip(heads.centers, heads.precisions, heads.degenerate, strict=True)
    ):
        if kind:
            notes.setdefault(kind, []).append(str(head + 1))
        if not (np.isfinite(center).all() and np.isfinite(precision).all()):
            continue
        _contours(axes, head, center, precision, reach)
        if _center(axes, head, center, reach, numbered):
            marked.add(head)
    if not len(heads.centers):
        axes.text(0, -reach / 2, "no head", ha="center", va="center", color="0.45")
    text = "\n".join(f"{kind}: {' '.join(which)}" for kind, which in notes.items())
    if text:
        axes.text(
            0.03,
            0.03,
            text,
            transform=axes.transAxes,
            va="bottom",
            linespacing=1.0,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
            zorder=6,
        )
    return marked


def _contours(
    axes: Axes, head: int, center: np.ndarray, precision: np.ndarray, reach: float
) -> None:
    values, vectors = np.linalg.eigh(np.asarray(precision, np.float64))
    row, column = float(center[0]), float(center[1])
    sigmas = np.clip(
        1 / np.sqrt(np.maximum(values, 1e-300)), _SHORTEST, _LONGEST * reach
    )
    # eigh sorts the values: the first axis is the longest.
    angle = math.degrees(math.atan2(vectors[0, 0], vectors[1, 0]))
    for mass, dashes in _MASSES.items():
        width, height = 2 * radius(mass) * sigmas
        axes.add_patch(
            Ellipse(
                (column, row),
                width,
                height,
                angle=angle,
                fill=False,
                edgecolor=color(head),
                linestyle=dashes,
                linewidth=0.9,
                zorder=2,
                label=f"head {head + 1}, {mass:.0%}",
            )
        )


def _center(
    axes: Axes, head: int, center: np.ndarray, reach: float, numbered: bool
) -> bool:
    """Draw the number or the marker of a head; return whether it is a marker."""
    row, column = map(float, center)
    inside = max(abs(row), abs(column)) <= reach
    if numbered and inside:
        axes.text(
            column,
            row,
            str(head + 1),
            color=color(head),
            ha="center",
            va="center_baseline",
            fontweight="bold",
            zorder=5,
            clip_on=True,
            path_effects=[withStroke(linewidth=1.2, foreground="white")],
        )
        return False
    shrink = reach / max(abs(row), abs(column), reach)
    axes.plot(
        [column * shrink],
        [row * shrink],
        marker=marker(head),
        color=color(head),
        markersize=3.2,
        markeredgewidth=0.6,
        clip_on=False,
        zorder=5,
        markerfacecolor=color(head) if inside else "white",
        linestyle="none",
        label=f"head {head + 1}",
    )
    return True
