"""Vision Transformers on the map of a convolutional stem: the report's and Google's.

Tokens are the patches of the map in row-major order behind the class token, if any.
"""

from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from attn_cnn_jax.models.attention import Parameter, never
from attn_cnn_jax.models.dropout import Dropout
from attn_cnn_jax.models.encoder import apply_layer, make_blocks
from attn_cnn_jax.models.normalization import BatchNorm, make_layer_norm
from attn_cnn_jax.models.patches import patchify
from attn_cnn_jax.models.resnet import ResidualBlock, convolution, kaiming_kernel
from attn_cnn_jax.models.vit.block import (
    INITIALIZERS,
    TokenAttention,
    TokenBlock,
    TokenKeys,
)


class VisionTransformer(nn.Module):
    """Stem, patches of its map, class token, positions, blocks, readout, classifier.

    `stem_width` channels of a ResNet-18's first convolution and stage; 0: patches of
    the image itself. `class_token`: "random", uniform noise in place of a patch, drawn
    anew for each image and each pass (the report's code), "learned" or "none".
    `readout`: the "mean" over all tokens or the class "token". With `share_weights` all
    layers are one block with the keys of its first pass (report, section 4.1). With
    `remat` every layer is computed again in the backward pass, not kept.
    """

    num_classes: int
    stem_width: int
    patch_size: int
    width: int
    num_layers: int
    num_heads: int
    head_dim: int
    mlp_dim: int
    activation: str
    class_token: str
    normalized_residual: bool
    projection_bias: bool
    final_norm: bool
    readout: str
    share_weights: bool
    remat: bool
    initialization: str
    dropout_rate: float
    attention_dropout_rate: float
    norm_epsilon: float
    compute_dtype: str

    parameters: ClassVar = {"positions": Parameter(None, never)}
    attention_layer: ClassVar = TokenAttention

    def setup(self) -> None:
        """Make blocks and readout; `embed` makes what the images decide."""
        self.blocks = make_blocks(
            lambda name, layer: self.block(name), self.num_layers, self.share_weights
        )
        dtype, draws = self._param_dtype(), INITIALIZERS[self.initialization]
        if self.final_norm:
            self.last_norm = make_layer_norm(self.norm_epsilon, dtype, "final_norm")
        self.classifier = nn.Dense(
            self.num_classes,
            dtype=dtype,
            param_dtype=dtype,
            kernel_init=draws.classifier,
            bias_init=draws.classifier_bias(self.width),
        )

    def __call__(
        self,
        images: Float[Array, "B H W C"],
        *,
        train: bool,
        class_token: Float[Array, "B P"] | None = None,
    ) -> Float[Array, "B num_classes"]:
        """Return the logits of normalised images.

        `class_token`: what a random class token is to be, P values of a patch (row,
        column, channel); None draws it, in training from the rng "class_token", else
        as `evaluation_draws` does for the first B images of the seed 0.
        """
        x, keys = self.embed(images, train=train, class_token=class_token), None
        for layer in range(self.num_layers):
            x, keys = self.layer(x, keys, layer, train=train)
        return self.classify(x)

    @nn.compact
    def embed(
        self,
        images: Float[Array, "B H W C"],
        *,
        train: bool,
        class_token: Float[Array, "B P"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Return the tokens of normalised images, as the first layer takes them."""
        dtype, draws = self._param_dtype(), INITIALIZERS[self.initialization]
        x = images.astype(self.compute_dtype)
        if self.stem_width:
            x = Stem(self.stem_width, dtype, name="stem")(x, train=train)
        x = patchify(x, self.patch_size)
        x = x.reshape(x.shape[0], -1, x.shape[-1])
        if self.class_token == "random":
            if class_token is None:
                class_token = self._draw_class_token(images, train=train)
            x = jnp.concatenate([class_token.astype(x.dtype)[:, None], x], axis=1)
        x = nn.Dense(
            self.width,
            dtype=x.dtype,
            param_dtype=dtype,
            kernel_init=draws.embedding,
            bias_init=draws.embedding_bias(x.shape[-1]),
            name="embedding",
        )(x)
        if self.class_token == "learned":
            token = self.param(
                "class_token", nn.initializers.zeros, (self.width,), dtype
            )
            token = jnp.broadcast_to(token, (x.shape[0], 1, self.width))
            x = jnp.concatenate([token.astype(x.dtype), x], axis=1)
        positions = self.param("positions", draws.position, x.shape[1:], dtype)
        x = x + positions.astype(x.dtype)[None]
        return Dropout(self.dropout_rate)(x, train=train)

    def layer(
        self, x: Float[Array, "B T D"], keys: TokenKeys, layer: int, *, train: bool
    ) -> tuple[Float[Array, "B T D"], TokenKeys]:
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

    def classify(self, x: Float[Array, "B T D"]) -> Float[Array, "B num_classes"]:
        """Return the logits of the last layer's output."""
        if self.final_norm:
            x = self.last_norm(x).astype(x.dtype)
        x = x.astype(self._param_dtype())
        return self.classifier(x[:, 0] if self.readout == "token" else x.mean(axis=1))

    @nn.nowrap
    def _param_dtype(self) -> Any:
        return jnp.promote_types(jnp.float32, self.compute_dtype)

    @nn.nowrap
    def block(self, name: str) -> TokenBlock:
        """Return a layer of the network."""
        dtype = self._param_dtype()
        attention = partial(
            TokenAttention,
            num_heads=self.num_heads,
            head_dim=self.head_dim,
            projection_bias=self.projection_bias,
            dropout_rate=self.attention_dropout_rate,
            initializers=INITIALIZERS[self.initialization],
            param_dtype=dtype,
        )
        return TokenBlock(
            attention=attention,
            mlp_dim=self.mlp_dim,
            activation=self.activation,
            dropout_rate=self.dropout_rate,
            norm_epsilon=self.norm_epsilon,
            normalized_residual=self.normalized_residual,
            initializers=INITIALIZERS[self.initialization],
            param_dtype=dtype,
            name=name,
        )

    def _draw_class_token(self, images: Array, *, train: bool) -> Array:
        if not train:
            indices = jnp.arange(images.shape[0])
            draws = self.evaluation_draws(jax.random.key(0), indices, images.shape[-1])
            return draws["class_token"]
        shape = (images.shape[0], self._patch_dim(images.shape[-1]))
        return jax.random.uniform(self.make_rng("class_token"), shape)

    def _patch_dim(self, channels: int) -> int:
        return self.patch_size**2 * (self.stem_width or channels)

    @nn.nowrap
    def evaluation_draws(
        self, rng: Array, indices: Int[Array, "B"], channels: int
    ) -> dict[str, Float[Array, "B P"]]:
        """Draw the class token of each image, from `rng` and its index alone."""
        if self.class_token != "random":
            return {}

        def draw(index: Array) -> Array:
            image_rng = jax.random.fold_in(rng, index)
            return jax.random.uniform(image_rng, (self._patch_dim(channels),))

        return {"class_token": jax.vmap(draw)(indices)}


class Stem(nn.Module):
    """A 3x3 convolution and the first stage of a ResNet-18, at full resolution."""

    width: int
    param_dtype: Any

    @nn.compact
    def __call__(
        self, x: Float[Array, "B H W C"], *, train: bool
    ) -> Float[Array, "B H W D"]:
        """Return the map of `width` channels."""
        x = convolution(
            self.width,
            3,
            1,
            dtype=x.dtype,
            param_dtype=self.param_dtype,
            name="conv",
        )(x)
        x = nn.relu(BatchNorm(self.param_dtype, name="norm")(x, train=train))
        for i in range(2):
            x = ResidualBlock(
                width=self.width,
                stride=1,
                bottleneck=False,
                param_dtype=self.param_dtype,
                convolution=partial(convolution, kernel_init=kaiming_kernel),
                name=f"block_{i}",
            )(x, train=train)
        return x
