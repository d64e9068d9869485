"""Attention as pictures [H, W]: at a pixel, averaged, of each tap; and their order.

a_ij is what query pixel i gives key pixel j, of n pixels. The report's Average
Attention (Eqn 4) has an index that its text and its code contradict, so that it is read
in three ways:

    query     Avg_i = 1/n sum_j a_ij / sum_k a_kj   the code of the report's figures
    received  Avg_j = 1/n sum_i a_ij                its later code
    literal   Avg_i = 1 / (n sum_k a_ki)            as printed: the inverse of received

(Its text, mean of a row whose sum is 1, is the constant 1/n.)
"""

import re
from collections.abc import Iterable

import numpy as np
from jaxtyping import Float, Int

from attn_cnn_jax.analysis.attention_maps import AttentionMaps
from attn_cnn_jax.errors import UserError

VARIANTS = ("query", "received", "literal")


def parse_query(text: str, grid: tuple[int, int]) -> tuple[int, int]:
    """Return the pixel that "row,column" names, counted from 0.

    Empty text names the middle pixel, (H // 2, W // 2). Raises a `UserError` for
    anything else and for a pixel outside the grid.
    """
    if not text.strip():
        return grid[0] // 2, grid[1] // 2
    match = re.fullmatch(r"\s*(\d{1,9})\s*,\s*(\d{1,9})\s*", text, re.ASCII)
    query = (int(match[1]), int(match[2])) if match else (-1, -1)
    if not (0 <= query[0] < grid[0] and 0 <= query[1] < grid[1]):
        raise UserError(
            f"the query {text!r} is no pixel of the grid: write row,column, from 0,0 "
            f"to {grid[0] - 1},{grid[1] - 1}."
        )
    return query


def on_grid(
    query: tuple[int, int], grid: tuple[int, ...], other: tuple[int, ...]
) -> tuple[int, int]:
    """Return the pixel of another grid under the middle of a pixel of the grid."""
    row, column = (
        (2 * pixel + 1) * to // (2 * of)
        for pixel, of, to in zip(query, grid, other, strict=True)
    )
    return row, column


def query_attention(
    probs: Float[np.ndarray, "*B Hq Wq Hk Wk"], query: tuple[int, int]
) -> Float[np.ndarray, "*B Hk Wk"]:
    """Return what the query pixel attends to: its row of the attention matrix."""
    return probs[..., query[0], query[1], :, :]


def key_attention(
    probs: Float[np.ndarray, "*B Hq Wq Hk Wk"], key: tuple[int, int]
) -> Float[np.ndarray, "*B Hq Wq"]:
    """Return who attends to the key pixel: its column, as the report's figures do."""
    return probs[..., key[0], key[1]]


def mean_query_attention(
    batches: Iterable[AttentionMaps], query: tuple[int, int]
) -> tuple[Float[np.ndarray, "N Hk Wk"], ...]:
    """Return the mean over images of `query_attention`, for every layer.

    The query is a pixel of the first layer's grid. The maps have to be of the kind
    "grid". One batch at a time is in memory.
    """
    sums: list[np.ndarray] = []
    count = 0
    for maps in batches:
        grid = maps.probs[0].shape[2:4]
        rows = [
            query_attention(probs, on_grid(query, grid, probs.shape[2:4]))
            for probs in maps.probs
        ]
        sums = sums or [np.zeros(row.shape[1:]) for row in rows]
        for total, row in zip(sums, rows, strict=True):
            total += row.sum(axis=0, dtype=np.float64) * (len(maps.images) / len(row))
        count += len(maps.images)
    return tuple((total / count).astype(np.float32) for total in sums)


def average_attention(
    probs: Float[np.ndarray, "*B H W H W"], variant: str = "query"
) -> Float[np.ndarray, "*B H W"]:
    """Return the report's Average Attention (Eqn 4) as a picture of the grid, float32.

    `query` is a picture of queries: each key's column is normalised over the queries
    first, and a column that nobody attends to counts as 0. `received` is one of keys.
    `literal` is infinite at a pixel that nobody attends to.
    """
    if variant not in VARIANTS:
        raise UserError(
            f"there is no average {variant!r}; choose from {', '.join(VARIANTS)}."
        )
    num_pixels = probs.shape[-1] * probs.shape[-2]
    received = probs.sum(axis=(-4, -3), dtype=np.float64)
    if variant == "received":
        average = received / num_pixels
    elif variant == "literal":
        with np.errstate(divide="ignore"):
            average = 1 / (num_pixels * received)
    else:
        inverse = np.divide(
            1, received, where=received > 0, out=np.zeros_like(received)
        )
        average = np.einsum("...ijkl,...kl->...ij", probs, inverse) / num_pixels
    return average.astype(np.float32)


def tap_maps(
    weights: Float[np.ndarray, "B H W T G"],
) -> Float[np.ndarray, "B T H W"]:
    """Return each tap's weight at every pixel, the mean over SAN's planes (Fig. 18)."""
    return weights.mean(axis=-1).transpose(0, 3, 1, 2)


def reading_order(offsets: Float[np.ndarray, "N 2"]) -> Int[np.ndarray, "N"]:
    """Return the heads in the order in which one reads: by row, then by column.

    `offsets` are the expected offsets (row, column) of the heads, key minus query.
    Rows count in whole pixels (the nearest), so that heads that look along one row
    stand together however they differ below half a pixel; columns count as they are.
    Equal heads keep their order; heads without a finite offset come last. Nine heads
    that do a 3 x 3 convolution so stand in the order of its kernel, in every layer.
    `order[i]` is the head that is shown at place i.
    """
    rows = np.rint(offsets[:, 0])
    columns = offsets[:, 1]
    unknown = ~np.isfinite(offsets).all(axis=1)
    return np.lexsort((columns, rows, unknown))
