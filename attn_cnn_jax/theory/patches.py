"""A convolution of pixels as attention between patches.

Li et al. 2021, "Can Vision Transformers Perform Convolution?": attention over P x P
patches with nine heads, one for each neighbouring patch and one for the patch itself,
expresses a K x K convolution of the pixels. Output pixel i of a patch, 0 <= i < P,
needs the pixels i - b to i + a, with b and a the kernel's reach on both sides. They lie
in the patch or its neighbours, for all i, where b <= P and a <= P: for an odd kernel,
where K <= 2 P + 1.
"""

from typing import Any

import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float

from attn_cnn_jax.models.attention.convolutional import Axis, ConvolutionalAttention
from attn_cnn_jax.models.patches import patchify, unpatchify
from attn_cnn_jax.theory.construction import (
    Kernel,
    Variables,
    check_convolution,
    convolution_as_attention,
)


class PatchAttention(nn.Module):
    """Attention between the P x P patches of an image, from pixels to pixels."""

    patch_size: int
    attention: ConvolutionalAttention

    def __call__(self, images: Float[Array, "B H W D"]) -> Float[Array, "B H W E"]:
        """Return what every patch's query brings, as the pixels of the patch."""
        return unpatchify(
            self.attention(patchify(images, self.patch_size)), self.patch_size
        )


def convolution_as_patch_attention(
    kernel: Kernel,
    bias: Any = None,
    *,
    patch_size: int,
    dilation: tuple[int, int] = (1, 1),
    sharpness: float | None = None,
) -> tuple[PatchAttention, Variables]:
    """Return attention between patches that computes a convolution of the pixels.

    Pixels outside are zeros. Nine heads where the kernel reaches beyond a pixel in all
    directions, fewer where it does not. Raises a `ValueError` where it reaches beyond
    the neighbouring patches.
    """
    kernel = np.asarray(kernel)
    of_patches = patch_kernel(kernel, patch_size, dilation)
    patch_bias = None if bias is None else np.tile(np.asarray(bias), patch_size**2)
    attention, variables = convolution_as_attention(
        of_patches, patch_bias, sharpness=sharpness, padding="zero"
    )
    layer = PatchAttention(patch_size, attention)
    return layer, {"params": {"attention": variables["params"]}}


def patch_kernel(
    kernel: Kernel,
    patch_size: int,
    dilation: tuple[int, int] = (1, 1),
) -> Float[np.ndarray, "kh kw PPD PPE"]:
    """Return the kernel that does between patches what `kernel` does between pixels.

    A patch's values are in the order of `patchify`: row, column, channel.
    """
    check_convolution(kernel, None, (1, 1), dilation)
    p = patch_size
    pairs = zip(kernel.shape[:2], dilation, strict=True)
    axes = [Axis(size, dilation=spacing) for size, spacing in pairs]
    for name, axis in zip(("rows", "columns"), axes, strict=True):
        if max(axis.reach) > p:
            raise ValueError(
                f"a kernel that reaches {max(axis.reach)} {name} needs pixels beyond "
                f"the neighbours of a patch of patch_size={p}"
            )
    neighbours = [_neighbours(axis) for axis in axes]
    depth, features = kernel.shape[2:]
    shape = (*map(len, neighbours), p, p, depth, p, p, features)
    whole = np.zeros(shape, kernel.dtype)
    for a, row in enumerate(axes[0].taps):
        for b, col in enumerate(axes[1].taps):
            for i in range(p):
                for j in range(p):
                    down, right = divmod(i + row, p), divmod(j + col, p)
                    place = (
                        neighbours[0].index(down[0]),
                        neighbours[1].index(right[0]),
                    )
                    whole[(*place, down[1], right[1], slice(None), i, j)] = kernel[a, b]
    return whole.reshape(*shape[:2], p * p * depth, p * p * features)


def _neighbours(axis: Axis) -> list[int]:
    """Return the patches that a patch needs along an axis, as a kernel's taps."""
    before, behind = axis.reach
    return list(Axis(3 if before else 2 if behind else 1).taps)
