"""Theorem 1: the attention layer that computes a given convolution.

    layer, variables = convolution_as_attention(kernel, bias)
    y = layer.apply(variables, x)  # [B, H, W, D_in] -> [B, h, w, D_out]

A head a tap: its score has its maximum at the offset of the tap (Lemma 2), and its
values are multiplied with the tap's matrix (Lemma 1).
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from attn_cnn_jax.models.attention.convolutional import (
    ENCODINGS,
    PADDINGS,
    ConvolutionalAttention,
)
from attn_cnn_jax.models.scores import at_least_float32
from attn_cnn_jax.theory.lemmas import (
    check_sharpness,
    exact_sharpness,
    quadratic_encoding,
    quadratic_vectors,
)

Variables = dict[str, Any]
Kernel = Any  # an array [K_h, K_w, D_in, D_out]; others are refused with a message


def convolution_as_attention(
    kernel: Kernel,
    bias: Any = None,
    *,
    sharpness: float | None = None,
    encoding: str = "quadratic",
    padding: str = "edge",
    strides: tuple[int, int] = (1, 1),
    dilation: tuple[int, int] = (1, 1),
    max_position: int = 64,
) -> tuple[ConvolutionalAttention, Variables]:
    """Return the layer and the variables of a convolution (Theorem 1).

    The kernel is [K_h, K_w, D_in, D_out], the bias [D_out] or None. Tap [i, j] meets
    the pixel at the offset `dilation * ((i, j) - (size - 1) // 2)` of every
    `strides`-th pixel. `padding` says what is outside: the nearest pixel inside
    ("edge", which a head reaches by itself), zeros ("zero"), the map mirrored at its
    border ("reflect"); or there are no outputs that need it ("valid").

    `sharpness` is the spread of the heads, by default the smallest by which the softmax
    is one-hot in the dtype of the kernel. `encoding` "learned" holds the same scores as
    tables of relative rows and columns, D_p = 3, up to offsets below `max_position`.
    Raises a `ValueError` for what is no convolution or overflows.
    """
    kernel = _as_float(kernel)
    check_convolution(kernel, bias, strides, dilation)
    for name, value, known in (
        ("encoding", encoding, ENCODINGS),
        ("padding", padding, PADDINGS),
    ):
        if value not in known:
            raise ValueError(f"{name}={value!r}; choose from {', '.join(known)}")
    layer = ConvolutionalAttention(
        kernel.shape[3],
        kernel.shape[:2],
        strides=strides,
        dilation=dilation,
        padding=padding,
        encoding=encoding,
        max_position=max_position,
        param_dtype=kernel.dtype,
    )
    return layer, {"params": attention_params(layer, kernel, bias, sharpness)}


def attention_params(
    layer: ConvolutionalAttention,
    kernel: Kernel,
    bias: Any = None,
    sharpness: float | None = None,
) -> dict[str, dict[str, Array]]:
    """Return the parameters by which `layer` computes the convolution of the kernel."""
    kernel = _as_float(kernel)
    sharpness = exact_sharpness(kernel.dtype) if sharpness is None else sharpness
    check_sharpness(sharpness, kernel.dtype)
    offsets = jnp.asarray(layer.taps, kernel.dtype)
    positions = _POSITIONS[layer.encoding](offsets, sharpness, layer.max_position)
    if bias is None:
        bias = jnp.zeros(kernel.shape[3])
    params = {
        **positions,
        "value_kernel": kernel.reshape(-1, *kernel.shape[2:]),
        "value_bias": bias,
    }
    return {"attention": {k: jnp.asarray(v, kernel.dtype) for k, v in params.items()}}


def _quadratic(offsets: Array, sharpness: float, _: int) -> Mapping[str, Array]:
    return {"centers": offsets, "spreads": jnp.full(len(offsets), sharpness)}


def _learned(offsets: Array, sharpness: float, size: int) -> Mapping[str, Array]:
    """Return r_delta = row[delta_1] + column[delta_2], and v of the heads for both."""
    encoding = quadratic_encoding((size, size))
    keys = quadratic_vectors(offsets, sharpness).T
    return {
        "row_embeddings": encoding[:, size - 1],
        "col_embeddings": encoding[size - 1],
        "row_keys": keys,
        "col_keys": keys,
    }


_POSITIONS = {"quadratic": _quadratic, "learned": _learned}


def check_convolution(
    kernel: Kernel,
    bias: Any,
    strides: tuple[int, int],
    dilation: tuple[int, int],
) -> None:
    """Raise a `ValueError` unless these are those of a convolution."""
    if kernel.ndim != 4 or 0 in kernel.shape:
        raise ValueError(
            f"the kernel has shape {kernel.shape}; it must be [K_h, K_w, D_in, D_out]"
        )
    if bias is not None and jnp.shape(bias) != kernel.shape[3:]:
        raise ValueError(
            f"the bias has shape {jnp.shape(bias)} for {kernel.shape[3]} outputs"
        )
    for name, pair in (("strides", strides), ("dilation", dilation)):
        whole = [type(n) is int and n > 0 for n in pair]
        if whole != [True, True]:
            raise ValueError(f"{name}={pair!r} must be two whole numbers above 0")


def _as_float(kernel: Any) -> Array:
    kernel = jnp.asarray(kernel)
    return kernel.astype(at_least_float32(kernel))
