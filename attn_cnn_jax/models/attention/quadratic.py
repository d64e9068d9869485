"""Attention to a Gaussian around a learned offset."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from attn_cnn_jax.models.attention.mixing import (
    Keys,
    dropout_probs,
    mix_by_axes,
    value_params,
)
from attn_cnn_jax.models.scores import (
    isotropic_axis_scores,
    mix,
    quadratic_scores,
    softmax_over_keys,
)


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
        kernel, bias = value_params(self, num_heads, x.shape[-1], dtype)
        grid = x.shape[1], x.shape[2]
        if self.isotropic:
            rows, cols = isotropic_axis_scores(centers, spreads, grid)
            y = mix_by_axes(self, x, rows, cols, kernel, train=train, shared_mask=True)
        else:
            precision = jnp.einsum("nij,nkj->nik", spreads, spreads)
            scores = quadratic_scores(centers, precision, grid)
            probs = softmax_over_keys(scores)[None]
            self.sow("intermediates", "attention", probs)
            y = mix(x, dropout_probs(probs, self.dropout_rate, train=train), kernel)
        return y + bias.astype(x.dtype)[None, None, None], keys

    def _init_spreads(self, rng: Array) -> Array:
        if self.isotropic:
            mean = jnp.ones((self.num_heads,), self.param_dtype)
        else:
            identity = jnp.eye(2, dtype=self.param_dtype)
            mean = jnp.broadcast_to(identity, (self.num_heads, 2, 2))
        noise = jax.random.normal(rng, mean.shape, self.param_dtype)
        return mean + self.spread_std * noise
