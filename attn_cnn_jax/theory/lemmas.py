"""The two lemmas behind Theorem 1, and how sharp a head has to be.

The paper's score of a key at the offset delta = k - q is v . r_delta once its queries
and content keys are 0 (Eq. 8). Lemma 1: heads that each look at one shift compute a
convolution. Lemma 2: with r_delta = (|delta|^2, delta_1, delta_2) a vector v of each
head makes it look at one shift, the more sharply the longer v is.

The sharpness s of a head is its spread, the unit of `models.attention.quadratic`: the
score is -s^2 / 2 |delta - Delta|^2, so the paper's alpha is s^2 / 2.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attn_cnn_jax.models.scores import mix, relative_offsets
from attn_cnn_jax.theory import dimensions

_MARGIN = 1.01  # of the exact sharpness, for scores that were themselves rounded
_LARGEST_DISTANCE = 2.0**16  # pixels along an axis


def shift_probs(
    offsets: Float[Array, "N 2"], grid: tuple[int, int]
) -> Float[Array, "Hq Wq N Hk Wk"]:
    """Return the probabilities of heads that each look at one shift (Lemma 1).

    Head h at query q gives all to the pixel q + offsets[h] (row, column), or to the
    nearest pixel of the grid where that lies outside.
    """

    def of_axis(axis: int) -> Array:
        targets = jnp.arange(grid[axis])[:, None] + offsets[:, axis][None]
        inside = jnp.clip(targets, 0, grid[axis] - 1).astype(int)
        return jax.nn.one_hot(inside, grid[axis])  # [query, N, key]

    rows, cols = of_axis(0), of_axis(1)
    return rows[:, None, :, :, None] * cols[None, :, :, None, :]


def attention_of_shifts(
    x: Float[Array, "B H W D"],
    offsets: Float[Array, "N 2"],
    value_kernel: Float[Array, "N D E"],
) -> Float[Array, "B H W E"]:
    """Return sum_h x[q + offsets[h]] value_kernel[h], by attention (Lemma 1).

    With the offsets of a kernel's taps and its matrices this is the convolution, where
    pixels outside are those at the border.
    """
    probs = shift_probs(offsets, (x.shape[1], x.shape[2]))
    return mix(x, probs[None].astype(x.dtype), value_kernel)


def quadratic_encoding(grid: tuple[int, int]) -> Float[Array, "rows columns 3"]:
    """Return r_delta = (|delta|^2, delta_1, delta_2) of all offsets (Lemma 2).

    Offset (row, column) stands at [row + H - 1, column + W - 1].
    """
    rows, cols = (np.arange(1.0 - length, length) for length in grid)
    encoding = dimensions.quadratic_encoding(rows, cols)
    return jnp.asarray(encoding.reshape(len(rows), len(cols), 3))


def quadratic_vectors(
    offsets: Float[Array, "N 2"], sharpness: float
) -> Float[Array, "N 3"]:
    """Return v = -alpha (1, -2 Delta_1, -2 Delta_2), alpha = s^2 / 2 (Lemma 2).

    Then v . r_delta = -alpha (|delta - Delta|^2 - |Delta|^2): largest at the offset
    Delta of the head, and lower by alpha at least everywhere else.
    """
    ones = jnp.ones_like(offsets[:, :1])
    return -(sharpness**2) / 2 * jnp.concatenate([ones, -2 * offsets], axis=1)


def quadratic_probs(
    offsets: Float[Array, "N 2"], sharpness: float, grid: tuple[int, int]
) -> Float[Array, "Hq Wq N Hk Wk"]:
    """Return the softmax over the keys of v . r_delta, as the paper writes it (Eq. 8).

    As the sharpness grows these become `shift_probs`.
    """
    scores = quadratic_encoding(grid) @ quadratic_vectors(offsets, sharpness).T
    rows = relative_offsets(grid[0]) + grid[0] - 1
    cols = relative_offsets(grid[1]) + grid[1] - 1
    scores = scores[rows[:, None, :, None], cols[None, :, None, :]]  # [Hq Wq Hk Wk N]
    return jax.nn.softmax(jnp.moveaxis(scores, -1, 2), axis=(-2, -1))


def leaked_mass(sharpness: float, grid: tuple[int, int]) -> float:
    """Return the most that a head of this sharpness gives to others than its target.

    Along an axis the others get z = 2 sum_m exp(-s^2 m^2 / 2), m = 1, 2, ..., times
    what the target gets, which so is 1 / (1 + z). For a target outside the grid the
    nearest pixel is ahead of the others by more.
    """
    others = []
    for length in grid:
        distances = np.arange(1, length, dtype=np.float64)
        others.append(2 * float(np.exp(-((sharpness * distances) ** 2) / 2).sum()))
    rows, cols = others
    return (rows + cols + rows * cols) / ((1 + rows) * (1 + cols))


def error_bound(
    kernel: Float[Any, "Kh Kw D E"],
    sharpness: float,
    grid: tuple[int, int],
    dtype: Any = jnp.float32,
    largest_input: float = 1.0,
) -> float:
    """Return the most by which attention and convolution differ in any output.

    With |x| <= X (`largest_input`) and S the largest sum over taps and inputs of
    |kernel|, of one output: 2 X S times `leaked_mass`, as what a head gives away comes
    back from a pixel that differs by 2 X at most; and X S times the rounding of the
    products and of their sum in `dtype`. `grid` are the pixels that are keys.
    """
    taps, inputs = math.prod(kernel.shape[:2]), kernel.shape[2]
    largest_sum = float(np.abs(np.asarray(kernel, np.float64)).sum((0, 1, 2)).max())
    sums = jnp.promote_types(jnp.float32, dtype)  # in which products are added
    rounding = 4 * float(jnp.finfo(dtype).eps)  # kernel, mean twice, and the output
    rounding += (taps * inputs + sum(grid)) * float(jnp.finfo(sums).eps)
    leaked = 2 * leaked_mass(sharpness, grid)
    return largest_input * largest_sum * (leaked + 2 * rounding)


def exact_sharpness(dtype: Any = jnp.float32) -> float:
    """Return the sharpness from which the softmax is one-hot in `dtype`.

    A neighbour of the target is exp(-s^2 / 2) times as likely, which rounds to 0 below
    half the smallest number of the dtype (of the probabilities: at least float32).
    """
    probs = jnp.finfo(jnp.promote_types(jnp.float32, dtype))
    log_smallest = math.log(2) * (probs.minexp - probs.nmant - 1)
    return _MARGIN * math.sqrt(-2 * log_smallest)


def sharpness_for(
    error: float,
    kernel: Float[Any, "Kh Kw D E"],
    grid: tuple[int, int],
    dtype: Any = jnp.float32,
    largest_input: float = 1.0,
) -> float:
    """Return the smallest sharpness whose `error_bound` is no more than `error`.

    Raises a `ValueError` where rounding in `dtype` alone may be more.
    """
    low, high = 0.0, exact_sharpness(dtype)

    def bound(sharpness: float) -> float:
        return error_bound(kernel, sharpness, grid, dtype, largest_input)

    if not error >= bound(high):
        raise ValueError(
            f"an error of {error:g} cannot be promised in {jnp.dtype(dtype).name}: "
            f"rounding alone may reach {bound(high):.2g}"
        )
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if bound(middle) <= error else (middle, high)
    return high


def check_sharpness(sharpness: float, dtype: Any) -> None:
    """Raise a `ValueError` unless scores of this sharpness are numbers of `dtype`."""
    largest = math.sqrt(float(jnp.finfo(dtype).max)) / _LARGEST_DISTANCE
    if not 0 < sharpness <= largest:
        name, enough = jnp.dtype(dtype).name, exact_sharpness(dtype)
        raise ValueError(
            f"sharpness={sharpness:g} must be above 0 and at most {largest:.2g}, where "
            f"scores overflow {name}; {enough:.4g} is exact"
        )
