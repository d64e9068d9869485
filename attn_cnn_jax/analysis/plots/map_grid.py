"""A page of maps: a heading with the image, then a grid with a row a layer."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke

from attn_cnn_jax.analysis.pictures import on_grid
from attn_cnn_jax.analysis.plots.color_scale import Center, ColorScale, Sharing
from attn_cnn_jax.analysis.plots.page import (
    LINE,
    MARGIN,
    Heading,
    Page,
    bare,
    two_digits,
    wrapped,
)
from attn_cnn_jax.analysis.plots.style import MARK, current

_LEFT, _GAP = 0.32, 0.04
_SMALLEST, _LARGEST = 0.36, 1.3  # inches, sides of a map
_NARROW = 0.45  # under a map so small there is room for the head's number alone
_BETWEEN = 0.05  # layers
_BAR, _BAR_HEIGHT = 1.25, 0.4  # the colour scale
_IMAGE = 0.95  # height of the input image
_MOST_COLUMNS = 16


@dataclasses.dataclass(frozen=True)
class MapGrid:
    """The contents of such a page; `maps` are [N, H, W] for every layer."""

    maps: Sequence[np.ndarray]
    heading: str
    lines: Sequence[str]  # under the heading
    layers: Sequence[str]
    image: np.ndarray | None = None
    query: tuple[int, int] | None = None
    order: Sequence[np.ndarray] | None = None
    scale: Sharing = "map"  # what has a colour scale of its own
    noun: str = "head"
    names: Sequence[Sequence[str]] | None = None  # of the columns, for every layer
    center: Center = None  # from which a diverging scale goes both ways
    offsets: bool = False  # the axes are offsets, (0, 0) in the middle
    square_from: int | None = None  # so many or more stand as a square block

    def __post_init__(self):
        if len(self.maps) != len(self.layers) or not self.maps:
            raise ValueError(
                f"{len(self.maps)} layers of maps, {len(self.layers)} names of layers"
            )
        for index, maps in enumerate(self.maps):
            heads = np.arange(len(maps))
            if self.order is not None and (
                sorted(self.order[index].tolist()) != heads.tolist()
            ):
                raise ValueError(f"order[{index}] is no permutation of {len(maps)}")

    @property
    def colors(self) -> ColorScale:
        """The colour scales of the maps."""
        return ColorScale(self.maps, self.center, self.scale)

    @property
    def columns(self) -> int:
        """Return the number of cells in a line."""
        most = max(1, *map(len, self.maps))
        if self.is_square:
            return math.isqrt(most)
        room = current().width - _LEFT - MARGIN
        limit = min(_MOST_COLUMNS, max(1, int(room / (_SMALLEST + _GAP))))
        return math.ceil(most / math.ceil(most / limit))

    @property
    def is_square(self) -> bool:
        """True where the maps of a layer stand as a block instead of a line."""
        return self.square_from is not None and any(
            len(maps) >= self.square_from for maps in self.maps
        )

    def place(self, layer: int, index: int) -> tuple[int, int]:
        """Return line (within its layer) and column of a layer's map number `index`."""
        if self.is_square:
            return divmod(index, math.isqrt(len(self.maps[layer])))
        return divmod(index, self.columns)

    def lines_of(self, layer: int) -> int:
        """Return how many lines a layer takes."""
        if self.is_square:
            return math.isqrt(len(self.maps[layer]))
        return max(1, math.ceil(max(map(len, self.maps)) / self.columns))

    @property
    def named_above(self) -> bool:
        """True where every cell needs its own name, for columns mix heads."""
        mixed = self.names is not None and len({len(maps) for maps in self.maps}) > 1
        many = any(self.lines_of(layer) > 1 for layer in range(len(self.maps)))
        return self.order is not None or mixed or many

    def name(self, layer: int, head: int) -> str:
        """Return the name of a head, counted from 1, or of a tap."""
        return self.names[layer][head] if self.names else f"{self.noun} {head + 1}"

    def short_name(self, layer: int, head: int, side: float) -> str:
        """Return the name that fits over a map of this width."""
        name = self.name(layer, head)
        return name if side >= _NARROW or self.names else name.split()[-1]


def draw(grid: MapGrid) -> Figure:
    """Draw the page."""
    ratio = max((m.shape[1] / m.shape[2] for m in grid.maps if len(m)), default=1.0)
    width = current().width
    room = (width - _LEFT - MARGIN) / grid.columns - _GAP
    side = min(max(room, _SMALLEST), _LARGEST / max(1.0, ratio))
    width = max(width, _LEFT + MARGIN + grid.columns * (side + _GAP))
    height = side * ratio
    step = height + LINE + (LINE if grid.named_above else 0) + 0.03
    count = sum(grid.lines_of(layer) for layer in range(len(grid.maps)))
    above = 0.05 if grid.named_above else LINE + 0.1
    below = above + count * step + _BETWEEN * (len(grid.maps) - 1) + 0.05
    page = Page(_heading(grid), below, width)
    _beside_heading(page, grid)
    top = page.top + above
    for layer, name in enumerate(grid.layers):
        block = grid.lines_of(layer) * step
        label = "\n".join(wrapped(name, max(block - LINE, 0.45)))
        middle = top + (block - LINE) / 2
        page.text(
            _LEFT - 0.06, middle, label, rotation=90, ha="right", va="center"
        ).set_linespacing(1.0)
        _layer(page, grid, layer, (top, side, height, step))
        top += block + _BETWEEN
    return page.figure


