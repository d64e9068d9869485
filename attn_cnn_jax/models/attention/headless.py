"""Attention of a layer that has lost all of its heads."""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from attn_cnn_jax.models.attention.mixing import Keys


class HeadlessAttention(nn.Module):
    """The sum over no heads: the bias of the values, the same at every pixel.

    Nothing is left of queries, keys and positions.
    """

    param_dtype: Any

    @nn.compact
    def __call__(
        self, x: Float[Array, "B H W D"], keys: Keys = None, *, train: bool
    ) -> tuple[Float[Array, "B H W D"], Keys]:
        """The bias; keys do not matter and are handed through."""
        grid = x.shape[1:3]
        self.sow("intermediates", "attention", jnp.zeros((1, 0, *grid, *grid)))
        # As PyTorch starts the bias of a map without inputs.
        init = nn.initializers.zeros
        bias = self.param("value_bias", init, x.shape[-1:], self.param_dtype)
        return jnp.broadcast_to(bias.astype(x.dtype), x.shape), keys
