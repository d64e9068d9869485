"""Multi-head attention without positions."""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from attn_cnn_jax.models.attention.layer import Keys, Parameter
from attn_cnn_jax.models.dense import DenseGeneral
from attn_cnn_jax.models.dropout import Dropout
from attn_cnn_jax.models.initializers import torch_kernel, torch_uniform
from attn_cnn_jax.models.scores import product_in_float32, softmax_over_keys


class MultiHeadAttention(nn.Module):
    """Multi-head attention without positions, D_h = D / N (paper, section 2.1).

    The heads share the width: a layer without one of them is another layer.
    """

    num_heads: int
    dropout_rate: float
    param_dtype: Any

    heads_share_width: ClassVar[bool] = True
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "value/kernel": Parameter(1, is_value=True),
        "value/bias": Parameter(0, is_value=True),
    }

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
            DenseGeneral,
            (self.num_heads, head_dim),
            dtype=x.dtype,
            param_dtype=self.param_dtype,
            kernel_init=torch_kernel,
            bias_init=torch_uniform(width),
        )
        queries, values = project(name="query")(x), project(name="value")(x)
        keys = jnp.asarray(project(name="key")(x) if keys is None else keys)
        scores = product_in_float32(
            "bijnd,bklnd->bnijkl", queries * head_dim**-0.5, keys
        )
        probs = softmax_over_keys(scores)
        self.sow("intermediates", "attention", probs)
        probs = Dropout(self.dropout_rate, name="dropout")(probs, train=train)
        probs = probs.astype(x.dtype)
        y = jnp.einsum("bnijkl,bklnd->bijnd", probs, values)
        return y.reshape(x.shape), keys
