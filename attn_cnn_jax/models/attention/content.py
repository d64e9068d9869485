"""What attention by content shares: queries against keys, positions added."""

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Float

from attn_cnn_jax.models.attention.layer import ScoresOfRows
from attn_cnn_jax.models.scores import content_scores, folded_content_scores

# (rows of pixels, the first of them on the grid) -> scores by the row and the column of
# the key: [B or 1, rows, Wq or 1, N, Hk], [B or 1, rows or 1, Wq, N, Wk].
PositionScores = Callable[[Array, Any], tuple[Array, Array]]


def folding_pays(x: Float[Array, "B H W D"]) -> bool:
    """Compare W_q W_k^T, D^3 a head, with the keys, D^2 a head and pixel."""
    batch, height, width, depth = x.shape
    return batch * height * width > depth


def scores_of_rows(
    x: Float[Array, "B H W D"],
    keys: Float[Array, "B H W ..."] | None,
    query: tuple[Float[Array, "D N E"], Float[Array, "N E"]],
    key_kernel: Float[Array, "D N E"] | None,
    by_position: PositionScores | None = None,
) -> ScoresOfRows:
    """Return the scores q . k of rows of `x`, and those by position added.

    `query` are kernel and bias. `keys` are None (no content), projected, or the pixels
    themselves, where `folding_pays`: W_k is folded into the queries then.
    """

    def of_rows(first: Any, count: int) -> Array:
        part = jax.lax.dynamic_slice_in_dim(x, first, count, axis=1)
        positions = None if by_position is None else by_position(part, first)
        if keys is not None and key_kernel is not None and folding_pays(x):
            return folded_content_scores(part, keys, *query, key_kernel, positions)
        content: Any = None if keys is None else content_scores(part, keys, *query)
        if positions is None:
            return content
        by_row, by_col = positions
        scores = by_row[..., :, None] + by_col[..., None, :]
        return scores if content is None else scores + content

    return of_rows
