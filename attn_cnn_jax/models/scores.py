"""Formulas of attention as pure functions: scores between pixels, then mixing.

Axes: `B` batch, `H W` grid, `Hq Wq Hk Wk` query and key grid, `N` heads, `D` width,
`P` offsets of a table. A pixel is (row, column) and an offset is key minus query,
everywhere in this package.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def relative_offsets(length: int) -> Int[Array, "query key"]:
    """Return the offsets key - query along one axis of the grid, in pixels."""
    position = jnp.arange(length)
    return position[None, :] - position[:, None]


def quadratic_scores(
    centers: Float[Array, "N 2"],
    precision: Float[Array, "N 2 2"],
    grid: tuple[int, int],
) -> Float[Array, "N Hq Wq Hk Wk"]:
    """Score every offset d by -1/2 (d - center)^T precision (d - center), Eq. 8.

    Differs from the paper's u^T r_d by a constant of the head, which the softmax drops.
    """
    height, width = grid
    rows = relative_offsets(height)[None] - centers[:, 0, None, None]  # [N, Hq, Hk]
    cols = relative_offsets(width)[None] - centers[:, 1, None, None]  # [N, Wq, Wk]

    def of_head(rows, cols, precision):
        rows, cols = rows[:, None, :, None], cols[None, :, None, :]
        return -0.5 * (
            precision[0, 0] * rows**2
            + (precision[0, 1] + precision[1, 0]) * rows * cols
            + precision[1, 1] * cols**2
        )

    return jax.vmap(of_head)(rows, cols, precision)


def isotropic_axis_scores(
    centers: Float[Array, "N 2"], spreads: Float[Array, "N"], grid: tuple[int, int]
) -> tuple[Float[Array, "N Hq Hk"], Float[Array, "N Wq Wk"]]:
    """Return the row and the column term whose sum are the scores with spread^2 I."""

    def axis_scores(length: int, center: Array) -> Array:
        distance = relative_offsets(length)[None] - center[:, None, None]
        return -0.5 * jnp.square(spreads[:, None, None] * distance)

    return axis_scores(grid[0], centers[:, 0]), axis_scores(grid[1], centers[:, 1])


def table_axis_scores(
    embeddings: Float[Array, "P E"], head_keys: Float[Array, "E N"], length: int
) -> Float[Array, "N query key"]:
    """Score by head_key . embedding[key - query] along one axis (paper, Eq. 9)."""
    by_offset = (embeddings @ head_keys).T  # [N, P]
    return by_offset[:, _table_index(embeddings, length)]


def _table_index(embeddings: Array, length: int) -> Int[Array, "query key"]:
    """Return rows of a table of 2 * max_position - 1 offsets, 0 in the middle."""
    return relative_offsets(length) + embeddings.shape[0] // 2


def sum_axes(
    rows: Float[Array, "*N Hq Hk"], cols: Float[Array, "*N Wq Wk"]
) -> Float[Array, "*N Hq Wq Hk Wk"]:
    """Add a row and a column term to scores (or log-probabilities) on the grid."""
    return rows[..., :, None, :, None] + cols[..., None, :, None, :]


def softmax_over_keys(scores: Float[Array, "*n Hk Wk"]) -> Float[Array, "*n Hk Wk"]:
    """Take the softmax over all pixels of the key grid."""
    return jax.nn.softmax(scores, axis=(-2, -1))


def separable_probs(
    rows: Float[Array, "N Hq Hk"], cols: Float[Array, "N Wq Wk"]
) -> Float[Array, "N Hq Wq Hk Wk"]:
    """Return `softmax_over_keys(sum_axes(rows, cols))` by a product of softmaxes."""
    rows, cols = jax.nn.softmax(rows), jax.nn.softmax(cols)
    return rows[..., :, None, :, None] * cols[..., None, :, None, :]


def mix(
    x: Float[Array, "B H W D"],
    probs: Float[Array, "B1 N Hq Wq H W"],
    kernel: Float[Array, "N D E"],
) -> Float[Array, "B Hq Wq E"]:
    """Return sum_h (probs_h x) kernel_h, every head's mean of the pixels, projected."""
    probs, kernel = probs.astype(x.dtype), kernel.astype(x.dtype)
    if probs.shape[0] == x.shape[0]:
        heads = jnp.einsum("bnijkl,bkld->bijnd", probs, x)
        return jnp.einsum("bijnd,nde->bije", heads, kernel)
    grid = probs.shape[2:4]

    def one_head(pixels: Array, head_probs: Array) -> Array:
        return jnp.einsum("ijkl,klx->ijx", head_probs, pixels)

    return _sum_over_heads(x, grid, one_head, list(probs[0]), kernel)


def mix_separable(
    x: Float[Array, "B H W D"],
    rows: Float[Array, "N Hq H"],
    cols: Float[Array, "N Wq W"],
    kernel: Float[Array, "N D E"],
) -> Float[Array, "B Hq Wq E"]:
    """Compute `mix` with probs = rows x cols, one axis after the other.

    Takes time in proportion to H W (H + W) where `mix` takes (H W)^2.
    """
    rows, cols, kernel = (a.astype(x.dtype) for a in (rows, cols, kernel))
    grid = rows.shape[1], cols.shape[1]

    def one_head(pixels: Array, axes: tuple[Array, Array]) -> Array:
        lines = jnp.einsum("ik,klx->ilx", axes[0], pixels)
        return jnp.einsum("jl,ilx->ijx", axes[1], lines)

    heads = list(zip(rows, cols, strict=True))
    return _sum_over_heads(x, grid, one_head, heads, kernel)