def _heading(grid: MapGrid) -> Heading:
    image = grid.image
    return Heading(
        grid.heading,
        grid.lines,
        left=0.0 if image is None else _image_width(image) + 0.15,
        right=_BAR + 0.35,
        beside=_BAR_HEIGHT if image is None else _IMAGE,
    )


def _image_width(image: np.ndarray) -> float:
    return _IMAGE * image.shape[1] / image.shape[0]


def _beside_heading(page: Page, grid: MapGrid) -> None:
    """Draw the image and the colour scale."""
    if grid.image is not None:
        place = MARGIN, page.beside, _image_width(grid.image), _IMAGE
        _input_image(page.axes(*place), grid)
    left, colors = page.width - _BAR - 0.2, grid.colors
    look = colors.cmap, colors.ticks, colors.title
    page.colorbar(left, page.beside, _BAR, *look)


def _input_image(axes: Axes, grid: MapGrid) -> None:
    image = grid.image
    assert image is not None
    gray = image.shape[-1] == 1
    axes.imshow(image[..., 0] if gray else image, cmap="gray" if gray else None)
    axes.set_label("input image")
    bare(axes)
    if grid.query is not None:
        height, width = grid.maps[0].shape[1:]
        rows, columns = image.shape[0] / height, image.shape[1] / width
        axes.add_patch(_mark(grid.query, (rows, columns), halo=True))


def _mark(
    query: tuple[int, int],
    size: tuple[float, float],
    color: str = MARK,
    halo: bool = False,
) -> Rectangle:
    """Return the frame of a query pixel that covers `size` pixels (rows, columns)."""
    corner = query[1] * size[1] - 0.5, query[0] * size[0] - 0.5
    stroke = [withStroke(linewidth=2.2, foreground="white")] if halo else None
    return Rectangle(
        corner,
        size[1],
        size[0],
        fill=False,
        edgecolor=color,
        linewidth=1.0,
        path_effects=stroke,
        clip_on=False,
    )


def _layer(
    page: Page,
    grid: MapGrid,
    layer: int,
    place: tuple[float, float, float, float],
) -> None:
    top, side, height, step = place
    maps, limits = grid.maps[layer], grid.colors.limits(layer)
    order = np.arange(len(maps)) if grid.order is None else grid.order[layer]
    above = LINE if grid.named_above else 0.0
    cells = len(maps) if grid.is_square else max(1, *map(len, grid.maps))
    for index in range(cells):
        line, column = grid.place(layer, index)
        left = _LEFT + column * (side + _GAP)
        axes = page.axes(left, top + line * step + above, side, height)
        bare(axes)
        exists = index < len(maps)
        if layer == 0 and not grid.named_above:
            label = grid.short_name(0, index, side)
            page.text(left + side / 2, top - 0.03, label, ha="center", va="bottom")
            if index == 0 and side < _NARROW and not grid.names:
                page.text(_LEFT - 0.05, top - 0.03, grid.noun, ha="right", va="bottom")
        if not exists:
            _empty(axes, grid.noun)
            continue
        head = int(order[index])
        axes.set_label(f"{grid.layers[layer]}, {grid.name(layer, head)}")
        if grid.named_above:
            axes.set_title(grid.short_name(layer, head, side), pad=2)
        low, high = limits[head]
        _map(axes, grid, maps[head], low, high)


def _empty(axes: Axes, noun: str) -> None:
    axes.text(
        0.5, 0.5, f"no\n{noun}", ha="center", va="center", color="0.45", linespacing=1.0
    ).set_transform(axes.transAxes)
    for spine in axes.spines.values():
        spine.set(linestyle=(0, (3, 3)), color="0.7")


def _map(axes: Axes, grid: MapGrid, one: np.ndarray, low: float, high: float) -> None:
    rows, columns = one.shape
    axes.imshow(one, cmap=grid.colors.cmap, vmin=low, vmax=high, aspect="auto")
    query = (rows // 2, columns // 2) if grid.offsets else grid.query
    if query is not None and not grid.offsets:
        query = on_grid(query, grid.maps[0].shape[1:], one.shape)
    if query is not None:
        axes.add_patch(_mark(query, (1.0, 1.0), "black" if grid.center else MARK))
    axes.set_xlabel(_under(one, grid), labelpad=1.5)


def _under(one: np.ndarray, grid: MapGrid) -> str:
    """Return what stands under a map."""
    if not np.isfinite(one).all():
        return "not finite"
    if grid.offsets:
        row, column = np.unravel_index(one.argmax(), one.shape)
        row, column = int(row) - one.shape[0] // 2, int(column) - one.shape[1] // 2
        return f"{row},{column}".replace("-", "−")
    if grid.center:
        extreme = float(one.flat[np.abs(one).argmax()])
        return two_digits(extreme)
    return two_digits(100 * float(one.max()))
