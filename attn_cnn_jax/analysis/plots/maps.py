"""Attention maps: layers as rows, heads (or taps) as columns."""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int, UInt8
from matplotlib.figure import Figure

from attn_cnn_jax.analysis.plots.map_grid import MapGrid, draw
from attn_cnn_jax.analysis.plots.style import styled

Maps = Sequence[Float[np.ndarray, "_ _ _"]]
Image = UInt8[np.ndarray, "_ _ _"]
Order = Sequence[Int[np.ndarray, "_"]]

_UNDER = "under each map: its largest value, in percent"
_ABOVE = "above each map: its head; "


@styled
def attention_at_query(
    maps: Maps,
    *,
    query: tuple[int, int],
    title: str,
    layers: Sequence[str],
    image: Image | None = None,
    image_name: str = "",
    note: str = "",
    order: Order | None = None,
    common_scale: bool = False,
) -> Figure:
    """Draw where each head looks from one query pixel (report, Figs 3, 4, 8a, 20a ...).

    `maps`: for every layer [N, H, W], the probabilities of the key pixels, of one image
    or the mean of several; layers may differ in their number of heads, and in their
    grid. `query`: (row, column) of the first layer's grid, marked in every map and in
    `image` [H, W, C]. `title` names run and checkpoint. `order`: for every layer the
    heads in the order to show them. Every map has its own colour scale; with
    `common_scale` all have the same, so that a head that looks everywhere is pale.
    """
    row, column = query
    return draw(
        MapGrid(
            maps=maps,
            heading=f"Attention at the query pixel (row {row}, column {column})",
            lines=_lines(title, image_name, note, _under(order)),
            layers=layers,
            image=image,
            query=query,
            order=order,
            scale="page" if common_scale else "map",
        )
    )


@styled
def average_attention(
    maps: Maps,
    *,
    variant: str,
    title: str,
    layers: Sequence[str],
    image: Image | None = None,
    image_name: str = "",
    note: str = "",
    order: Order | None = None,
    common_scale: bool = False,
) -> Figure:
    """Draw the Average Attention of every head (report, Eqn 4, Figs 5, 8b, ..., 23b).

    `maps` as in `attention_at_query`, over all queries; `variant` says which average
    they are.
    """
    return draw(
        MapGrid(
            maps=maps,
            heading=f"Average Attention ({variant})",
            lines=_lines(title, image_name, note, _under(order)),
            layers=layers,
            image=image,
            order=order,
            scale="page" if common_scale else "map",
        )
    )


@styled
def tap_weights(
    maps: Maps,
    *,
    title: str,
    layers: Sequence[str],
    image: Image | None = None,
    image_name: str = "",
    note: str = "",
    common_scale: bool = False,
) -> Figure:
    """Draw SAN's weight of every tap at every pixel (report, Figs 18 and 19).

    `maps`: for every layer or pass [T, H, W], the mean over the weight planes, T = k^2
    taps in row-major order. Columns name the offset of their tap. More than 16 taps
    stand as a k x k block. The taps of a layer share a colour scale, which diverges
    from zero where weights are below it.
    """
    return draw(
        MapGrid(
            maps=maps,
            heading="Weight of each tap at each pixel",
            lines=_lines(
                title,
                image_name,
                note,
                "above each map: offset (row, column) of its tap; under each map: "
                + ("its extreme" if _signed(maps) else "its largest value, in percent"),
            ),
            layers=layers,
            image=image,
            scale="page" if common_scale else "layer",
            noun="tap",
            names=[_tap_names(len(layer)) for layer in maps],
            center="zero" if _signed(maps) else None,
            square_from=17,
        )
    )


@styled
def position_scores(
    tables: Maps,
    *,
    title: str,
    layers: Sequence[str],
    order: Order | None = None,
    common_scale: bool = False,
) -> Figure:
    """Draw what each head has learned about positions: scores by offset.

    `tables`: for every layer [N, 2 Lr - 1, 2 Lc - 1]; entry [Lr - 1 + row, Lc - 1 +
    column] belongs to the offset (row, column), key minus query. Offset (0, 0) is
    marked. Scores are coloured around their mean, for softmax does not see a constant.
    """
    sizes = {size for table in tables for size in table.shape[1:]}
    if any(size % 2 == 0 for size in sizes):
        raise ValueError(f"a table of offsets has odd sides, not {sorted(sizes)}")
    return draw(
        MapGrid(
            maps=tables,
            heading="Learned position scores, by offset",
            lines=_lines(
                title,
                "down: row offset, right: column offset (square: the query itself); "
                "under each table: offset (row, column) of its largest value",
            ),
            layers=layers,
            order=order,
            scale="page" if common_scale else "map",
            center="mean",
            offsets=True,
        )
    )


def _under(order: Order | None) -> str:
    return _UNDER if order is None else _ABOVE + _UNDER


def _lines(*lines: str) -> list[str]:
    return [line for line in lines if line]


def _signed(maps: Maps) -> bool:
    return any(bool((layer < 0).any()) for layer in maps)


def _tap_names(taps: int) -> list[str]:
    size = math.isqrt(taps)
    if size * size != taps or size % 2 == 0:
        raise ValueError(f"{taps} taps are no window of odd size")
    steps = range(-(size // 2), size // 2 + 1)
    return [f"({row}, {column})".replace("-", "−") for row in steps for column in steps]
