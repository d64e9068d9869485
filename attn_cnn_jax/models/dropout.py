"""Dropout whose masks cost a few integer operations an element.

A mask is a function of the layer's key and of the element's index alone: the same on
any number of devices, in chunks of queries and in micro-batches.
"""

import contextlib
import contextvars
import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, UInt32

# By axis: at which index an array starts in a larger one, and the length of that.
Window = Mapping[int, tuple[Any, int]]

_first_image: contextvars.ContextVar[Any] = contextvars.ContextVar(
    "first_image", default=0
)


@contextlib.contextmanager
def images_from(first: Any) -> Iterator[None]:
    """Let the images of what is traced inside be those of a batch from there on.

    A micro-batch then has the masks that its images have in the whole batch. Inside
    such a context the index is one of the micro-batch.
    """
    token = _first_image.set(_first_image.get() + first)
    try:
        yield
    finally:
        _first_image.reset(token)


class Dropout(nn.Module):
    """Zeroes values at random in training and scales the others by 1 / (1 - rate)."""

    rate: float

    @nn.compact
    def __call__(self, x: Float[Array, "B ..."], *, train: bool) -> Array:
        """Return `x`, in training after dropout."""
        if not train or self.rate == 0:
            return x
        return drop(x, self.rate, seeds(self.make_rng("dropout")))


def seeds(rng: Array) -> UInt32[Array, "2"]:
    """Return the two words of a mask, from a pseudo-random key."""
    words = jax.random.key_data(rng).ravel()
    return jnp.stack([words[0], words[-1]])


def drop(
    x: Float[Array, "B *axes"],
    rate: float,
    words: UInt32[Array, "2"],
    *,
    shared: bool = False,
    window: Window | None = None,
) -> Float[Array, "B *axes"]:
    """Return `x` with a share `rate` < 1 zeroed, the rest scaled by 1 / (1 - rate).

    Its leading axis are the images, or of length 1 for all of them: `shared`.
    """
    images = (0 if shared else _first_image.get(), x.shape[0])
    kept = keep_mask(words, rate, x.shape, {0: images, **(window or {})})
    return jnp.where(kept, x * (1 / (1 - rate)), 0)


def keep_mask(
    words: UInt32[Array, "2"],
    rate: float,
    shape: tuple[int, ...],
    window: Window | None = None,
) -> Bool[Array, "*axes"]:
    """Return where values are kept, each with probability 1 - rate.

    The mask is that of the larger array of which the `window` is a part; the last axis
    is whole.
    """
    leading = range(len(shape) - 1)
    places = [(window or {}).get(axis, (0, shape[axis])) for axis in leading]
    index = jnp.zeros((1,) * len(leading), jnp.uint32)
    for axis, (start, _) in enumerate(places):
        stride = math.prod(size for _, size in places[axis + 1 :])
        along = jnp.asarray(start, jnp.uint32) + jnp.arange(shape[axis], dtype="uint32")
        others = [other for other in leading if other != axis]
        index = index + jnp.expand_dims(along * jnp.uint32(stride % 2**32), others)
    rows = _hash(_hash(index ^ words[0]) + words[1])
    columns = jnp.arange(shape[-1], dtype="uint32")
    columns = _hash(_hash(columns ^ words[1]) + ~words[0])
    columns = jnp.expand_dims(columns, list(leading))
    bits = _hash(rows[..., None] + columns)
    return bits >= jnp.uint32(round(rate * 2**32))


def _hash(x: UInt32[Array, "*axes"]) -> UInt32[Array, "*axes"]:
    """Return a bijection of 32-bit words by which a flipped bit flips each with 1/2.

    Its constants were found by C. Wellons ("Prospecting for Hash Functions", 2018).
    """
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
