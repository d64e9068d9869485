"""The dense layers of all networks, those of Flax as products of two matrices."""

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
    (of_x, of_kernel), batch = dimension_numbers
    depth = len(of_x)
    trailing = tuple(range(x.ndim - depth, x.ndim))
    as_called = tuple(of_x) == trailing and tuple(of_kernel) == tuple(range(depth))
    if not as_called or any(batch):
        return jax.lax.dot_general(x, kernel, dimension_numbers, **options)
    leading, features = x.shape[: x.ndim - depth], kernel.shape[depth:]
    size = math.prod(x.shape[x.ndim - depth :])
    matrices = x.reshape(-1, size), kernel.reshape(size, -1)
    y = jax.lax.dot_general(*matrices, (((1,), (0,)), ((), ())), **options)
    return y.reshape(*leading, *features)


Dense = partial(nn.Dense, dot_general=dot_general_of_matrices)
DenseGeneral = partial(nn.DenseGeneral, dot_general=dot_general_of_matrices)
