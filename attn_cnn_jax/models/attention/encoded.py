"""Attention scored by content and encoded positions, absolute or relative.

The scores of the paper's section 2.3 as it writes them, without biases of queries and
keys, and over sqrt(D).
"""

from collections.abc import Mapping
from typing import Any, ClassVar

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
    once_a_pixel,
)
from attn_cnn_jax.models.initializers import torch_uniform
from attn_cnn_jax.models.score_terms import (
    ScoreTerms,
    absolute_terms,
    axis_offsets,
    axis_sinusoids,
    relative_terms,
    sinusoidal_encoding,
)
from attn_cnn_jax.models.scores import projected_keys, query_position_scores


def once_an_offset(x: Any, keys: Any) -> int:
    """Return H + W - 1: one half meets 2H - 1 offsets of rows, the other 2W - 1."""
    return x.shape[1] + x.shape[2] - 1


class EncodedAttention(PixelAttention):
    """The share of layers with queries and keys [D, N, D]: their projections."""

    parameters: ClassVar[Mapping[str, Parameter]] = {
        **PixelAttention.parameters,
        "query_kernel": Parameter(1, once_a_pixel),
        "key_kernel": Parameter(1, once_a_key),
    }
    is_sinusoidal: ClassVar[bool] = False

    def _kernel(self, name: str, width: int) -> Float[Array, "D N D"]:
        shape = (width, self.num_heads, width)
        return self.param(
            f"{name}_kernel", torch_uniform(width), shape, self.param_dtype
        )

    def _against_keys(
        self,
        x: Float[Array, "B H W D"],
        keys: Keys,
        query: tuple[Float[Array, "D N D"], Float[Array, "N D"]],
        by_position: PositionScores | None = None,
    ) -> tuple[Scores, Keys]:
        """Return the scores of `x` against `keys` (those of `x` if None), and keys."""
        key_kernel = self._kernel("key", x.shape[-1])
        if keys is None:  # where they are folded they are the pixels themselves
            keys = x if folding_pays(x) else projected_keys(x, key_kernel)
        return scores_of_rows(x, keys, query, key_kernel, by_position), keys


class AbsoluteAttention(EncodedAttention):
    """Attention with an encoding p of each pixel's place, added to queries and keys.

    A score is (x_q + p_q) W_q W_k^T (x_k + p_k)^T / sqrt(D) (paper, Eq. 7); values have
    no position.
    """

    def encoding(self, grid: tuple[int, int], width: int) -> Float[Array, "H W D"]:
        """Return what is added to the pixels of a grid."""
        raise NotImplementedError

    def scores(self, x: Float[Array, "B H W D"], keys: Keys) -> tuple[Scores, Keys]:
        """Return the scores of every image, and the keys that they are against."""
        width = x.shape[-1]
        encoding = self.encoding((x.shape[1], x.shape[2]), width)
        placed = x + encoding.astype(x.dtype)[None]
        bias = jnp.zeros((self.num_heads, width), self.param_dtype)
        query = width**-0.5 * self._kernel("query", width), bias
        return self._against_keys(placed, keys, query)


class LearnedAbsoluteAttention(AbsoluteAttention):
    """Absolute attention with a learned encoding of each pixel, a table for a layer.

    Encodings start as N(0, 1), as the other tables of positions do.
    """

    max_position: int

    parameters: ClassVar[Mapping[str, Parameter]] = {
        **EncodedAttention.parameters,
        "pixel_embeddings": Parameter(None, never),
    }

    def encoding(self, grid: tuple[int, int], width: int) -> Float[Array, "H W D"]:
        """Return the upper left part of the table [max_position, max_position, D]."""
        check_grid(grid, self.max_position)
        shape = (self.max_position, self.max_position, width)
        init = nn.initializers.normal(1.0)
        table = self.param("pixel_embeddings", init, shape, self.param_dtype)
        return table[: grid[0], : grid[1]]

    @classmethod
    def score_terms(
        cls, params: Mapping[str, Any], x: Float[Array, "B H W D"]
    ) -> ScoreTerms:
        """Return the four terms of the scores of pixels, from a layer's parameters."""
        table = jnp.asarray(params["pixel_embeddings"])[: x.shape[1], : x.shape[2]]
        return absolute_terms(jnp.asarray(x), table, *_arrays(params, "query", "key"))


