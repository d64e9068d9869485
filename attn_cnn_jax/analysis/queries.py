"""A query pixel: how a user writes it, and what it attends to."""

import re
from collections.abc import Iterable

import numpy as np
from jaxtyping import Float

from attn_cnn_jax.analysis.attention_maps import AttentionMaps
from attn_cnn_jax.errors import UserError


def center(grid: tuple[int, int]) -> tuple[int, int]:
    """The middle pixel (row, column) of a grid: (H // 2, W // 2)."""
    return grid[0] // 2, grid[1] // 2


def parse_query(text: str, grid: tuple[int, int]) -> tuple[int, int]:
    """The pixel that "row,column" names, counted from 0; empty: the middle one.

    Raises a `UserError` for anything else and for a pixel outside the grid.
    """
    if not text.strip():
        return center(grid)
    match = re.fullmatch(r"\s*(\d{1,9})\s*,\s*(\d{1,9})\s*", text, re.ASCII)
    query = (int(match[1]), int(match[2])) if match else (-1, -1)
    if not (0 <= query[0] < grid[0] and 0 <= query[1] < grid[1]):
        raise UserError(
            f"the query {text!r} is no pixel of the grid: write row,column, from 0,0 "
            f"to {grid[0] - 1},{grid[1] - 1}."
        )
    return query


def query_attention(
    probs: Float[np.ndarray, "*B Hq Wq Hk Wk"], query: tuple[int, int]
) -> Float[np.ndarray, "*B Hk Wk"]:
    """What the query pixel attends to: its row of the attention matrix."""
    return probs[..., query[0], query[1], :, :]


def key_attention(
    probs: Float[np.ndarray, "*B Hq Wq Hk Wk"], key: tuple[int, int]
) -> Float[np.ndarray, "*B Hq Wq"]:
    """Who attends to the key pixel: its column, as the report's figures show it."""
    return probs[..., key[0], key[1]]


def mean_query_attention(
    batches: Iterable[AttentionMaps], query: tuple[int, int]
) -> tuple[Float[np.ndarray, "N Hk Wk"], ...]:
    """The mean over images of `query_attention`, for every layer.

    For maps of the kind "grid". A batch is all that is in memory.
    """
    sums: list[np.ndarray] = []
    count = 0
    for maps in batches:
        rows = [query_attention(probs, query) for probs in maps.probs]
        sums = sums or [np.zeros(row.shape[1:]) for row in rows]
        for total, row in zip(sums, rows, strict=True):
            total += row.sum(axis=0, dtype=np.float64) * (len(maps.images) / len(row))
        count += len(maps.images)
    return tuple((total / count).astype(np.float32) for total in sums)
