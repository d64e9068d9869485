"""Attention in the place of a convolution: a head for each tap of the kernel.

Theorem 1: with as many heads as the kernel has taps and relative positions of three
dimensions, self-attention expresses the convolution. `ConvolutionalAttention` is called
as `flax.linen.Conv` is; its scores are those of the quadratic or of the learned layer.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from attn_cnn_jax.models.attention.layer import Keys, PixelAttention, value_params
from attn_cnn_jax.models.attention.learned import LearnedPositionAttention
from attn_cnn_jax.models.attention.quadratic import QuadraticAttention
from attn_cnn_jax.models.scores import mix_separable

_OUTSIDE = {"edge": None, "valid": None, "zero": "constant", "reflect": "reflect"}
PADDINGS = tuple(_OUTSIDE)


class Axis(NamedTuple):
    """What a convolution does along one axis of the grid, in pixels.

    Tap i looks at the offset `dilation * (i - (size - 1) // 2)`: the middle of the
    kernel (of an even one, the tap before it) lies on the query, as in XLA's "SAME"
    with a stride of 1. Queries are every `stride`-th pixel, from the first on.
    """

    size: int
    stride: int = 1
    dilation: int = 1

    @property
    def taps(self) -> tuple[int, ...]:
        """The offsets, key minus query, that the kernel's entries look at."""
        middle = (self.size - 1) // 2
        return tuple(self.dilation * (i - middle) for i in range(self.size))

    @property
    def reach(self) -> tuple[int, int]:
        """How many pixels the kernel needs before a query, and behind it."""
        return -self.taps[0], self.taps[-1]

    def queries(self, length: int, padding: str) -> range:
        """Return the pixels that have an output, of a map of this length."""
        before, behind = self.reach if padding == "valid" else (0, 0)
        return range(before, max(length - behind, before), self.stride)


class _Windowed(PixelAttention):
    """Position-only attention whose output has a grid and channels of its own.

    There is no dropout. The probabilities that are sown are those of every pixel of the
    map for every other; what a head gives the pixels outside is not among them.
    """

    if TYPE_CHECKING:  # checkers do not know that Flax has keyword-only fields
        features: int
        axes: tuple[Axis, Axis]
        padding: str
    else:
        features: int = dataclasses.field(kw_only=True)
        axes: tuple[Axis, Axis] = dataclasses.field(kw_only=True)
        padding: str = dataclasses.field(kw_only=True)

    @nn.compact
    def __call__(
        self, x: Float[Array, "B H W D"], keys: Keys = None, *, train: bool
    ) -> tuple[Float[Array, "B h w E"], Keys]:
        """Mix the pixels of `x` at every query; keys are handed through."""
        grid, mode = x.shape[1:3], _OUTSIDE[self.padding]
        outside = tuple(axis.reach if mode else (0, 0) for axis in self.axes)
        if mode:
            x = jnp.pad(x, ((0, 0), *outside, (0, 0)), mode=mode)
        scores: Any = self.scores(x, None)[0]
        rows, cols = (
            jax.nn.softmax(of_axis)[:, before : before + length]
            for of_axis, (before, _), length in zip(scores, outside, grid, strict=True)
        )
        if self.is_mutable_collection("intermediates"):
            to_rows, to_cols = (
                probs[:, :, before : before + length]
                for probs, (before, _), length in zip(
                    (rows, cols), outside, grid, strict=True
                )
            )
            probs = to_rows[:, :, None, :, None] * to_cols[:, None, :, None, :]
            self.sow("intermediates", "attention", probs[None])
        row_queries, col_queries = (
            axis.queries(length, self.padding)
            for axis, length in zip(self.axes, grid, strict=True)
        )
        kernel, bias = self.output_map(x.shape[-1])
        y = mix_separable(x, _pick(rows, row_queries), _pick(cols, col_queries), kernel)
        return y + bias.astype(x.dtype)[None, None, None], keys

    def output_map(self, width: int) -> tuple[Array, Array]:
        """Return kernel [N, D, E] and bias [E] of the map behind the heads."""
        dtype = self.param_dtype
        return value_params(self, self.num_heads, width, dtype, self.features)


def _pick(probs: Float[Array, "N query key"], queries: range) -> Array:
    return probs[:, queries.start : queries.stop : queries.step]


class _WindowedQuadratic(_Windowed, QuadraticAttention):
    pass


class _WindowedLearned(_Windowed, LearnedPositionAttention):
    pass


class ConvolutionalAttention(nn.Module):
    """Self-attention in the place of a convolution, with a head for each tap.

    Called as `flax.linen.Conv` is: [B, H, W, D] -> [B, h, w, features]. The heads are
    in the order of the taps, row by row; the parameters are those of `encoding`,
    "quadratic" (a centre and a spread a head) or "learned" (tables of relative rows and
    columns, of offsets below `max_position`), and start at random as published: it is
    `theory.convolution_as_attention` that puts the heads on the taps.

    `padding` says what is outside: "zero" and "reflect" pixels, which are keys too;
    nothing ("edge"), so that a sharp head whose target is outside looks at the nearest
    pixel inside; with "valid", only pixels are queries whose kernel lies inside.
    """

    features: int
    kernel_size: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    padding: str = "edge"
    encoding: str = "quadratic"
    max_position: int = 64
    param_dtype: Any = jnp.float32

    @property
    def axes(self) -> tuple[Axis, Axis]:
        """What the convolution does along the rows, and along the columns."""
        rows, cols = zip(self.kernel_size, self.strides, self.dilation, strict=True)
        return Axis(*rows), Axis(*cols)

    @property
    def taps(self) -> tuple[tuple[int, int], ...]:
        """The offset (row, column), key minus query, of every head."""
        rows, cols = self.axes
        return tuple((row, col) for row in rows.taps for col in cols.taps)

    @nn.compact
    def __call__(self, x: Float[Array, "B H W D"]) -> Float[Array, "B h w E"]:
        """Return the output of every query."""
        return ENCODINGS[self.encoding](self)(x, train=False)[0]


def _quadratic(conv: ConvolutionalAttention) -> Any:
    return _WindowedQuadratic(
        **_window(conv), isotropic=True, center_std=2.0, spread_std=0.01
    )


def _learned(conv: ConvolutionalAttention) -> Any:
    return _WindowedLearned(
        **_window(conv), max_position=conv.max_position, position_dim=3
    )


def _window(conv: ConvolutionalAttention) -> Mapping[str, Any]:
    return {
        "name": "attention",
        "num_heads": math.prod(conv.kernel_size),
        "dropout_rate": 0.0,
        "param_dtype": conv.param_dtype,
        "features": conv.features,
        "axes": conv.axes,
        "padding": conv.padding,
    }


ENCODINGS = {"quadratic": _quadratic, "learned": _learned}