class SinusoidalAbsoluteAttention(AbsoluteAttention):
    """Absolute attention with sines and cosines of the row, then of the column."""

    is_sinusoidal: ClassVar[bool] = True

    def encoding(self, grid: tuple[int, int], width: int) -> Float[Array, "H W D"]:
        """Return the sinusoidal encoding of the grid."""
        return sinusoidal_encoding([*map(jnp.arange, grid)], width, self.param_dtype)

    @classmethod
    def score_terms(
        cls, params: Mapping[str, Any], x: Float[Array, "B H W D"]
    ) -> ScoreTerms:
        """Return the four terms of the scores of pixels, from a layer's parameters."""
        places = [*map(jnp.arange, x.shape[1:3])]
        encoding = sinusoidal_encoding(places, x.shape[-1], x.dtype)
        kernels = _arrays(params, "query", "key")
        return absolute_terms(jnp.asarray(x), encoding, *kernels)


class TransformerXLAttention(EncodedAttention):
    """Transformer-XL's attention with offsets along two axes (paper, Eq. 8).

    With r the encoding of the offset and R the `position_kernel` a score is
    (x_q W_q + u) W_k^T x_k^T + (x_q W_q + v) R^T r^T, over sqrt(D). r is sinusoidal, as
    in Dai et al. (2019): it has no size to outgrow, and with a learned table in its
    place R would add nothing to `learned_w_content`.
    """

    parameters: ClassVar[Mapping[str, Parameter]] = {
        **EncodedAttention.parameters,
        "position_kernel": Parameter(1, once_an_offset),
        "content_bias": Parameter(0, never),
        "position_bias": Parameter(0, never),
    }
    is_sinusoidal: ClassVar[bool] = True

    def scores(self, x: Float[Array, "B H W D"], keys: Keys) -> tuple[Scores, Keys]:
        """Return the scores of every image, and the keys that they are against."""
        height, width = x.shape[1], x.shape[-1]
        scale = width**-0.5
        kernel = scale * self._kernel("query", width)
        u, v = (scale * self._bias(name, width) for name in ("content", "position"))
        to_encoding = self._kernel("position", width)
        # R folded: what meets the encodings of rows and of columns.
        folded = jnp.einsum("dne,cne->dnc", kernel, to_encoding)
        constant = jnp.einsum("ne,cne->nc", v, to_encoding)
        tables = axis_sinusoids(axis_offsets(x.shape[1:3]), width, self.param_dtype)

        def by_position(part: Array, first: Any) -> tuple[Array, Array]:
            return query_position_scores(part, folded, constant, *tables, height, first)

        return self._against_keys(x, keys, (kernel, u), by_position)

    def _bias(self, name: str, width: int) -> Float[Array, "N D"]:
        shape = (self.num_heads, width)
        return self.param(f"{name}_bias", torch_uniform(width), shape, self.param_dtype)

    @classmethod
    def score_terms(
        cls, params: Mapping[str, Any], x: Float[Array, "B H W D"]
    ) -> ScoreTerms:
        """Return the four terms of the scores of pixels, from a layer's parameters."""
        kernels = _arrays(params, "query", "key", "position")
        biases = _arrays(params, "content", "position", kind="bias")
        return relative_terms(jnp.asarray(x), *kernels, *biases)

    @staticmethod
    def offset_scores(
        params: Mapping[str, Any], grid: tuple[int, int]
    ) -> Float[Array, "N rows columns"]:
        """Return v R^T r^T / sqrt(D), as far as scores do not depend on the image.

        `params` are those of a layer. Offset (row, column) of a grid of H x W pixels
        stands at [row + H - 1, column + W - 1] of 2H - 1 rows and 2W - 1 columns.
        """
        kernel = jnp.asarray(params["position_kernel"])
        width = kernel.shape[0]
        encoding = sinusoidal_encoding(axis_offsets(grid), width, kernel.dtype)
        heads = jnp.einsum("ne,cne->nc", params["position_bias"], kernel)
        return width**-0.5 * jnp.einsum("nc,pqc->npq", heads, encoding)


def _arrays(
    params: Mapping[str, Any], *names: str, kind: str = "kernel"
) -> list[Array]:
    return [jnp.asarray(params[f"{name}_{kind}"]) for name in names]
