"""Formulas of attention as pure functions: scores between pixels, then mixing.

Axes: `B` batch, `H W` grid, `Hq Wq Hk Wk` query and key grid, `N` heads, `D` width,
`P` offsets of a table. A pixel is (row, column) and an offset is key minus query,
everywhere in this package.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int


def relative_offsets(
    length: int, first: Any = 0, count: int | None = None
) -> Int[Array, "query key"]:
    """Return the offsets key - query along one axis of the grid, in pixels.

    The queries are `count` pixels from `first` on, or all.
    """
    queries = first + jnp.arange(length if count is None else count)
    return jnp.arange(length)[None, :] - queries[:, None]


def quadratic_scores(
    centers: Float[Array, "N 2"],
    precision: Float[Array, "N 2 2"],
    rows: Int[Array, "Hq Hk"],
    cols: Int[Array, "Wq Wk"],
) -> Float[Array, "Hq Wq N Hk Wk"]:
    """Score every offset d by -1/2 (d - center)^T precision (d - center), Eq. 9.

    `rows` and `cols` are the offsets. Differs from the paper's u^T r_d by a constant of
    the head, which the softmax drops.
    """
    down = rows[:, None] - centers[None, :, 0, None]  # [Hq, N, Hk]
    right = cols[:, None] - centers[None, :, 1, None]  # [Wq, N, Wk]
    down, right = down[:, None, :, :, None], right[None, :, :, None, :]
    a, b, c = (
        term[None, None, :, None, None]
        for term in (
            precision[:, 0, 0],
            precision[:, 0, 1] + precision[:, 1, 0],
            precision[:, 1, 1],
        )
    )
    return -0.5 * (a * down**2 + b * down * right + c * right**2)


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
    """Score by head_key . embedding[key - query] along one axis (section 4.3)."""
    by_offset = (embeddings @ head_keys).T  # [N, P]
    return by_offset[:, _table_index(embeddings, length)]


def _table_index(embeddings: Array, length: int, *queries: Any) -> Array:
    """Return rows of a table of 2 * max_position - 1 offsets, 0 in the middle."""
    return relative_offsets(length, *queries) + embeddings.shape[0] // 2


def sum_axes(
    rows: Float[Array, "*N Hq Hk"], cols: Float[Array, "*N Wq Wk"]
) -> Float[Array, "*N Hq Wq Hk Wk"]:
    """Add a row and a column term to scores (or log-probabilities) on the grid."""
    return rows[..., :, None, :, None] + cols[..., None, :, None, :]


def softmax_over_keys(scores: Float[Array, "*n Hk Wk"]) -> Float[Array, "*n Hk Wk"]:
    """Take the softmax over all pixels of the key grid."""
    return jax.nn.softmax(scores, axis=(-2, -1))


def mix(
    x: Float[Array, "B H W D"],
    probs: Float[Array, "B1 Hq Wq N H W"],
    kernel: Float[Array, "N D E"],
) -> Float[Array, "B Hq Wq E"]:
    """Return sum_h (probs_h x) kernel_h, every head's mean of the pixels, projected.

    The heads lie beside the query: a product an image gives the means of all of them,
    and one more, of all images, their projection. Probabilities that all images share
    are broadcast, which XLA does not carry out on a GPU; their gradient is summed over
    the images in float32, for which they are rounded last. The "means" have a name, by
    which a caller may keep them for the backward pass.
    """
    batch, depth = x.shape[0], x.shape[-1]
    grid, heads = probs.shape[1:3], kernel.shape[0]
    pixels = x.reshape(batch, -1, depth)
    weights = probs.reshape(probs.shape[0], -1, pixels.shape[1])
    weights = jnp.broadcast_to(weights, (batch, *weights.shape[1:]))
    means = jnp.matmul(weights.astype(x.dtype), pixels)  # [B, Hq Wq N, D]
    means = checkpoint_name(means, "means")
    flat_kernel = kernel.astype(x.dtype).reshape(heads * depth, -1)
    y = jnp.matmul(means.reshape(-1, heads * depth), flat_kernel)
    return y.reshape(batch, *grid, -1)


def mix_separable(
    x: Float[Array, "B H W D"],
    rows: Float[Array, "N Hq H"],
    cols: Float[Array, "N Wq W"],
    kernel: Float[Array, "N D E"],
) -> Float[Array, "B Hq Wq E"]:
    """Compute `mix` with probs = rows x cols, one axis after the other.

    Takes time in proportion to H W (H + W) where `mix` takes (H W)^2. The pixels lead
    and the batch lies beside the channels, so that the probabilities meet them in one
    product a head: on a CPU this loop is faster than products over all heads at once.
    """
    rows, cols, kernel = (a.astype(x.dtype) for a in (rows, cols, kernel))
    batch, height, width, depth = x.shape
    pixels = x.transpose(1, 2, 0, 3).reshape(height, width, batch * depth)
    dtype = at_least_float32(x)
    y = jnp.zeros((), dtype)
    for head_rows, head_cols, head_kernel in zip(rows, cols, kernel, strict=True):
        lines = jnp.einsum("ik,klx->ilx", head_rows, pixels)
        means = jnp.einsum("jl,ilx->ijx", head_cols, lines)
        means = means.reshape(*means.shape[:2], batch, depth)
        y = y + product_in_float32("ijbd,de->ijbe", means, head_kernel)
    return y.transpose(2, 0, 1, 3).astype(x.dtype)


def product_in_float32(axes: str, a: Array, b: Array) -> Array:
    """Return `jnp.einsum(axes, a, b)` in at least float32, of operands as they are.

    Its cotangent is rounded to their dtype: the products of the backward pass are then
    of one dtype too, which on an accelerator are several times as fast as mixed ones.
    """
    product: Any = _product(axes, a, b)
    return product


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product(axes: str, a: Array, b: Array) -> Array:
    return jnp.einsum(axes, a, b, preferred_element_type=at_least_float32(a))


def _product_forward(axes: str, a: Array, b: Array) -> tuple[Array, tuple]:
    return _product(axes, a, b), (a, b)


def _product_backward(axes: str, operands: tuple, cotangent: Array) -> tuple:
    _, transpose = jax.vjp(partial(jnp.einsum, axes), *operands)
    return transpose(cotangent.astype(operands[0].dtype))


_product.defvjp(_product_forward, _product_backward)


def projected_keys(
    x: Float[Array, "B H W D"], key_kernel: Float[Array, "D N E"]
) -> Float[Array, "B H W N E"]:
    """Return k = x W_k of every head, without the bias, which no softmax sees."""
    return jnp.einsum("bijd,dne->bijne", x, key_kernel.astype(x.dtype))


def content_scores(
    x: Float[Array, "B Hq Wq D"],
    keys: Float[Array, "B H W N E"],
    query_kernel: Float[Array, "D N E"],
    query_bias: Float[Array, "N E"],
) -> Float[Array, "B Hq Wq N H W"]:
    """Score by q . k with q = x W_q + b_q, up to terms that are equal for all keys.

    q . k = (x W_q + b_q) . (x W_k + b_k): the terms with b_k do not depend on the key
    pixel, so the softmax drops them.
    """
    queries = jnp.einsum("bijd,dne->bijne", x, query_kernel.astype(x.dtype))
    queries = queries + query_bias.astype(x.dtype)[None, None, None]
    return product_in_float32("bijne,bklne->bijnkl", queries, keys)


def folded_content_scores(
    x: Float[Array, "B Hq Wq D"],
    pixels: Float[Array, "B H W D"],
    query_kernel: Float[Array, "D N E"],
    query_bias: Float[Array, "N E"],
    key_kernel: Float[Array, "D N E"],
    position_scores: tuple[Array, Array] | None = None,
) -> Float[Array, "B Hq Wq N H W"]:
    """Compute `content_scores` with the keys of `pixels`, W_q W_k^T folded per head.

    (x W_q + b_q) . (p W_k) = (x G + c) . p with G = W_q W_k^T and c = W_k b_q: one
    projection of the pixels instead of two. Scores by row [B, Hq, Wq, N, H] and column
    [B, Hq, Wq, N, W] of the key are added by the same product, as channels in which
    the pixel of row k and column l is the unit vectors k and l.
    """
    folded = jnp.einsum("dne,cne->dnc", query_kernel, key_kernel)
    constant = jnp.einsum("ne,cne->nc", query_bias, key_kernel)
    depth = x.shape[-1]
    queries = jnp.matmul(
        x.reshape(-1, depth), folded.astype(x.dtype).reshape(depth, -1)
    )
    queries = queries.reshape(*x.shape[:-1], *constant.shape)
    queries = queries + constant.astype(x.dtype)[None, None, None]
    if position_scores is not None:
        height, width = pixels.shape[1:3]
        rows = jnp.eye(height)[None, :, None]
        units = rows, jnp.eye(width)[None, None]
        queries = _with_channels(queries, position_scores)
        pixels = _with_channels(pixels, units)
    return product_in_float32("bijnc,bklc->bijnkl", queries, pixels)


def _with_channels(x: Array, channels: tuple[Array, Array]) -> Array:
    """Concatenate channels, which are broadcast to the other axes of `x`."""
    parts = (
        jnp.broadcast_to(part.astype(x.dtype), (*x.shape[:-1], part.shape[-1]))
        for part in channels
    )
    return jnp.concatenate([x, *parts], axis=-1)


def query_position_scores(
    x: Float[Array, "B Hq W D"],
    query_kernel: Float[Array, "D N E"],
    query_bias: Float[Array, "N E"],
    row_embeddings: Float[Array, "Pr half"],
    col_embeddings: Float[Array, "Pc half"],
    height: int,
    first: Any = 0,
) -> tuple[Float[Array, "B Hq W N H"], Float[Array, "B Hq W N W"]]:
    """Return q[:D/2] . row[k - i] and q[D/2:] . col[l - j], W_q folded into the tables.

    The query meets few offsets and many pixels: folding spares the queries. `x` are the
    rows from `first` on of a grid of this height.
    """
    half = row_embeddings.shape[1]

    def folded(embeddings: Array, part: slice) -> tuple[Array, Array]:
        kernel = jnp.einsum("dne,pe->pnd", query_kernel[..., part], embeddings)
        constant = jnp.einsum("ne,pe->pn", query_bias[..., part], embeddings)
        return kernel.astype(x.dtype), constant

    kernel, constant = folded(row_embeddings, slice(None, half))
    index = _table_index(row_embeddings, height, first, x.shape[1])  # [i, k]
    by_row = product_in_float32("bijd,iknd->bijnk", x, kernel[index])
    by_row = by_row + constant[index].transpose(0, 2, 1)[None, :, None]
    kernel, constant = folded(col_embeddings, slice(half, None))
    index = _table_index(col_embeddings, x.shape[2])  # [j, l]
    by_col = product_in_float32("bijd,jlnd->bijnl", x, kernel[index])
    by_col = by_col + constant[index].transpose(0, 2, 1)[None, None]
    return by_row, by_col


def at_least_float32(x: Array) -> Any:
    """Return the dtype of scores and probabilities of `x`."""
    return jnp.promote_types(jnp.float32, x.dtype)
