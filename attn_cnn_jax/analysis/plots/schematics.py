"""Drawings of the two attention operations (report, Figs 6 and 7)."""

import dataclasses

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from attn_cnn_jax.analysis.plots.page import Heading, Page
from attn_cnn_jax.analysis.plots.style import MARK, PAGE_WIDTH, styled

_WEIGHTS = ("#88ccee", "#ddcc77", "#cc99bb")  # of the layers, light under black letters
_LAYERS, _PITCH = 3, 2.3
_Y = {"V": 0.62, "Q": 0.0, "K": -0.62}


@styled
def normal_attention() -> Figure:
    """Draw layers with weights of their own, each with its own Q, K and V (Fig. 6)."""
    return _draw(
        "Normal attention",
        "Every layer has its own weights (colours, upper index); Q, K and V are "
        "computed anew in each.",
        shared=False,
    )


@styled
def hierarchical_attention() -> Figure:
    """Draw one layer passed several times with the K of its first pass (Fig. 7)."""
    return _draw(
        "Hierarchical attention",
        "All passes share one set of weights; Q and V are computed anew in each pass, "
        "K is that of the first (thick line).",
        shared=True,
    )


@dataclasses.dataclass(frozen=True)
class _Box:
    x: float
    y: float
    text: str
    width: float = 0.42
    height: float = 0.4
    color: str = "white"
    edge: str = "0.2"

    def draw(self, axes: Axes) -> None:
        corner = self.x - self.width / 2, self.y - self.height / 2
        axes.add_patch(
            FancyBboxPatch(
                corner,
                self.width,
                self.height,
                facecolor=self.color,
                edgecolor=self.edge,
                linewidth=0.8,
                boxstyle="round,pad=0,rounding_size=0.06",
                zorder=2,
            )
        )
        axes.text(
            self.x,
            self.y,
            self.text,
            ha="center",
            va="center",
            fontsize=8,
            linespacing=1.1,
            parse_math=True,
            zorder=4,
        )

    @property
    def left(self) -> tuple[float, float]:
        return self.x - self.width / 2, self.y

    @property
    def right(self) -> tuple[float, float]:
        return self.x + self.width / 2, self.y


def _arrow(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    color: str = "0.25",
    linewidth: float = 0.9,
) -> None:
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=6,
            shrinkA=0,
            shrinkB=0,
            zorder=3,
            color=color,
            linewidth=linewidth,
        )
    )


def _draw(title: str, caption: str, *, shared: bool) -> Figure:
    page = Page(Heading(title, [caption]), 1.97, PAGE_WIDTH)
    axes = page.axes(0.05, page.top + 0.07, 6.9, 1.85)
    axes.set(xlim=(-0.66, _PITCH * (_LAYERS - 1) + 2.06), ylim=(-1.12, 1.05))
    axes.set_axis_off()
    source = _Box(1.86 - _PITCH, 0.0, "$x$", width=0.26)
    source.draw(axes)
    for layer in range(_LAYERS):
        name = f"pass {layer + 1}" if shared else f"layer {layer + 1}"
        middle = layer * _PITCH + 0.74
        axes.text(middle, 1.0, name, ha="center", va="center", fontweight="bold")
        source = _draw_layer(axes, source, layer, shared=shared)
    if shared:
        _carry_keys(axes)
    return page.figure


def _draw_layer(axes: Axes, source: _Box, layer: int, *, shared: bool) -> _Box:
    """Draw one layer or pass from its input on and return its output."""
    left = layer * _PITCH
    softmax = _Box(left + 1.3, -0.31, "softmax\n$(QK^T)$", width=0.6, height=0.62)
    product = _Box(left + 1.3, _Y["V"], "$\\times V$", width=0.42)
    targets = {
        "V": product.left,
        "Q": (softmax.left[0], -0.12),
        "K": (softmax.left[0], -0.5),
    }
    for letter, y in _Y.items():
        kept = shared and letter == "K"
        vector = _Box(
            left + 0.74,
            y,
            "$K_1$" if kept else f"${letter}$",
            width=0.28,
            height=0.36,
            edge=MARK if kept else "0.2",
        )
        if not kept or layer == 0:
            weight = _Box(
                left + 0.3,
                y,
                f"$W_{letter}$" if shared else f"$W_{letter}^{layer + 1}$",
                width=0.36,
                color=_WEIGHTS[0 if shared else layer],
            )
            _arrow(axes, source.right, weight.left)
            weight.draw(axes)
            _arrow(axes, weight.right, vector.left)
        vector.draw(axes)
        _arrow(axes, vector.right, targets[letter])
    softmax.draw(axes)
    product.draw(axes)
    _arrow(axes, (softmax.x, 0.0), (product.x, product.y - product.height / 2))
    last = layer == _LAYERS - 1
    result = _Box(left + 1.86, _Y["V"] if last else 0.0, "$y$" if last else "$x$", 0.26)
    result.draw(axes)
    _arrow(axes, product.right, result.left)
    return result


def _carry_keys(axes: Axes) -> None:
    """Draw the line that hands the keys of the first pass to the others."""
    below, bus = _Y["K"] - 0.18, -1.02
    look = {"color": MARK, "linewidth": 2.0, "solid_capstyle": "butt", "zorder": 1}
    end = 0.74 + (_LAYERS - 1) * _PITCH
    axes.plot([0.74, 0.74, end], [below, bus, bus], **look)
    for layer in range(1, _LAYERS):
        x = 0.74 + layer * _PITCH
        _arrow(axes, (x, bus), (x, below), color=MARK, linewidth=2.0)
