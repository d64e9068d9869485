"""A picture of which layers behave like a convolution, and of which size."""

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke

from attn_cnn_jax.analysis.heads import HeadStatistics, HeadTable, LayerSummary
from attn_cnn_jax.analysis.plots.page import LINE, MARGIN, Heading, Page, bare
from attn_cnn_jax.analysis.plots.style import MARK, SEQUENTIAL, current, ink, styled

_LEFT, _STRIP = 0.62, 0.15
_NARROWEST = 1.9  # inches, of a panel


@styled
def convolution_layers(table: HeadTable, *, title: str, noun: str = "head") -> Figure:
    """Draw for every layer the offsets that its heads look at, and their numbers.

    A cell of a panel is an offset: its shade the largest mass that a head puts on it,
    its number the head, or "×n" for n heads; framed where a head covers it. The
    orange square is the K x K kernel that the layer covers. `noun` is what a head is
    called.
    """
    layers = table.layers
    by_layer = [[h for h in table.heads if h.layer == one.layer] for one in layers]
    most = max(map(len, by_layer))
    room = current().width - MARGIN
    fitting = max(1, int(room / _NARROWEST))
    across = min(len(layers), 3 if most <= 9 else 2, fitting)
    panel = room / max(across, min(2, fitting))
    width = panel - _LEFT - 0.12
    side = min(width, 1.6)
    step = 2 * LINE + side + 0.08 + 4 * _STRIP + 0.35
    heading = Heading(
        "Which layers are a convolution?",
        [title],
        _explanation(noun),
        right=1.45,
        beside=0.4,
    )
    page = Page(heading, 0.1 + math.ceil(len(layers) / across) * step)
    header = page.top + 0.1
    scale = SEQUENTIAL, ("0", "0.5", "1"), "mass"
    page.colorbar(page.width - 1.4, page.beside, 1.2, *scale)
    for index, (layer, heads) in enumerate(zip(layers, by_layer, strict=True)):
        line, column = divmod(index, across)
        left, top = column * panel + _LEFT, header + line * step
        for place, text in enumerate(_texts(layer, heads, noun)):
            weight = "normal" if place else "bold"
            page.text(left, top + place * LINE, text, fontweight=weight)
        axes = page.axes(left, top + 2 * LINE + 0.03, side, side)
        axes.set_label(layer.layer)
        _offsets(axes, layer, heads)
        _strips(page, layer, heads, left, top + 2 * LINE + side + 0.2, width)
    return page.figure


def _explanation(noun: str) -> list[str]:
    return [
        "A cell of a panel is an offset, key minus query: rows go down, columns go "
        f"right. Its shade is the largest mass that a {noun} puts on it, and its "
        f"number that {noun}, or ×n for n {noun}s whose best offset it is. A frame of "
        "black on white marks an offset that is covered, the thick black square the "
        "query itself, and an orange one the K x K kernel that the layer covers.",
        f"A strip has a cell for each {noun}: the mass on its best offset, its content-"
        "dependence (darkest: 1), its entropy in nats and its mean distance in pixels "
        f"(both darkest where a {noun} looks at all keys alike).",
    ]


def _texts(
    layer: LayerSummary, heads: list[HeadStatistics], noun: str
) -> tuple[str, str]:
    """Return what the layer is, and how many heads cover how many offsets."""
    size, distinct = layer.kernel_size, len(layer.covered)
    kind = f"{size} × {size} convolution" if size else "no convolution"
    offsets = "offset" if distinct == 1 else "offsets"
    covering = sum(head.covers for head in heads)
    return (
        f"{layer.layer}: {kind}",
        f"{covering} of {len(heads)} {noun}s cover {distinct} {offsets}",
    )


def _offsets(axes: Axes, layer: LayerSummary, heads: list[HeadStatistics]) -> None:
    reach = layer.radius
    masses = np.zeros((2 * reach + 1, 2 * reach + 1))
    at: dict[tuple[int, int], list[HeadStatistics]] = {}
    for head in heads:
        at.setdefault(head.best_offset, []).append(head)
    for (row, column), there in at.items():
        masses[row + reach, column + reach] = max(head.best_mass for head in there)
    edge = reach + 0.5
    extent = (-edge, edge, edge, -edge)
    axes.imshow(masses, cmap=SEQUENTIAL, vmin=0, vmax=1, extent=extent)
    between = np.arange(-reach + 0.5, reach)
    axes.hlines(between, -edge, edge, colors="0.85", linewidths=0.3)
    axes.vlines(between, -edge, edge, colors="0.85", linewidths=0.3)
    for (row, column), there in at.items():
        shade = float(masses[row + reach, column + reach])
        text = str(there[0].head) if len(there) == 1 else f"×{len(there)}"
        axes.text(
            column, row, text, ha="center", va="center", color=ink(SEQUENTIAL, shade)
        )
        if (row, column) in layer.covered:
            halo = [withStroke(linewidth=2.6, foreground="white")]
            frame = _square(row, column, 0.9, edgecolor="black", linewidth=0.8)
            frame.set(label="covered", path_effects=halo)
            axes.add_patch(frame)
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
    page: Page,
    layer: LayerSummary,
    heads: list[HeadStatistics],
    left: float,
    top: float,
    width: float,
) -> None:
    count = len(heads)
    if not count:
        return
    most, farthest = math.log(layer.num_keys), layer.uniform_distance
    strips = {  # 1.0: of a window of one tap both are 0
        "mass": ([head.best_mass for head in heads], 1.0),
        "content": ([head.content_dependence for head in heads], 1.0),
        "entropy": ([head.entropy for head in heads], most or 1.0),
        "distance": ([head.mean_distance for head in heads], farthest or 1.0),
    }
    for index, (name, (values, highest)) in enumerate(strips.items()):
        axes = page.axes(left, top + index * _STRIP, width, _STRIP - 0.02)
        axes.imshow([values], cmap=SEQUENTIAL, vmin=0, vmax=highest, aspect="auto")
        bare(axes)
        axes.set_label(f"{layer.layer}, {name}")
        axes.set_ylabel(name, rotation=0, ha="right", va="center", labelpad=2)
        if width / count >= 0.165:
            for head, value in enumerate(values):
                axes.text(
                    head,
                    0,
                    _short(value),
                    ha="center",
                    va="center_baseline",
                    color=ink(SEQUENTIAL, value / highest),
                )


def _short(value: float) -> str:
    """Return a number with two digits: .93, 1.0, 4.2, 12."""
    if value < 0.995:
        return f"{value:.2f}"[1:]
    return f"{value:.1f}" if value < 9.95 else f"{value:.0f}"
