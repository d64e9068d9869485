"""The published SAN and its hierarchical version."""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from attn_cnn_jax.models.normalization import BatchNorm
from attn_cnn_jax.models.san.bottleneck import Bottleneck, dense


def _norm_relu(x: Array, param_dtype: Any, name: str, *, train: bool) -> Array:
    return nn.relu(BatchNorm(param_dtype, name=name)(x, train=train))


def _classify(x: Array, num_classes: int, param_dtype: Any) -> Array:
    pooled = x.astype(param_dtype).mean(axis=(1, 2))
    return dense(num_classes, param_dtype, "classifier")(pooled)


class SAN(nn.Module):
    """Stages of bottlenecks, each on half the map of the one before.

    A stage halves the map by a maximum, changes the width, and ends in a norm.
    """

    num_classes: int
    attention: str
    widths: tuple[int, ...]
    num_blocks: tuple[int, ...]
    kernel_sizes: tuple[int, ...]
    projection_bias: bool
    compute_dtype: str

    @nn.compact
    def __call__(
        self, images: Float[Array, "B H W C"], *, train: bool
    ) -> Float[Array, "B num_classes"]:
        """Return the logits of normalised images."""
        dtype = jnp.promote_types(jnp.float32, self.compute_dtype)
        x = images.astype(self.compute_dtype)
        x = dense(self.widths[0], dtype, "stem_conv", bias=False)(x)
        x = _norm_relu(x, dtype, "stem_norm", train=train)
        stages = zip(self.widths, self.num_blocks, self.kernel_sizes, strict=True)
        for i, (width, num_blocks, kernel_size) in enumerate(stages):
            if min(x.shape[1:3]) < 2:
                raise ValueError(
                    f"the images are too small for {len(self.widths)} stages, each of "
                    "which halves the map"
                )
            x = nn.max_pool(x, (2, 2), strides=(2, 2))
            x = dense(width, dtype, f"stage_{i}_conv", bias=False)(x)
            for j in range(num_blocks):
                x, _ = Bottleneck(
                    attention=self.attention,
                    kernel_size=kernel_size,
                    projection_bias=self.projection_bias,
                    param_dtype=dtype,
                    name=f"stage_{i}_block_{j}",
                )(x, train=train)
            x = _norm_relu(x, dtype, f"stage_{i}_norm", train=train)
        return _classify(x, self.num_classes, dtype)


class HierarchicalSAN(nn.Module):
    """Passes through the same bottlenecks, with the keys of the first (report, 4.2).

    The whole map and one width throughout. Each pass has a linear map before and a
    norm behind of its own; in a pass the blocks are swept `num_sweeps` times.
    """

    num_classes: int
    attention: str
    width: int
    num_passes: int
    num_blocks: int
    num_sweeps: int
    kernel_size: int
    projection_bias: bool
    pre_activation: bool
    compute_dtype: str

    @nn.compact
    def __call__(
        self, images: Float[Array, "B H W C"], *, train: bool
    ) -> Float[Array, "B num_classes"]:
        """Return the logits of normalised images."""
        dtype = jnp.promote_types(jnp.float32, self.compute_dtype)
        x = images.astype(self.compute_dtype)
        x = dense(self.width, dtype, "stem_conv", bias=False)(x)
        x = _norm_relu(x, dtype, "stem_norm", train=train)
        shared = [
            Bottleneck(
                attention=self.attention,
                kernel_size=self.kernel_size,
                projection_bias=self.projection_bias,
                pre_activation=self.pre_activation,
                param_dtype=dtype,
                name=f"block_{i}",
            )
            for i in range(self.num_blocks)
        ]
        keys = None
        for i in range(self.num_passes):
            x = dense(self.width, dtype, f"pass_{i}_conv", bias=False)(x)
            for block in shared * self.num_sweeps:
                x, keys = block(x, keys, train=train)
            x = _norm_relu(x, dtype, f"pass_{i}_norm", train=train)
        return _classify(x, self.num_classes, dtype)
