"""The two operations of SAN on k x k neighbourhoods: subtract and aggregate.

Tap t = row * k + column of a neighbourhood is the pixel at offset (row, column) -
(k - 1) / 2; beyond the border the map is reflected, the edge not repeated, or zero:
`padding` "reflect" or "zero". k is odd.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn_cnn_jax.models.scores import at_least_float32

_PADDINGS = {"reflect": "reflect", "zero": "constant"}


def neighbourhoods(
    x: Float[Array, "B H W C"], kernel_size: int, *, padding: str = "reflect"
) -> Float[Array, "B H W T C"]:
    """Copy out the taps around every pixel: T = kernel_size^2 times the memory."""
    shape = (x.shape[1], x.shape[2])
    x = _pad(x, kernel_size, padding)
    return jnp.stack([_tap(x, t, kernel_size, shape) for t in range(kernel_size**2)], 3)


def subtract(
    queries: Float[Array, "B H W C"],
    keys: Float[Array, "B H W C"],
    kernel_size: int,
    *,
    padding: str = "reflect",
) -> Float[Array, "B H W T C"]:
    """Subtract from each query the keys around it."""
    return queries[:, :, :, None] - neighbourhoods(keys, kernel_size, padding=padding)


def aggregate(
    values: Float[Array, "B H W C"],
    weights: Float[Array, "B H W T G"],
    *,
    padding: str = "reflect",
) -> Float[Array, "B H W C"]:
    """Sum weight times value over the taps; channel c has weight plane c mod G.

    T is an odd square and G divides C; weights do not broadcast. Neighbourhoods are
    never copied out: the sum runs over shifted views, backward over one row of taps at
    a time. Differentiable in reverse mode only (a custom VJP), to any order.
    """
    if weights.ndim != 5 or values.shape[:-1] != weights.shape[:3]:
        raise ValueError(
            f"weights of shape {weights.shape} are not [B, H, W, T, G] for values "
            f"[B, H, W, C] of shape {values.shape}"
        )
    kernel_size = round(weights.shape[3] ** 0.5)
    channels, planes = values.shape[-1], weights.shape[-1]
    odd_square = kernel_size**2 == weights.shape[3] and kernel_size % 2 == 1
    if not odd_square or not planes or channels % planes:
        raise ValueError(
            f"{weights.shape[3]} taps are not the square of an odd number, or "
            f"{planes} weight planes do not divide {channels} channels"
        )
    return _aggregate(values, weights, kernel_size, padding)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _aggregate(values: Array, weights: Array, kernel_size: int, padding: str) -> Array:
    shape, dtype = (values.shape[1], values.shape[2]), at_least_float32(values)
    padded = _planes(_pad(values, kernel_size, padding), weights.shape[-1])
    total = jnp.zeros((), dtype)
    for t in range(kernel_size**2):
        tap = _tap(padded, t, kernel_size, shape).astype(dtype)
        total = total + tap * weights[:, :, :, t, None].astype(dtype)
    return total.reshape(values.shape).astype(values.dtype)


def _forward(values: Array, weights: Array, kernel_size: int, padding: str):
    return _aggregate(values, weights, kernel_size, padding), (values, weights)


def _backward(kernel_size: int, padding: str, residuals, gradient: Array):
    values, weights = residuals
    dtype = at_least_float32(values)
    height, width = values.shape[1:3]
    border = kernel_size - 1

    def pad(x: Array) -> Array:
        return _pad(x, kernel_size, padding)

    padded = pad(values.astype(dtype))
    gradient = _planes(gradient.astype(dtype), weights.shape[-1])

    def one_row_of_taps(row: Array, gradients: tuple[Array, Array]):
        of_padded, of_weights = gradients
        first = row * kernel_size
        lines = jax.lax.dynamic_slice_in_dim(padded, row, height, axis=1)
        lines = _planes(lines, weights.shape[-1])
        products, spread = [], jnp.zeros((), dtype)
        for col in range(kernel_size):
            products.append((lines[:, :, col : col + width] * gradient).sum(3))
            tap = jax.lax.dynamic_index_in_dim(weights, first + col, 3, keepdims=False)
            columns = (col, border - col)
            back = gradient * tap[:, :, :, None].astype(dtype)
            spread = spread + jnp.pad(back, ((0, 0), (0, 0), columns, (0, 0), (0, 0)))
        spread = spread.reshape(*spread.shape[:3], -1)
        before = jax.lax.dynamic_slice_in_dim(of_padded, row, height, axis=1)
        update = jax.lax.dynamic_update_slice_in_dim
        return (
            update(of_padded, before + spread, row, axis=1),
            update(
                of_weights, jnp.stack(products, 3).astype(weights.dtype), first, axis=3
            ),
        )

    of_padded, of_weights = jax.lax.fori_loop(
        0,
        kernel_size,
        one_row_of_taps,
        (jnp.zeros_like(padded), jnp.zeros_like(weights)),
    )
    shape = jax.ShapeDtypeStruct(values.shape, dtype)
    (of_values,) = jax.linear_transpose(pad, shape)(of_padded)
    return of_values.astype(values.dtype), of_weights


_aggregate.defvjp(_forward, _backward)


def _pad(x: Array, kernel_size: int, padding: str) -> Array:
    if kernel_size < 1 or kernel_size % 2 == 0:
        raise ValueError(f"kernel_size={kernel_size} is not odd and at least 1")
    if padding not in _PADDINGS:
        raise ValueError(f"padding={padding!r} is not one of {', '.join(_PADDINGS)}")
    border = (kernel_size - 1) // 2
    height, width = x.shape[1:3]
    if padding == "reflect" and border > min(height, width) - 1:
        largest = 2 * min(height, width) - 1
        raise ValueError(
            f"kernel_size={kernel_size} is too large for a map of {height} x {width} "
            f"pixels, which reflects at most {largest} x {largest} neighbourhoods"
        )
    sides = ((0, 0), (border, border), (border, border), (0, 0))
    return jnp.pad(x, sides, mode=_PADDINGS[padding])


def _tap(padded: Array, tap: int, kernel_size: int, shape: tuple[int, int]) -> Array:
    row, col = divmod(tap, kernel_size)
    return padded[:, row : row + shape[0], col : col + shape[1]]


def _planes(x: Array, num_planes: int) -> Array:
    """Split the channels c = s G + g into (s, g)."""
    return x.reshape(*x.shape[:-1], -1, num_planes)
