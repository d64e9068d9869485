"""The paper's fully attentional network for image classification."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from attn_cnn_jax.models.attention import (
    ATTENTIONS,
    HeadlessAttention,
    Keys,
    layer_class,
)
from attn_cnn_jax.models.encoder import (
    ACTIVATIONS,
    EncoderBlock,
    apply_layer,
    make_blocks,
)
from attn_cnn_jax.models.initializers import torch_kernel, torch_uniform
from attn_cnn_jax.models.patches import patchify


def _known(name: Any, field: str, choices: Mapping[str, Any]) -> str:
    """Return `name` if it is one of the `choices`."""
    if name not in choices:
        raise ValueError(f"{field} is {name!r}; choose from {', '.join(choices)}")
    return name


class SelfAttentionNetwork(nn.Module):
    """Patches, attention blocks on the grid, the mean over pixels, a linear classifier.

    Every block has the full grid and the full width; see `models.attention` for the
    fields of `attention`, its `name` included. `num_heads` is one number or one for
    each layer, 0 for none. With `share_weights` all layers are one block, which attends
    to the keys of its first pass (report, section 4.1).

    What is kept for the backward pass shrinks with `remat`, by which every layer is
    computed again there, and with `query_chunk`, rows of the grid whose queries are
    scored at a time (0: all).
    """

    num_classes: int
    patch_size: int
    width: int
    num_layers: int
    num_heads: int | tuple[int, ...]
    mlp_dim: int
    activation: str
    dropout_rate: float
    norm_epsilon: float
    attention_dense: bool
    share_weights: bool
    query_chunk: int
    remat: bool
    compute_dtype: str
    attention: Mapping[str, Any]

    def setup(self) -> None:
        """Make blocks and classifier; `embed` makes what the images decide."""
        self.blocks = make_blocks(self._block, self.num_layers, self.share_weights)
        dtype = self._param_dtype()
        self.classifier = nn.Dense(
            self.num_classes,
            dtype=dtype,
            param_dtype=dtype,
            kernel_init=torch_kernel,
            bias_init=torch_uniform(self.width),
        )

    def __call__(
        self, images: Float[Array, "B H W C"], *, train: bool
    ) -> Float[Array, "B num_classes"]:
        """Return the logits of normalised images."""
        x, keys = self.embed(images, train=train), None
        for layer in range(self.num_layers):
            x, keys = self.layer(x, keys, layer, train=train)
        return self.classify(x)

    @nn.compact
    def embed(
        self, images: Float[Array, "B H W C"], *, train: bool
    ) -> Float[Array, "B h w D"]:
        """Embed the patches of normalised images, as the first layer takes them."""
        x = patchify(images.astype(self.compute_dtype), self.patch_size)
        return nn.Dense(
            self.width,
            dtype=self.compute_dtype,
            param_dtype=self._param_dtype(),
            kernel_init=torch_kernel,
            bias_init=torch_uniform(x.shape[-1]),
            name="embedding",
        )(x)

    def layer(
        self, x: Float[Array, "B h w D"], keys: Keys, layer: int, *, train: bool
    ) -> tuple[Float[Array, "B h w D"], Keys]:
        """Return `x` and keys after a layer, from 0 (keys of the first are None)."""
        return apply_layer(
            self.blocks,
            self.share_weights,
            layer,
            x,
            keys,
            train=train,
            remat=self.remat,
        )

    def classify(self, x: Float[Array, "B h w D"]) -> Float[Array, "B num_classes"]:
        """Return the logits of the last layer's output."""
        return self.classifier(x.astype(self._param_dtype()).mean(axis=(1, 2)))

    @nn.nowrap
    def _param_dtype(self) -> Any:
        return jnp.promote_types(jnp.float32, self.compute_dtype)

    @nn.nowrap
    def _block(self, name: str, layer: int) -> EncoderBlock:
        return EncoderBlock(
            attention=self._attention(self._heads_of(layer)),
            attention_dense=self.attention_dense,
            mlp_dim=self.mlp_dim,
            activation=_known(self.activation, "activation", ACTIVATIONS),
            dropout_rate=self.dropout_rate,
            norm_epsilon=self.norm_epsilon,
            param_dtype=self._param_dtype(),
            name=name,
        )

    @nn.nowrap
    def _attention(self, num_heads: int) -> Callable[..., nn.Module]:
        layer, dtype = self.attention_layer, self._param_dtype()
        if num_heads == 0 and not getattr(layer, "heads_share_width", False):
            return partial(HeadlessAttention, param_dtype=dtype)
        fields = dict(self.attention)
        if self.query_chunk:
            fields["query_chunk"] = self.query_chunk
        layer = ATTENTIONS[fields.pop("name")].layer
        return partial(layer, num_heads=num_heads, param_dtype=dtype, **fields)

    @property
    def attention_layer(self) -> Any:
        """Return the class of the attention layers, with the facts that it declares."""
        name = _known(self.attention.get("name"), "attention.name", ATTENTIONS)
        return layer_class(ATTENTIONS[name].layer)

    @nn.nowrap
    def _heads_of(self, layer: int) -> int:
        if isinstance(self.num_heads, int):
            return self.num_heads
        if self.share_weights or len(self.num_heads) != self.num_layers:
            wanted = "one number" + (
                "" if self.share_weights else f", or {self.num_layers} of them"
            )
            raise ValueError(f"num_heads is {self.num_heads}, not {wanted}")
        return self.num_heads[layer]