def _sum_over_heads(x, grid, one_head, heads, kernel) -> Array:
    """Return sum_h one_head(x, heads[h]) kernel[h].

    The pixels lead and the batch lies beside the channels, so that the probabilities,
    which all images share, meet them in one matrix product a head. On a CPU this loop
    is 1.2 to 2.7 times as fast as a product over all heads at once.
    """
    batch, height, width, depth = x.shape
    pixels = x.transpose(1, 2, 0, 3).reshape(height, width, batch * depth)
    dtype = at_least_float32(x)
    y = jnp.zeros((), dtype)
    for head, head_kernel in zip(heads, kernel, strict=True):
        mixed = one_head(pixels, head).reshape(*grid, batch, depth)
        y = y + jnp.matmul(mixed, head_kernel, preferred_element_type=dtype)
    return y.transpose(2, 0, 1, 3).astype(x.dtype)


def projected_keys(
    x: Float[Array, "B H W D"], key_kernel: Float[Array, "D N E"]
) -> Float[Array, "B H W N E"]:
    """Return k = x W_k of every head, without the bias, which no softmax sees."""
    return jnp.einsum("bijd,dne->bijne", x, key_kernel.astype(x.dtype))


def content_scores(
    x: Float[Array, "B H W D"],
    keys: Float[Array, "B H W N E"],
    query_kernel: Float[Array, "D N E"],
    query_bias: Float[Array, "N E"],
) -> Float[Array, "B N H W H W"]:
    """Score by q . k with q = x W_q + b_q, up to terms that are equal for all keys.

    q . k = (x W_q + b_q) . (x W_k + b_k): the terms with b_k do not depend on the key
    pixel, so the softmax drops them.
    """
    queries = jnp.einsum("bijd,dne->bijne", x, query_kernel.astype(x.dtype))
    queries = queries + query_bias.astype(x.dtype)[None, None, None]
    return jnp.einsum(
        "bijne,bklne->bnijkl",
        queries,
        keys,
        preferred_element_type=at_least_float32(x),
    )


def folded_content_scores(
    x: Float[Array, "B H W D"],
    pixels: Float[Array, "B H W D"],
    query_kernel: Float[Array, "D N E"],
    query_bias: Float[Array, "N E"],
    key_kernel: Float[Array, "D N E"],
) -> Float[Array, "B N H W H W"]:
    """Compute `content_scores` with the keys of `pixels`, W_q W_k^T folded per head.

    (x W_q + b_q) . (p W_k) = (x G + c) . p with G = W_q W_k^T and c = W_k b_q: one
    projection of the pixels instead of two.
    """
    folded = jnp.einsum("dne,cne->dnc", query_kernel, key_kernel)
    constant = jnp.einsum("ne,cne->nc", query_bias, key_kernel)
    queries = jnp.einsum("bijd,dnc->bijnc", x, folded.astype(x.dtype))
    queries = queries + constant.astype(x.dtype)[None, None, None]
    return jnp.einsum(
        "bijnc,bklc->bnijkl",
        queries,
        pixels,
        preferred_element_type=at_least_float32(x),
    )


def query_position_scores(
    x: Float[Array, "B H W D"],
    query_kernel: Float[Array, "D N E"],
    query_bias: Float[Array, "N E"],
    row_embeddings: Float[Array, "P half"],
    col_embeddings: Float[Array, "P half"],
) -> tuple[Float[Array, "B N H W H"], Float[Array, "B N H W W"]]:
    """Return q[:D/2] . row[k - i] and q[D/2:] . col[l - j], W_q folded into the tables.

    The query meets few offsets and many pixels: folding spares the queries.
    """
    half = row_embeddings.shape[1]

    def axis_scores(axes: str, embeddings: Array, part: slice, length: int) -> Array:
        index = _table_index(embeddings, length)  # [query, key]
        folded = jnp.einsum("dne,pe->pnd", query_kernel[..., part], embeddings)[index]
        constant = jnp.einsum("ne,pe->np", query_bias[..., part], embeddings)[:, index]
        scores = jnp.einsum(
            axes, x, folded.astype(x.dtype), preferred_element_type=at_least_float32(x)
        )
        along_rows = axes.startswith("bijd,ik")
        constant = constant[:, :, None] if along_rows else constant[:, None]
        return scores + constant[None]

    height, width = x.shape[1:3]
    rows = axis_scores("bijd,iknd->bnijk", row_embeddings, slice(None, half), height)
    cols = axis_scores("bijd,jlnd->bnijl", col_embeddings, slice(half, None), width)
    return rows, cols


def at_least_float32(x: Array) -> Any:
    """Return the dtype of scores and probabilities of `x`."""
    return jnp.promote_types(jnp.float32, x.dtype)
