"""Attention scored by learned relative positions, without or with content."""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from attn_cnn_jax.models.attention.mixing import (
    Keys,
    dropout_probs,
    mix_by_axes,
    value_params,
)
from attn_cnn_jax.models.initializers import torch_kernel, torch_uniform
from attn_cnn_jax.models.scores import (
    at_least_float32,
    content_scores,
    folded_content_scores,
    mix,
    projected_keys,
    query_position_scores,
    softmax_over_keys,
    sum_axes,
    table_axis_scores,
)


class LearnedRelativeAttention(nn.Module):
    """Attention scored by learned relative positions (paper, sections 2.3 and 4.3).

    Scores are the sum of what is asked for:
    `content`: q . k / sqrt(D);
    `query_position`: (q[:D/2] . row[k - i] + q[D/2:] . col[l - j]) / sqrt(D);
    else: row_key . row[k - i] + col_key . col[l - j], not scaled, the same for all
    images. D is the width of the layer and of every head.

    The report's layer has no `projection_bias` of queries and keys; with 16 heads it
    projects values before mixing (`project_values`). Its code scores pixel (j, i)
    against (l, k) where it mixes (i, j) and (k, l): `transposed`.
    """

    num_heads: int
    content: bool
    query_position: bool
    dropout_rate: float
    max_position: int
    param_dtype: Any
    position_dim: int | None = None  # without query_position; with it, half the width
    projection_bias: bool = True
    project_values: bool = False
    transposed: bool = False

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
            kernel, bias = value_params(self, self.num_heads, width, self.param_dtype)
            y = mix_by_axes(self, x, rows, cols, kernel, train=train, shared_mask=False)
            return y + bias.astype(x.dtype)[None, None, None], keys
        scores, keys = self._content_scores(x, keys)
        if self.transposed:
            if grid[0] != grid[1]:
                raise ValueError(
                    f"attention.transposed needs a square grid, not {grid}"
                )
            scores = scores.transpose(0, 1, 3, 2, 5, 4)
        probs = softmax_over_keys(scores)
        self.sow("intermediates", "attention", probs)
        kernel, bias = value_params(self, self.num_heads, width, self.param_dtype)
        if self.project_values:
            kernel = jnp.einsum("nde,nef->ndf", self._value_projection(width), kernel)
        y = mix(x, dropout_probs(probs, self.dropout_rate, train=train), kernel)
        return y + bias.astype(x.dtype)[None, None, None], keys

    def _value_projection(self, width: int) -> Array:
        """Every head's own map of the pixels, folded into the map behind the heads."""
        shape = (self.num_heads, width, width)
        init = torch_uniform(width)
        return self.param("value_projection_kernel", init, shape, self.param_dtype)

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
        width = x.shape[-1]
        query_kernel, query_bias = self._projection("query", width)
        scale = width**-0.5
        scores = jnp.zeros((), at_least_float32(x))
        if self.content:
            # Its bias never matters (see content_scores); it is counted and decays.
            key_kernel, _ = self._projection("key", width)
            if _folding_pays(x):  # the keys are then the pixels themselves
                keys = x if keys is None else keys
                content = folded_content_scores(
                    x, keys, query_kernel, query_bias, key_kernel
                )
            else:
                keys = projected_keys(x, key_kernel) if keys is None else keys
                content = content_scores(x, keys, query_kernel, query_bias)
            scores = scale * content
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

    def _projection(self, name: str, width: int) -> tuple[Array, Array]:
        """Kernel [D, N, D] and bias [N, D] (zero where the layer has none)."""
        shape, init = (width, self.num_heads, width), torch_uniform(width)
        kernel = self.param(f"{name}_kernel", init, shape, self.param_dtype)
        if self.projection_bias:
            bias = self.param(f"{name}_bias", init, shape[1:], self.param_dtype)
        else:
            bias = jnp.zeros(shape[1:], self.param_dtype)
        return kernel, bias


def _folding_pays(x: Array) -> bool:
    """Whether W_q W_k^T, D^3 a head, costs less than the keys, D^2 a head and pixel."""
    batch, height, width, depth = x.shape
    return batch * height * width > depth
