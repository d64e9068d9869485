"""Batches of images as a pure function of (seed, step)."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt8


def epoch_rows(
    seed: int, epoch: int, num_images: int, batch_size: int
) -> Int[np.ndarray, "steps B"]:
    """Return the rows of an epoch's batches: a fresh permutation, full batches only."""
    generator = np.random.Generator(np.random.Philox(key=[seed, epoch]))
    steps = num_images // batch_size
    rows = generator.permutation(num_images)[: steps * batch_size]
    return rows.reshape(steps, batch_size).astype(np.int32)


def eval_rows(
    num_images: int, batch_size: int
) -> tuple[Int[np.ndarray, "steps B"], Float[np.ndarray, "steps B"]]:
    """Return rows that visit every image once, in order, and weights, 0 for padding.

    Padding starts again from the first image: where BatchNorm goes by the batch, copies
    of one image would bend its statistics.
    """
    steps = -(-num_images // batch_size)
    rows = np.arange(steps * batch_size, dtype=np.int32)
    weights = (rows < num_images).astype(np.float32)
    rows %= num_images
    return rows.reshape(steps, batch_size), weights.reshape(steps, batch_size)


def augment(
    images: UInt8[Array, "B H W C"], rng: Array, *, crop_padding: int, flip: bool
) -> UInt8[Array, "B H W C"]:
    """Crop each zero-padded image at random, then flip it in one of two cases."""
    crop_rng, flip_rng = jax.random.split(rng)
    batch, height, width, channels = images.shape
    if crop_padding:
        pad = (crop_padding, crop_padding)
        padded = jnp.pad(images, ((0, 0), pad, pad, (0, 0)))
        corners = jax.random.randint(crop_rng, (batch, 2), 0, 2 * crop_padding + 1)

        def crop(image: Array, corner: Array) -> Array:
            start = (corner[0], corner[1], 0)
            return jax.lax.dynamic_slice(image, start, (height, width, channels))

        images = jax.vmap(crop)(padded, corners)
    if flip:
        mirrored = jax.random.bernoulli(flip_rng, 0.5, (batch, 1, 1, 1))
        images = jnp.where(mirrored, images[:, :, ::-1], images)
    return images


def normalize(
    images: UInt8[Array, "B H W C"] | UInt8[np.ndarray, "B H W C"],
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> Float[Array, "B H W C"]:
    """Scale pixels to [0, 1], subtract the mean, divide by the std; float32."""
    scaled = jnp.asarray(images, jnp.float32) / 255
    shape = (1, 1, 1, -1)
    return (scaled - jnp.asarray(mean, jnp.float32).reshape(shape)) / jnp.asarray(
        std, jnp.float32
    ).reshape(shape)
