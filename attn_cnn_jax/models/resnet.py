"""ResNets for 32 x 32 images, the convolutional baseline of Table 1."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from attn_cnn_jax.models.attention.convolutional import ConvolutionalAttention
from attn_cnn_jax.models.convolution import convolve
from attn_cnn_jax.models.initializers import torch_kernel, torch_uniform
from attn_cnn_jax.models.normalization import BatchNorm

kaiming_kernel = nn.initializers.variance_scaling(2.0, "fan_out", "normal")
KERNELS = {"torch": torch_kernel, "kaiming": kaiming_kernel}


def convolution(
    features: int, size: int, stride: int, *, kernel_init: Any = torch_kernel, **options
) -> nn.Module:
    """Return the convolution of a ResNet, padded with zeros, without bias."""
    return nn.Conv(
        features,
        (size, size),
        strides=stride,
        padding=size // 2,
        use_bias=False,
        kernel_init=kernel_init,
        conv_general_dilated=convolve,
        **options,
    )


def attention(
    features: int, size: int, stride: int, *, encoding: str, **options
) -> nn.Module:
    """Return the attention layer that can take the place of `convolution`."""
    del options["dtype"]  # it computes in that of its input
    return ConvolutionalAttention(
        features,
        (size, size),
        strides=(stride, stride),
        padding="zero",
        encoding=encoding,
        **options,
    )


class ResidualBlock(nn.Module):
    """A residual block: `relu(convolutions(x) + shortcut(x))`.

    basic: 3x3, 3x3; bottleneck: 1x1, 3x3, 1x1 with four times the width at the end. The
    stride is on the first 3x3; the shortcut is the identity where the shape allows it,
    else a 1x1 convolution with BatchNorm.
    """

    width: int
    stride: int
    bottleneck: bool
    param_dtype: Any
    convolution: Callable[..., nn.Module] = convolution

    @nn.compact
    def __call__(self, x: Float[Array, "B H W C"], *, train: bool) -> Array:
        """Return the block's output, on a map smaller by `stride`."""

        def layer(x: Array, features: int, size: int, stride: int, name: str) -> Array:
            x = self.convolution(
                features,
                size,
                stride,
                dtype=x.dtype,
                param_dtype=self.param_dtype,
                name=f"{name}conv",
            )(x)
            return BatchNorm(self.param_dtype, name=f"{name}norm")(x, train=train)

        width, stride = self.width, self.stride
        features = 4 * width if self.bottleneck else width
        if self.bottleneck:
            y = nn.relu(layer(x, width, 1, 1, "1_"))
            y = nn.relu(layer(y, width, 3, stride, "2_"))
            y = layer(y, features, 1, 1, "3_")
        else:
            y = nn.relu(layer(x, width, 3, stride, "1_"))
            y = layer(y, features, 3, 1, "2_")
        if stride != 1 or x.shape[-1] != features:
            x = layer(x, features, 1, stride, "shortcut_")
        return nn.relu(x + y)


class ResNet(nn.Module):
    """ResNet with a 3x3 stem and four stages of widths 1, 2, 4, 8 times `width`.

    The mean over what is left of the grid (4 x 4 of 32 x 32) feeds the classifier. With
    an `encoding` attention layers take the place of all convolutions (Theorem 1).
    """

    num_classes: int
    blocks: tuple[int, int, int, int]
    bottleneck: bool
    width: int
    compute_dtype: str
    initialization: str = "torch"
    encoding: str = ""

    @nn.compact
    def __call__(
        self, images: Float[Array, "B H W C"], *, train: bool
    ) -> Float[Array, "B num_classes"]:
        """Return the logits of normalised images."""
        param_dtype = jnp.promote_types(jnp.float32, self.compute_dtype)
        if self.encoding:
            conv = partial(attention, encoding=self.encoding)
        else:
            conv = partial(convolution, kernel_init=KERNELS[self.initialization])
        x = conv(
            self.width,
            3,
            1,
            dtype=self.compute_dtype,
            param_dtype=param_dtype,
            name="stem_conv",
        )(images.astype(self.compute_dtype))
        x = nn.relu(BatchNorm(param_dtype, name="stem_norm")(x, train=train))
        for stage, num_blocks in enumerate(self.blocks):
            for i in range(num_blocks):
                x = ResidualBlock(
                    width=self.width * 2**stage,
                    stride=2 if stage > 0 and i == 0 else 1,
                    bottleneck=self.bottleneck,
                    param_dtype=param_dtype,
                    convolution=conv,
                    name=f"stage_{stage}_block_{i}",
                )(x, train=train)
        pooled = x.astype(param_dtype).mean(axis=(1, 2))
        return nn.Dense(
            self.num_classes,
            dtype=param_dtype,
            param_dtype=param_dtype,
            kernel_init=torch_kernel,
            bias_init=torch_uniform(pooled.shape[-1]),
            name="classifier",
        )(pooled)


RESNETS = {
    "resnet10": partial(ResNet, blocks=(1, 1, 1, 1), bottleneck=False),
    "resnet18": partial(ResNet, blocks=(2, 2, 2, 2), bottleneck=False),
    "resnet34": partial(ResNet, blocks=(3, 4, 6, 3), bottleneck=False),
    "resnet50": partial(ResNet, blocks=(3, 4, 6, 3), bottleneck=True),
    "resnet101": partial(ResNet, blocks=(3, 4, 23, 3), bottleneck=True),
    "resnet152": partial(ResNet, blocks=(3, 8, 36, 3), bottleneck=True),
}
# The same networks with attention in the place of every convolution.
RESNETS_AS_ATTENTION = {f"{name}_as_attention": net for name, net in RESNETS.items()}
