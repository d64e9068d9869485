"""The paper's fully attentional network for image classification."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from attn_cnn_jax.models.attention import ATTENTIONS
from attn_cnn_jax.models.encoder import (
    ACTIVATIONS,
    EncoderBlock,
    apply_blocks,
)
from attn_cnn_jax.models.initializers import torch_kernel, torch_uniform
from attn_cnn_jax.models.patches import patchify


def _known(name: Any, field: str, choices: Mapping[str, Any]) -> str:
    """`name`, if it is one of the `choices`."""
    if name not in choices:
        raise ValueError(f"{field} is {name!r}; choose from {', '.join(choices)}")
    return name


class SelfAttentionNetwork(nn.Module):
    """Patches, attention blocks on the grid, the mean over pixels, a linear classifier.

    Every block has the full grid and the full width; see `models.attention` for the
    fields of `attention`, its `name` included. With `share_weights` all layers are one
    block, which attends to the keys of its first pass (report, section 4.1).
    """

    num_classes: int
    patch_size: int
    width: int
    num_layers: int
    num_heads: int
    mlp_dim: int
    activation: str
    dropout_rate: float
    norm_epsilon: float
    attention_dense: bool
    share_weights: bool
    compute_dtype: str
    attention: Mapping[str, Any]

    @nn.compact
    def __call__(
        self, images: Float[Array, "B H W C"], *, train: bool
    ) -> Float[Array, "B num_classes"]:
        """Logits of normalised images."""
        param_dtype = jnp.promote_types(jnp.float32, self.compute_dtype)
        fields = dict(self.attention)
        attention = partial(
            ATTENTIONS[_known(fields.pop("name", None), "attention.name", ATTENTIONS)],
            num_heads=self.num_heads,
            param_dtype=param_dtype,
            **fields,
        )
        x = patchify(images.astype(self.compute_dtype), self.patch_size)
        x = nn.Dense(
            self.width,
            dtype=self.compute_dtype,
            param_dtype=param_dtype,
            kernel_init=torch_kernel,
            bias_init=torch_uniform(x.shape[-1]),
            name="embedding",
        )(x)
        block = partial(
            EncoderBlock,
            attention=attention,
            attention_dense=self.attention_dense,
            mlp_dim=self.mlp_dim,
            activation=_known(self.activation, "activation", ACTIVATIONS),
            dropout_rate=self.dropout_rate,
            norm_epsilon=self.norm_epsilon,
            param_dtype=param_dtype,
        )
        x = apply_blocks(block, self.num_layers, self.share_weights, x, train=train)
        pooled = x.astype(param_dtype).mean(axis=(1, 2))
        return nn.Dense(
            self.num_classes,
            dtype=param_dtype,
            param_dtype=param_dtype,
            kernel_init=torch_kernel,
            bias_init=torch_uniform(self.width),
            name="classifier",
        )(pooled)
