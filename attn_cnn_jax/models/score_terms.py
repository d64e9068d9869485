"""Scores of encoded positions, term by term, and the sinusoidal encoding.

With absolute encodings a query and a key are a pixel plus the encoding of its place;
with relative ones (Dai et al., 2019, arXiv:1901.02860) the key of a position is the
encoding of the offset, and vectors u and v of the head stand for the query's place.
Either way the scores have four terms (paper, Eqs. 7 and 8). The layers compute their
sum in fewer products; here each term is written as it is read. Axes as in `scores`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn_cnn_jax.models.scores import relative_offsets

_WAVELENGTH = 10_000.0  # over 2 pi, of the slowest wave (Vaswani et al., 2017)


class ScoreTerms(NamedTuple):
    """Four terms of scores, each [B or 1, N, Hq, Wq, Hk, Wk]: query first, then key.

    Each is divided by sqrt(E), E the size of a query, as their sum is in the layers.
    The last is the only one that does not depend on the image: it is all that a
    convolution needs.
    """

    content_content: Float[Array, "B N Hq Wq Hk Wk"]
    content_position: Float[Array, "B N Hq Wq Hk Wk"]
    position_content: Float[Array, "B N Hq Wq Hk Wk"]
    position_position: Float[Array, "1 N Hq Wq Hk Wk"]


def axis_offsets(grid: tuple[int, ...]) -> list[Int[Array, "offset"]]:
    """Return the offsets 1 - n, ..., n - 1 that each axis of a grid has."""
    return [jnp.arange(1 - n, n) for n in grid]


def sinusoids(positions: Any, width: int, dtype: Any) -> Float[Array, "n width"]:
    """Encode positions [n] along one axis by sines, then cosines, of falling frequency.

    The frequencies are 10000^(-2i / width), i = 0, 1, ... (Vaswani et al., 2017,
    section 3.5). Raises a `ValueError` for an odd width.
    """
    if width % 2:
        raise ValueError(f"{width} sines and cosines are not pairs")
    half = width // 2
    frequencies = _WAVELENGTH ** (-jnp.arange(half, dtype=dtype) / max(half, 1))
    angles = jnp.asarray(positions, dtype)[:, None] * frequencies[None]
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=1)


def sinusoidal_encoding(
    axes: Sequence[Any], width: int, dtype: Any
) -> Float[Array, "m n width"]:
    """Encode places (row, column), or offsets: half of the width for each axis.

    `axes` are the m rows and the n columns. Raises a `ValueError` where four does not
    divide the width.
    """
    by_row, by_col = axis_sinusoids(axes, width, dtype)
    shape = (len(by_row), len(by_col), width // 2)
    by_row = jnp.broadcast_to(by_row[:, None], shape)
    return jnp.concatenate([by_row, jnp.broadcast_to(by_col[None], shape)], axis=-1)


def axis_sinusoids(
    axes: Sequence[Any], width: int, dtype: Any
) -> tuple[Float[Array, "m half"], Float[Array, "n half"]]:
    """Return the two halves of `sinusoidal_encoding`: that of rows, that of columns."""
    if width % 4:
        raise ValueError(
            f"a sinusoidal encoding has a width of a multiple of 4, not {width}"
        )
    rows, cols = (sinusoids(positions, width // 2, dtype) for positions in axes)
    return rows, cols


def absolute_terms(
    x: Float[Array, "B H W D"],
    encoding: Float[Array, "H W D"],
    query_kernel: Float[Array, "D N E"],
    key_kernel: Float[Array, "D N E"],
) -> ScoreTerms:
    """Return the terms of (x_q + p_q) W_q W_k^T (x_k + p_k)^T (paper, Eq. 7)."""

    def score(at_query: Array, at_key: Array) -> Array:
        at_query, at_key = jnp.broadcast_arrays(at_query, at_key)
        queries = jnp.einsum("bijd,dne->bijne", at_query, query_kernel)
        keys = jnp.einsum("bkld,dne->bklne", at_key, key_kernel)
        return scale * jnp.einsum("bijne,bklne->bnijkl", queries, keys)

    p, scale = encoding[None], query_kernel.shape[-1] ** -0.5
    return ScoreTerms(score(x, x), score(x, p), score(p, x), score(p, p))


def relative_terms(
    x: Float[Array, "B H W D"],
    query_kernel: Float[Array, "D N E"],
    key_kernel: Float[Array, "D N E"],
    position_kernel: Float[Array, "D N E"],
    content_bias: Float[Array, "N E"],
    position_bias: Float[Array, "N E"],
) -> ScoreTerms:
    """Return the terms of Transformer-XL, r the sinusoidal encoding of the offset.

    x_q W_q W_k^T x_k^T + x_q W_q R^T r^T + u W_k^T x_k^T + v R^T r^T, with R the
    `position_kernel`, u the `content_bias` and v the `position_bias` (paper, Eq. 8;
    Dai et al., 2019, section 3.3).
    """
    height, width, depth = x.shape[1:]
    encoding = sinusoidal_encoding(axis_offsets((height, width)), depth, x.dtype)
    queries = jnp.einsum("bijd,dne->bijne", x, query_kernel)
    keys = jnp.einsum("bkld,dne->bklne", x, key_kernel)
    positions = jnp.einsum("pqd,dne->pqne", encoding, position_kernel)
    # Where the offset of query (i, j) and key (k, l) stands among `positions`.
    down = relative_offsets(height)[:, None, :, None] + height - 1
    right = relative_offsets(width)[None, :, None, :] + width - 1
    i = jnp.arange(height)[:, None, None, None]
    j = jnp.arange(width)[None, :, None, None]
    by_offset = jnp.einsum("bijne,pqne->bnijpq", queries, positions)
    of_head = jnp.einsum("ne,pqne->npq", position_bias, positions)
    shape = (x.shape[0], len(content_bias), height, width, height, width)
    of_key = jnp.einsum("ne,bklne->bnkl", content_bias, keys)[:, :, None, None]
    scale = query_kernel.shape[-1] ** -0.5
    return ScoreTerms(
        scale * jnp.einsum("bijne,bklne->bnijkl", queries, keys),
        scale * by_offset[:, :, i, j, down, right],
        scale * jnp.broadcast_to(of_key, shape),
        scale * of_head[None, :, down, right],
    )
