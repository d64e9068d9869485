"""A convolution to imitate, and the images on which a layer imitates it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attn_cnn_jax import data
from attn_cnn_jax.config import base_config
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention.convolutional import Axis

GRID = 8  # pixels, the side of the crops
CHANNELS = 32  # of the output of a random kernel
_MOST_CROPS = 4096, 360  # of training and of test images
_LARGEST = GRID - 1  # side of a kernel that one query at least sees whole
_RIDGE = 0.01  # of the mean variance, so that constant pixels stay constant

_FIXED = {
    "sobel": ((1, 0, -1), (2, 0, -2), (1, 0, -1)),
    "laplace": ((0, 1, 0), (1, -4, 1), (0, 1, 0)),
}
KERNELS = ("random", "blur", *_FIXED)


@dataclasses.dataclass(frozen=True)
class Problem:
    """The kernel of a convolution and images of `GRID` x `GRID` pixels, normalised.

    `train` may be whitened; `test` are other images, as they are.
    """

    kernel: Float[np.ndarray, "K K C E"]
    train: Float[np.ndarray, "M H W C"]
    test: Float[np.ndarray, "M2 H W C"]

    @property
    def tap_norms(self) -> Float[np.ndarray, "K K"]:
        """The norm of the weights of every tap."""
        return np.sqrt(np.square(self.kernel).sum(axis=(2, 3)))


def check_kernel(name: str, size: int) -> None:
    """Raise a `UserError` for a kernel of a name or a size that there is not."""
    if name not in KERNELS:
        raise UserError(f"--kernel={name}; choose from {', '.join(KERNELS)}.")
    if size % 2 == 0 or not 1 <= size <= _LARGEST:
        raise UserError(f"--size={size}; take an odd number from 1 to {_LARGEST}.")
    if name in _FIXED and size != 3:
        raise UserError(f"--kernel={name} has 3 x 3 taps; drop --size={size}.")


def named_kernel(
    name: str, size: int, in_channels: int, out_channels: int, *, seed: int = 0
) -> Float[np.ndarray, "K K C E"]:
    """Return the kernel of that name, `size` x `size` taps.

    `random` draws every weight from a normal distribution, by `seed`. The others filter
    each channel by itself, so that E = C: `blur` is the mean of all taps, `sobel` the
    derivative along a row, `laplace` the sum of both second derivatives.
    """
    check_kernel(name, size)
    if name == "random":
        shape = size, size, in_channels, out_channels
        generator = np.random.Generator(np.random.Philox(seed))
        return generator.normal(size=shape).astype(np.float32)
    taps = np.asarray(_FIXED.get(name, np.full((size, size), 1 / size**2)), np.float32)
    return taps[:, :, None, None] * np.eye(in_channels, dtype=np.float32)


def convolve(
    x: Float[Array, "B H W C"] | Float[np.ndarray, "B H W C"],
    kernel: Float[Array, "K K C E"] | Float[np.ndarray, "K K C E"],
) -> Float[Array, "B H W E"]:
    """Return the convolution of images whose border pixels are repeated outside.

    Where a tap is outside it reads the nearest pixel inside, as does a sharp head.
    Kernel [i, j] belongs to the offset (i, j) - (K - 1) // 2, key minus query.
    """
    reach = Axis(kernel.shape[0]).reach
    padded = jnp.pad(x, ((0, 0), reach, reach, (0, 0)), mode="edge")
    return jax.lax.conv_general_dilated(
        padded,
        jnp.asarray(kernel),
        (1, 1),
        "VALID",
        None,
        None,
        ("NHWC", "HWIO", "NHWC"),
    )


def load_images(
    dataset: str, data_dir: str = "", *, whiten: bool = False
) -> tuple[Float[np.ndarray, "M H W C"], Float[np.ndarray, "M2 H W C"]]:
    """Return crops of the training and of the test images of a dataset, normalised.

    From each image that is larger than `GRID` x `GRID` one crop is taken, at a random
    place, of 4,096 training and 360 test images at most. With `whiten` the training
    crops lose the correlations of their pixels. Raises a `UserError` where the dataset
    is not there.
    """
    config = base_config().dataset
    config.update(name=dataset, data_dir=data_dir)
    loaded = data.load(config)
    crops = []
    for split, most in zip((loaded.train, loaded.test), _MOST_CROPS, strict=True):
        generator = np.random.Generator(np.random.Philox(most))
        cropped = _crop(split.images[:most], generator)
        crops.append(np.asarray(data.normalize(cropped, loaded.mean, loaded.std)))
    train, test = crops
    return (_whitened(train) if whiten else train), test


def _crop(images: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    height, width = images.shape[1:3]
    if min(height, width) < GRID:
        raise UserError(
            f"the images have {height} x {width} pixels; take a dataset of images of "
            f"{GRID} x {GRID} or more."
        )
    tops = generator.integers(0, height - GRID + 1, len(images))
    lefts = generator.integers(0, width - GRID + 1, len(images))
    crops = (
        image[top : top + GRID, left : left + GRID]
        for image, top, left in zip(images, tops, lefts, strict=True)
    )
    return np.stack(list(crops))


def _whitened(images: Float[np.ndarray, "M H W C"]) -> Float[np.ndarray, "M H W C"]:
    """Return images of which all pixels and channels are nearly uncorrelated (ZCA)."""
    flat = images.reshape(len(images), -1).astype(np.float64)
    flat = flat - flat.mean(axis=0)
    variances, directions = np.linalg.eigh(flat.T @ flat / len(flat))
    gains = (variances + _RIDGE * variances.mean()) ** -0.5
    white = (flat @ directions * gains) @ directions.T
    return white.reshape(images.shape).astype(np.float32)
