"""Every attention layer of the two papers; the formulas are in `models.scores`.

A layer maps `(x, keys, *, train) -> (y, keys)` with `x, y: [B, H, W, D]`. `keys` are
those of an earlier pass through a shared layer, or None. While "intermediates" are
being captured a layer sows its probabilities as `attention`,
`[B or 1, N, Hq, Wq, Hk, Wk]`; a leading 1 says that they do not depend on the image.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from attn_cnn_jax.models.initializers import torch_kernel, torch_uniform
from attn_cnn_jax.models.scores import (
    at_least_float32,
    content_scores,
    isotropic_axis_scores,
    mix,
    mix_separable,
    quadratic_scores,
    query_position_scores,
    separable_probs,
    softmax_over_keys,
    sum_axes,
    table_axis_scores,
)

Keys = Float[Array, "B H W ..."] | None  # pixels or, projected, [B, H, W, N, D_h]

_SEPARABLE_FROM = 256  # pixels; below, one product over the whole grid is faster


def _dropout_probs(probs: Array, rate: float, *, train: bool) -> Array:
    return nn.Dropout(rate, name="dropout")(probs, deterministic=not train)


def _value_params(module: nn.Module, num_heads: int, width: int, dtype: Any):
    """Kernel [N, D, D] and bias [D] of the map from all heads to the output.

    Every head mixes the whole width (D_h = D_out, paper, section 2.2): there is no
    projection per head before mixing.
    """
    init = torch_uniform(num_heads * width)
    kernel = module.param("value_kernel", init, (num_heads, width, width), dtype)
    return kernel, module.param("value_bias", init, (width,), dtype)


class QuadraticAttention(nn.Module):
    """Attention to a Gaussian around a learned offset (paper, sections 3.2 and 4.2).

    The precision of a head is spread^2 I (isotropic) or A A^T with A its 2 x 2 spread.
    One dropout mask serves the whole batch, as in the original.
    """

    num_heads: int
    isotropic: bool
    dropout_rate: float
    center_std: float
    spread_std: float
    param_dtype: Any

    @nn.compact
    def __call__(
        self, x: Float[Array, "B H W D"], keys: Keys = None, *, train: bool
    ) -> tuple[Float[Array, "B H W D"], Keys]:
        """Mix the pixels of `x`; keys do not matter and are handed through."""
        num_heads, dtype = self.num_heads, self.param_dtype
        centers = self.param(
            "centers", nn.initializers.normal(self.center_std), (num_heads, 2), dtype
        )
        spreads = self.param("spreads", self._init_spreads)
        kernel, bias = _value_params(self, num_heads, x.shape[-1], dtype)
        grid = x.shape[1], x.shape[2]
        if self.isotropic:
            rows, cols = isotropic_axis_scores(centers, spreads, grid)
            y = _mix_by_axes(self, x, rows, cols, kernel, train=train, shared_mask=True)
        else:
            precision = jnp.einsum("nij,nkj->nik", spreads, spreads)
            scores = quadratic_scores(centers, precision, grid)
            probs = softmax_over_keys(scores)[None]
            self.sow("intermediates", "attention", probs)
            y = mix(x, _dropout_probs(probs, self.dropout_rate, train=train), kernel)
        return y + bias.astype(x.dtype)[None, None, None], keys

    def _init_spreads(self, rng: Array) -> Array:
        if self.isotropic:
            mean = jnp.ones((self.num_heads,), self.param_dtype)
        else:
            identity = jnp.eye(2, dtype=self.param_dtype)
            mean = jnp.broadcast_to(identity, (self.num_heads, 2, 2))
        noise = jax.random.normal(rng, mean.shape, self.param_dtype)
        return mean + self.spread_std * noise


def _mix_by_axes(
    module: Any, x, rows, cols, kernel, *, train: bool, shared_mask: bool
) -> Array:
    """Mix with the probabilities of a row term plus a column term.

    Dropout needs the whole probabilities; without it they factorise, which is faster
    on all but small grids, and are built only to be captured.
    """
    drops = train and module.dropout_rate > 0
    small = x.shape[1] * x.shape[2] < _SEPARABLE_FROM
    if drops or small or module.is_mutable_collection("intermediates"):
        probs = separable_probs(rows, cols)[None]
        module.sow("intermediates", "attention", probs)
        if drops:
            if not shared_mask:
                probs = jnp.broadcast_to(probs, (x.shape[0], *probs.shape[1:]))
            probs = _dropout_probs(probs, module.dropout_rate, train=train)
        if drops or small:
            return mix(x, probs, kernel)
    return mix_separable(x, jax.nn.softmax(rows), jax.nn.softmax(cols), kernel)


class LearnedRelativeAttention(nn.Module):
    """Attention scored by learned relative positions (paper, sections 2.3 and 4.3).

    Scores are the sum of what is asked for:
    `content`: q . k / sqrt(D);
    `query_position`: (q[:D/2] . row[k - i] + q[D/2:] . col[l - j]) / sqrt(D);
    else: row_key . row[k - i] + col_key . col[l - j], not scaled, the same for all
    images. D is the width of the layer and of every head.
    """

    num_heads: int
    content: bool
    query_position: bool
    dropout_rate: float
    max_position: int
    param_dtype: Any
    position_dim: int | None = None  # without query_position; with it, half the width

    @nn.compact
    def __call__(
        self, x: Float[Array, "B H W D"], keys: Keys = None, *, train: bool
    ) -> tuple[Float[Array, "B H W D"], Keys]:
        """Mix the pixels of `x`, scored against `keys` (those of `x` if None)."""
        grid, width = (x.shape[1], x.shape[2]), x.shape[-1]
        if max(grid) > self.max_position:
            raise ValueError(
                f"a grid of {grid[0]} x {grid[1]} pixels is larger than "
                f"attention.max_position={self.max_position}"
            )
        if not (self.content or self.query_position):
            rows, cols = self._position_scores(grid)
            kernel, bias = _value_params(self, self.num_heads, width, self.param_dtype)
            y = _mix_by_axes(
                self, x, rows, cols, kernel, train=train, shared_mask=False
            )
            return y + bias.astype(x.dtype)[None, None, None], keys
        scores, keys = self._content_scores(x, keys)
        kernel, bias = _value_params(self, self.num_heads, width, self.param_dtype)
        probs = softmax_over_keys(scores)
        self.sow("intermediates", "attention", probs)
        y = mix(x, _dropout_probs(probs, self.dropout_rate, train=train), kernel)
        return y + bias.astype(x.dtype)[None, None, None], keys

    def _embeddings(self, position_dim: int) -> tuple[Array, Array]:
        shape = (2 * self.max_position - 1, position_dim)
        init = nn.initializers.normal(1.0)
        rows = self.param("row_embeddings", init, shape, self.param_dtype)
        return rows, self.param("col_embeddings", init, shape, self.param_dtype)

    def _position_scores(self, grid: tuple[int, int]) -> tuple[Array, Array]:
        if self.position_dim is None:
            raise ValueError("attention.position_dim is missing")
        rows, cols = self._embeddings(self.position_dim)
        shape = (self.position_dim, self.num_heads)
        row_keys = self.param("row_keys", torch_kernel, shape, self.param_dtype)
        col_keys = self.param("col_keys", torch_kernel, shape, self.param_dtype)
        return (
            table_axis_scores(rows, row_keys, grid[0]),
            table_axis_scores(cols, col_keys, grid[1]),
        )

    def _content_scores(self, x: Array, keys: Array | None) -> tuple[Array, Any]:
        width, dtype = x.shape[-1], self.param_dtype
        shape, init = (width, self.num_heads, width), torch_uniform(width)
        query_kernel = self.param("query_kernel", init, shape, dtype)
        query_bias = self.param("query_bias", init, shape[1:], dtype)
        scale = width**-0.5
        scores = jnp.zeros((), at_least_float32(x))
        if self.content:
            key_kernel = self.param("key_kernel", init, shape, dtype)
            # Never matters (see content_scores); kept, for it is counted and decays.
            self.param("key_bias", init, shape[1:], dtype)
            keys = x if keys is None else keys
            scores = scale * content_scores(
                x, keys, query_kernel, query_bias, key_kernel
            )
        if self.query_position:
            tables = self._embeddings(width // 2)
            rows, cols = query_position_scores(x, query_kernel, query_bias, *tables)
            scores = scores + scale * (rows[..., :, None] + cols[..., None, :])
        else:
            scores = (
                scores
                + sum_axes(*self._position_scores((x.shape[1], x.shape[2])))[None]
            )
        return scores, keys


class MultiHeadAttention(nn.Module):
    """Multi-head attention without positions, D_h = D / N (paper, section 2.1)."""

    num_heads: int
    dropout_rate: float
    param_dtype: Any

    @nn.compact
    def __call__(
        self, x: Float[Array, "B H W D"], keys: Keys = None, *, train: bool
    ) -> tuple[Float[Array, "B H W D"], Keys]:
        """Mix the pixels of `x` with q . k / sqrt(D_h)."""
        width = x.shape[-1]
        if self.num_heads < 1 or width % self.num_heads:
            raise ValueError(f"num_heads={self.num_heads} does not divide {width=}")
        head_dim = width // self.num_heads
        project = partial(
            nn.DenseGeneral,
            (self.num_heads, head_dim),
            dtype=x.dtype,
            param_dtype=self.param_dtype,
            kernel_init=torch_kernel,
            bias_init=torch_uniform(width),
        )
        queries, values = project(name="query")(x), project(name="value")(x)
        keys = project(name="key")(x) if keys is None else keys
        scores = jnp.einsum(
            "bijnd,bklnd->bnijkl",
            queries * head_dim**-0.5,
            keys,
            preferred_element_type=at_least_float32(x),
        )
        probs = softmax_over_keys(scores)
        self.sow("intermediates", "attention", probs)
        probs = _dropout_probs(probs, self.dropout_rate, train=train).astype(x.dtype)
        y = jnp.einsum("bnijkl,bklnd->bijnd", probs, values)
        return y.reshape(x.shape), keys


ATTENTIONS = {
    "quadratic_isotropic": partial(QuadraticAttention, isotropic=True),
    "quadratic_nonisotropic": partial(QuadraticAttention, isotropic=False),
    "learned_wo_content": partial(
        LearnedRelativeAttention, content=False, query_position=False
    ),
    "learned_w_content": partial(
        LearnedRelativeAttention, content=True, query_position=True
    ),
    "learned_query_position": partial(
        LearnedRelativeAttention, content=False, query_position=True
    ),
    "learned_w_content_v1": partial(
        LearnedRelativeAttention, content=True, query_position=False
    ),
    "multi_head": MultiHeadAttention,
}
