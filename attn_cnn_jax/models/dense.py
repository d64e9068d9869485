"""The dense layer of all networks, `flax.linen.Dense` on a matrix."""

import math
from functools import partial
from typing import Any

import jax
from flax import linen as nn
from jaxtyping import Array


def dot_general_of_matrices(
    x: Array, kernel: Array, dimension_numbers: Any, **options: Any
) -> Array:
    """Compute `jax.lax.dot_general` as a dense layer calls it, with x as a matrix.

    The kernel's gradient is then a product over one axis. Over several axes XLA copies
    the transposed cotangent on a CPU, which took a fifth of a step of hierarchical SAN.
    """
    (contracted, _), _ = dimension_numbers
    if x.ndim <= 2 or tuple(contracted) != (x.ndim - 1,):
        return jax.lax.dot_general(x, kernel, dimension_numbers, **options)
    *leading, depth = x.shape
    matrix = x.reshape(math.prod(leading), depth)
    y = jax.lax.dot_general(matrix, kernel, (((1,), (0,)), ((), ())), **options)
    return y.reshape(*leading, kernel.shape[-1])


Dense = partial(nn.Dense, dot_general=dot_general_of_matrices)
