"""Attention scored by learned relative positions, without or with content."""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from attn_cnn_jax.models.attention.content import (
    PositionScores,
    folding_pays,
    scores_of_rows,
)
from attn_cnn_jax.models.attention.layer import (
    Keys,
    Parameter,
    PixelAttention,
    Scores,
    check_grid,
    never,
    once_a_key,
    once_a_pair_of_columns,
    once_a_pair_of_rows,
    once_a_pixel,
)
from attn_cnn_jax.models.initializers import torch_kernel, torch_uniform
from attn_cnn_jax.models.scores import (
    projected_keys,
    query_position_scores,
    table_axis_scores,
)


class LearnedAttention(PixelAttention):
    """The share of both learned layers: tables of positions and the map of values.

    With 16 heads the report's layers project the values before mixing
    (`project_values`); that map is folded into the one behind the heads.
    """

    max_position: int

    parameters: ClassVar[Mapping[str, Parameter]] = {
        **PixelAttention.parameters,
        "value_projection_kernel": Parameter(0, once_a_pixel),
        "row_embeddings": Parameter(None, never),
        "col_embeddings": Parameter(None, never),
        "row_keys": Parameter(1, once_a_pair_of_rows),
        "col_keys": Parameter(1, once_a_pair_of_columns),
    }

    def output_map(self, width: int) -> tuple[Array, Array]:
        """Return kernel [N, D, D] and bias [D] of the map behind the heads."""
        kernel, bias = super().output_map(width)
        if getattr(self, "project_values", False):
            shape, init = (self.num_heads, width, width), torch_uniform(width)
            name = "value_projection_kernel"
            projection = self.param(name, init, shape, self.param_dtype)
            kernel = jnp.einsum("nde,nef->ndf", projection, kernel)
        return kernel, bias

    def _embeddings(self, position_dim: int) -> tuple[Array, Array]:
        shape = (2 * self.max_position - 1, position_dim)
        init = nn.initializers.normal(1.0)
        rows = self.param("row_embeddings", init, shape, self.param_dtype)
        return rows, self.param("col_embeddings", init, shape, self.param_dtype)

    def _axis_scores(self, x: Array, position_dim: int) -> tuple[Array, Array]:
        """Score the offsets by keys of the heads' own, alike for all images."""
        rows, cols = self._embeddings(position_dim)
        shape = (position_dim, self.num_heads)
        row_keys = self.param("row_keys", torch_kernel, shape, self.param_dtype)
        col_keys = self.param("col_keys", torch_kernel, shape, self.param_dtype)
        return (
            table_axis_scores(rows, row_keys, x.shape[1]),
            table_axis_scores(cols, col_keys, x.shape[2]),
        )


def offset_scores(
    params: Mapping[str, Any], grid: tuple[int, int]
) -> Float[Array, "N rows columns"]:
    """Return the learned scores of the offsets that a grid of H x W pixels has.

    `params` are those of a layer. Offset (row, column) stands at [row + H - 1, column +
    W - 1] of the 2H - 1 rows and 2W - 1 columns; what the tables hold beyond is never
    looked up and so never trained. The score is row_key . row[offset] + col_key .
    col[offset] (paper, section 4.3), as far as it does not depend on the image.
    """

    def axis(name: str, length: int) -> Array:
        table = jnp.asarray(params[f"{name}_embeddings"])
        zero = len(table) // 2
        there = table[zero - length + 1 : zero + length]
        return (there @ params[f"{name}_keys"]).T

    rows, cols = axis("row", grid[0]), axis("col", grid[1])
    return rows[:, :, None] + cols[:, None, :]


class LearnedPositionAttention(LearnedAttention):
    """Attention scored by learned positions alone (paper, section 4.3).

    A score is row_key . row[k - i] + col_key . col[l - j], not scaled, the same for all
    images; the keys are the head's own.
    """

    position_dim: int
    project_values: bool = False

    offset_scores = staticmethod(offset_scores)

    def scores(self, x: Float[Array, "B H W D"], keys: Keys) -> tuple[Scores, Keys]:
        """Return the row and the column term; keys are handed through."""
        check_grid(x.shape[1:3], self.max_position)
        return self._axis_scores(x, self.position_dim), keys


