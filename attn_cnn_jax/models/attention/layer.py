"""The attention layer on a grid of pixels: its scores are all that variants differ in.

A layer also says of each of its parameters what the rest of the package has to know:
which axis counts the heads, and how often an image meets it.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from attn_cnn_jax.models.initializers import torch_uniform
from attn_cnn_jax.models.scores import (
    mix,
    mix_separable,
    separable_probs,
    softmax_over_keys,
)

Keys = Float[Array, "B H W ..."] | None  # pixels or, projected, [B, H, W, N, D_h]
Scores = Array | tuple[Array, Array]

_SEPARABLE_FROM = 256  # pixels; below, one product over the whole grid is faster


def never(x: Any, keys: Any) -> int:
    """Return 0: the parameter is added or looked up, not multiplied with the map."""
    return 0


def once_a_pixel(x: Any, keys: Any) -> int:
    """Return the number of pixels of the maps `x` [B, H, W, D]."""
    return x.size // x.shape[-1]


def once_a_key(x: Any, keys: Any) -> int:
    """Return the number of pixels where the layer computes keys, else 0."""
    return once_a_pixel(x, keys) if keys is None else 0


def once_a_pair_of_rows(x: Any, keys: Any) -> int:
    """Return H^2, as the published code applies the keys of relative rows."""
    return x.shape[1] ** 2


def once_a_pair_of_columns(x: Any, keys: Any) -> int:
    """Return W^2, as the published code applies the keys of relative columns."""
    return x.shape[2] ** 2


class Parameter(NamedTuple):
    """The facts of a layer's parameter.

    `head_axis` is the axis that counts heads: the layer without a head is the layer
    without that part of it (None: the heads share the parameter). `times(x, keys)` is
    how often a call multiplies with all of its values, as the papers count: `never`
    where a submodule counts them (None: not known). A head whose `is_value` parameters
    are 0 adds nothing to the output of the layer.
    """

    head_axis: int | None = None
    times: Callable[[Any, Any], int] | None = None
    is_value: bool = False


def dropout_probs(probs: Array, rate: float, *, train: bool) -> Array:
    """Drop probabilities in training, by one mask for each leading index."""
    return nn.Dropout(rate, name="dropout")(probs, deterministic=not train)


def value_params(module: nn.Module, num_heads: int, width: int, dtype: Any):
    """Return kernel [N, D, D] and bias [D] of the map from all heads to the output.

    Every head mixes the whole width (D_h = D_out, paper, section 2.2): there is no
    projection per head before mixing.
    """
    init = torch_uniform(num_heads * width)
    kernel = module.param("value_kernel", init, (num_heads, width, width), dtype)
    return kernel, module.param("value_bias", init, (width,), dtype)


class PixelAttention(nn.Module):
    """Attention between the pixels of a map, with heads as wide as the map.

    A variant is a subclass with its own `scores`, its fields, and its `parameters`: the
    facts of all parameters, by their path in the layer. While "intermediates" are being
    captured the layer sows its probabilities as `attention`.
    """

    num_heads: int
    dropout_rate: float
    param_dtype: Any

    parameters: ClassVar[Mapping[str, Parameter]] = {
        "value_kernel": Parameter(0, once_a_pixel, is_value=True),
        "value_bias": Parameter(),
    }
    # Scores of positions alone have a dropout mask an image, or one for the batch.
    one_mask_for_the_batch: ClassVar[bool] = False

    def scores(self, x: Float[Array, "B H W D"], keys: Keys) -> tuple[Scores, Keys]:
        """Return scores [B, N, Hq, Wq, Hk, Wk], and keys for a later pass.

        Scores that do not depend on the image are [N, Hq, Wq, Hk, Wk] or, where they
        are the sum of a row and a column term, the pair [N, Hq, Hk], [N, Wq, Wk].
        `keys` are those that an earlier pass returned, or None.
        """
        raise NotImplementedError

    def output_map(self, width: int) -> tuple[Array, Array]:
        """Return kernel [N, D, D] and bias [D] of the map behind the heads."""
        return value_params(self, self.num_heads, width, self.param_dtype)

    @nn.compact
    def __call__(
        self, x: Float[Array, "B H W D"], keys: Keys = None, *, train: bool
    ) -> tuple[Float[Array, "B H W D"], Keys]:
        """Mix the pixels of `x`, scored against `keys` (those of `x` if None)."""
        scores, keys = self.scores(x, keys)
        kernel, bias = self.output_map(x.shape[-1])
        y = self._mix(x, scores, kernel, train=train)
        return y + bias.astype(x.dtype)[None, None, None], keys

    def _mix(self, x: Array, scores: Scores, kernel: Array, *, train: bool) -> Array:
        """Mix by the softmax of the scores.

        Probabilities of separable scores factorise, which is faster on all but small
        grids; they are built for dropout, which needs them whole, and for capture.
        """
        drops = train and self.dropout_rate > 0
        if isinstance(scores, tuple):
            dense = drops or x.shape[1] * x.shape[2] < _SEPARABLE_FROM
            if dense or self.is_mutable_collection("intermediates"):
                probs = separable_probs(*scores)[None]
                self.sow("intermediates", "attention", probs)
            if not dense:
                rows, cols = map(jax.nn.softmax, scores)
                return mix_separable(x, rows, cols, kernel)
        else:
            probs = softmax_over_keys(scores)
            probs = probs if probs.ndim == 6 else probs[None]
            self.sow("intermediates", "attention", probs)
        if drops:
            if not self.one_mask_for_the_batch:
                probs = jnp.broadcast_to(probs, (x.shape[0], *probs.shape[1:]))
            probs = dropout_probs(probs, self.dropout_rate, train=train)
        return mix(x, probs, kernel)


class HeadlessAttention(nn.Module):
    """The sum over no heads: the bias of the values, the same at every pixel.

    Nothing is left of queries, keys and positions.
    """

    param_dtype: Any

    parameters: ClassVar[Mapping[str, Parameter]] = {"value_bias": Parameter()}

    @nn.compact
    def __call__(
        self, x: Float[Array, "B H W D"], keys: Keys = None, *, train: bool
    ) -> tuple[Float[Array, "B H W D"], Keys]:
        """Return the bias at every pixel, and `keys` as they came."""
        grid = x.shape[1:3]
        self.sow("intermediates", "attention", jnp.zeros((1, 0, *grid, *grid)))
        # As PyTorch starts the bias of a map without inputs.
        init = nn.initializers.zeros
        bias = self.param("value_bias", init, x.shape[-1:], self.param_dtype)
        return jnp.broadcast_to(bias.astype(x.dtype), x.shape), keys
