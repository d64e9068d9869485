"""Which layers behave like a convolution, and of which size, at a glance."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from attn_cnn_jax.analysis.plots.page import (
    LINE,
    Page,
    bare,
    heading_height,
    wrapped,
)
from attn_cnn_jax.analysis.plots.style import (
    MARK,
    PAGE_WIDTH,
    SEQUENTIAL,
    ink,
    styled,
)

_MARGIN, _LEFT, _STRIP = 0.1, 0.62, 0.15


@dataclasses.dataclass(frozen=True)
class LayerOffsets:
    """Where the heads of a layer look: one entry a head.

    `best`: offset (row, column) with the most mass, at most `reach` from the query;
    `masses` on it; `covered`: whether the head covers it; `kernel_size` K: the largest
    odd K whose centred K x K grid is covered, 0 if none. Strips that are None stay
    away. `entropies` in nats, `distances` in pixels.
    """

    name: str
    best: Int[np.ndarray, "N 2"]
    masses: Float[np.ndarray, "N"]  # noqa: F821
    covered: Bool[np.ndarray, "N"]  # noqa: F821
    kernel_size: int
    reach: int
    content_dependence: Float[np.ndarray, "N"] | None = None  # noqa: F821
    entropies: Float[np.ndarray, "N"] | None = None  # noqa: F821
    distances: Float[np.ndarray, "N"] | None = None  # noqa: F821
    num_keys: int | None = None  # of the entropy's scale: ln(num_keys)
    uniform_distance: float | None = None  # of the distance's scale

    @property
    def heading(self) -> str:
        """What the layer is, e.g. "layer 2: 3 × 3 convolution"."""
        size = self.kernel_size
        what = f"{size} × {size} convolution" if size else "no convolution"
        return f"{self.name}: {what}"

    def counts(self, noun: str = "head") -> str:
        """How many heads cover an offset, and how many offsets they cover."""
        distinct = len({tuple(offset) for offset in self.best[self.covered].tolist()})
        offsets = "offset" if distinct == 1 else "offsets"
        return (
            f"{int(self.covered.sum())} of {len(self.best)} {noun}s cover "
            f"{distinct} {offsets}"
        )

    def strips(self) -> dict[str, tuple[np.ndarray, float]]:
        """Name of each strip: its values and the value that is darkest."""
        strips = {"mass": (self.masses, 1.0)}
        if self.content_dependence is not None:
            strips["content"] = (self.content_dependence, 1.0)
        if self.entropies is not None:
            highest = math.log(self.num_keys) if self.num_keys else np.nan
            if not highest > 0:
                highest = float(max(self.entropies, default=1.0)) or 1.0
            strips["entropy"] = (self.entropies, highest)
        if self.distances is not None:
            farthest = self.uniform_distance or float(max(1, self.reach))
            strips["distance"] = (self.distances, farthest)
        return strips


@styled
def convolution_layers(
    layers: Sequence[LayerOffsets], *, title: str, noun: str = "head"
) -> Figure:
    """A panel a layer: the offsets that its heads look at, and numbers of every head.

    A cell of a panel is an offset: its shade the largest mass that a head puts on it,
    its number the head, or "×n" for n heads; framed where a head covers it. The
    orange square is the K x K kernel that the layer covers. `noun`: what a head
    is called.
    """
    if not layers:
        raise ValueError("no layer to draw")
    heads = max(len(layer.best) for layer in layers)
    across = min(len(layers), 3 if heads <= 9 else 2)
    panel = (PAGE_WIDTH - _MARGIN) / max(across, 2)
    width = panel - _LEFT - 0.12
    side = min(width, 1.6)
    strips = max(len(layer.strips()) for layer in layers)
    step = 2 * LINE + side + 0.08 + strips * _STRIP + 0.35
    lines = [
        title,
        "cells: offsets (row down, column right); shade: the largest mass on it, "
        f"number: its {noun}, ×n: n {noun}s, frame: covered; black: the query itself",
        f"strips, a cell a {noun}: " + "; ".join(_explain(layers)),
    ]
    title, room = "Which layers are a convolution?", PAGE_WIDTH - 1.75
    header = _MARGIN + heading_height(room, title, lines) + 0.1
    page = Page(PAGE_WIDTH, header + math.ceil(len(layers) / across) * step)
    page.heading(_MARGIN, _MARGIN, room, title, lines)
    page.colorbar(PAGE_WIDTH - 1.4, _MARGIN, 1.2, SEQUENTIAL, ("0", "0.5", "1"), "mass")
    for index, layer in enumerate(layers):
        line, column = divmod(index, across)
        left, top = column * panel + _LEFT, header + line * step
        for place, text in enumerate((layer.heading, layer.counts(noun))):
            weight = "normal" if place else "bold"
            for piece in wrapped(text, 9.0):
                page.text(left, top + place * LINE, piece, fontweight=weight)
        axes = page.axes(left, top + 2 * LINE + 0.03, side, side)
        axes.set_label(layer.name)
        _offsets(axes, layer)
        _strips(page, layer, left, top + 2 * LINE + side + 0.2, width)
    return page.figure


def _explain(layers: Sequence[LayerOffsets]) -> list[str]:
    texts = {
        "mass": "mass on its best offset",
        "content": "content-dependence (darkest 1)",
        "entropy": "entropy (nats; darkest: uniform)",
        "distance": "mean distance (pixels; darkest: uniform)",
    }
    names = [name for layer in layers for name in layer.strips()]
    return [texts[name] for name in dict.fromkeys(names)]


def _offsets(axes: Axes, layer: LayerOffsets) -> None:
    reach = layer.reach
    size = 2 * reach + 1
    masses, heads = np.zeros((size, size)), {}
    for head, (row, column) in enumerate(layer.best.tolist()):
        if max(abs(row), abs(column)) > reach:
            raise ValueError(f"{layer.name}: offset {row, column} beyond {reach=}")
        place = row + reach, column + reach
        masses[place] = max(masses[place], layer.masses[head])
        heads.setdefault((row, column), []).append(head)
    edge = reach + 0.5
    extent = (-edge, edge, edge, -edge)
    axes.imshow(masses, cmap=SEQUENTIAL, vmin=0, vmax=1, extent=extent)
    between = np.arange(-reach + 0.5, reach)
    axes.hlines(between, -edge, edge, colors="0.85", linewidths=0.3)
    axes.vlines(between, -edge, edge, colors="0.85", linewidths=0.3)
    for (row, column), which in heads.items():
        shade = float(masses[row + reach, column + reach])
        text = str(which[0] + 1) if len(which) == 1 else f"×{len(which)}"
        axes.text(
            column, row, text, ha="center", va="center", color=ink(SEQUENTIAL, shade)
        )
        if layer.covered[which].any():
            axes.add_patch(_square(row, column, 1.0, edgecolor="0.1", linewidth=0.7))
    axes.add_patch(_square(0, 0, 0.8, edgecolor="black", linewidth=1.2))
    if layer.kernel_size:
        kernel = _square(
            0, 0, float(layer.kernel_size), edgecolor=MARK, linewidth=2, zorder=4
        )
        kernel.set_label("kernel")
        axes.add_patch(kernel)
    ticks = [tick for tick in range(-reach, reach + 1) if reach < 4 or tick % 2 == 0]
    axes.set(xticks=ticks, yticks=ticks)
    axes.tick_params(length=0, pad=2)


def _square(row: int, column: int, size: float, **look) -> Rectangle:
    corner = (column - size / 2, row - size / 2)
    return Rectangle(corner, size, size, fill=False, **look)


def _strips(
    page: Page, layer: LayerOffsets, left: float, top: float, width: float
) -> None:
    count = len(layer.best)
    if not count:
        return
    for index, (name, (values, highest)) in enumerate(layer.strips().items()):
        axes = page.axes(left, top + index * _STRIP, width, _STRIP - 0.02)
        axes.imshow(values[None], cmap=SEQUENTIAL, vmin=0, vmax=highest, aspect="auto")
        bare(axes)
        axes.set_label(f"{layer.name}, {name}")
        axes.set_ylabel(name, rotation=0, ha="right", va="center", labelpad=2)
        if width / count >= 0.165:
            for head, value in enumerate(values):
                axes.text(
                    head,
                    0,
                    _short(float(value)),
                    ha="center",
                    va="center_baseline",
                    color=ink(SEQUENTIAL, float(value) / highest),
                )


def _short(value: float) -> str:
    """Two digits: .93, 1.0, 4.2, 12."""
    if value < 0.995:
        return f"{value:.2f}"[1:]
    return f"{value:.1f}" if value < 9.95 else f"{value:.0f}"