class LearnedContentAttention(LearnedAttention):
    """Attention scored by queries (paper, sections 2.3 and 4.3).

    With D the width of the layer and of every head, scores are q . k / sqrt(D), unless
    `content` is False, and (q[:D/2] . row[k - i] + q[D/2:] . col[l - j]) / sqrt(D).

    The report's layer has no `projection_bias` of queries and keys. Its code scores
    pixel (j, i) against (l, k) where it mixes (i, j) and (k, l): `transposed`.
    """

    content: bool = True
    projection_bias: bool = True
    project_values: bool = False
    transposed: bool = False

    parameters: ClassVar[Mapping[str, Parameter]] = {
        **LearnedAttention.parameters,
        "query_kernel": Parameter(1, once_a_pixel),
        "query_bias": Parameter(0, never),
        "key_kernel": Parameter(1, once_a_key),
        "key_bias": Parameter(0, never),
    }
    halves_queries: ClassVar[bool] = True

    def scores(self, x: Float[Array, "B H W D"], keys: Keys) -> tuple[Scores, Keys]:
        """Return the scores of every image, and the keys that they are against."""
        check_grid(x.shape[1:3], self.max_position)
        width = x.shape[-1]
        kernel, bias = self._projection("query", width)
        query = width**-0.5 * kernel, width**-0.5 * bias
        key_kernel: Any = None
        if self.content:
            # Its bias never matters (see content_scores); it is counted and decays.
            key_kernel, _ = self._projection("key", width)
            if keys is None:  # where they are folded they are the pixels themselves
                keys = x if folding_pays(x) else projected_keys(x, key_kernel)
        by_position = self._position_scores(x, *query)
        pixels = None if keys is None else self._turned(keys)
        queries = self._turned(x)
        return scores_of_rows(queries, pixels, query, key_kernel, by_position), keys

    def _turned(self, pixels: Array) -> Array:
        """Return the pixels that the scores of pixel (i, j) and (k, l) are of."""
        if not self.transposed:
            return pixels
        if pixels.shape[1] != pixels.shape[2]:
            raise ValueError(
                "attention.transposed needs a square grid, not "
                f"{(pixels.shape[1], pixels.shape[2])}"
            )
        return pixels.swapaxes(1, 2)

    def _position_scores(self, x: Array, kernel: Array, bias: Array) -> PositionScores:
        height, half = x.shape[1], x.shape[-1] // 2
        first_table, second_table = self._embeddings(half)
        if self.transposed:  # what meets the rows of tables and of queries is swapped
            first_table, second_table = second_table, first_table
            kernel, bias = jnp.roll(kernel, half, -1), jnp.roll(bias, half, -1)

        def of_rows(part: Array, first: Any) -> tuple[Array, Array]:
            return query_position_scores(
                part, kernel, bias, first_table, second_table, height, first
            )

        return of_rows

    def _projection(self, name: str, width: int) -> tuple[Array, Array]:
        """Return kernel [D, N, D] and bias [N, D], zero where the layer has none."""
        shape, init = (width, self.num_heads, width), torch_uniform(width)
        kernel = self.param(f"{name}_kernel", init, shape, self.param_dtype)
        if self.projection_bias:
            bias = self.param(f"{name}_bias", init, shape[1:], self.param_dtype)
        else:
            bias = jnp.zeros(shape[1:], self.param_dtype)
        return kernel, bias


class LearnedContentAttentionV1(LearnedContentAttention):
    """Attention by content and learned positions, as the paper's first version has it.

    Scores are q . k / sqrt(D) plus those of `LearnedPositionAttention`.
    """

    position_dim: int = 400

    halves_queries: ClassVar[bool] = False
    offset_scores = staticmethod(offset_scores)

    def _position_scores(self, x: Array, kernel: Array, bias: Array) -> PositionScores:
        rows, cols = self._axis_scores(x, self.position_dim)

        def of_rows(part: Array, first: Any) -> tuple[Array, Array]:
            there = jax.lax.dynamic_slice_in_dim(rows, first, part.shape[1], axis=1)
            by_row, by_col = there.transpose(1, 0, 2), cols.transpose(1, 0, 2)
            return by_row[None, :, None], by_col[None, None]

        return of_rows
