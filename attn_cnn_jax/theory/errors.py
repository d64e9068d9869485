"""The error of an attention layer whose heads are not quite sharp, and its bound."""

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from attn_cnn_jax.theory.construction import convolution_as_attention
from attn_cnn_jax.theory.lemmas import error_bound
from attn_cnn_jax.theory.problem import convolve


@dataclasses.dataclass(frozen=True)
class ErrorCurve:
    """The largest error of any output against the sharpness, in one dtype.

    `bounds` is what `error_bound` says of it.
    """

    dtype: str
    sharpness: tuple[float, ...]
    errors: tuple[float, ...]
    bounds: tuple[float, ...]


def error_curves(
    kernel: Float[np.ndarray, "K K D E"],
    x: Float[np.ndarray, "B H W D"],
    sharpness: Sequence[float],
    dtypes: Sequence[str] = ("float64", "float32", "bfloat16"),
) -> list[ErrorCurve]:
    """Return the errors of attention in each dtype, against the convolution in float64.

    Pixels outside are the nearest inside. Needs 64-bit types (`jax_enable_x64`).
    """
    curves = []
    grid, largest = x.shape[1:3], float(np.abs(x).max())
    for dtype in dtypes:
        rounded = jnp.asarray(x, dtype)
        params = kernel if dtype == "float64" else kernel.astype(np.float32)
        wanted = convolve(np.asarray(rounded, np.float64), params.astype(np.float64))
        errors, bounds = [], []
        for one in sharpness:
            layer, variables = convolution_as_attention(params, sharpness=one)
            y = np.asarray(layer.apply(variables, rounded), np.float64)
            errors.append(float(np.abs(y - np.asarray(wanted)).max()))
            bounds.append(error_bound(params, one, grid, dtype, largest))
        curves.append(ErrorCurve(dtype, tuple(sharpness), tuple(errors), tuple(bounds)))
    return curves
