"""What the attention layers share: keys, dropout of probabilities, mixing by axes."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from attn_cnn_jax.models.initializers import torch_uniform
from attn_cnn_jax.models.scores import mix, mix_separable, separable_probs

Keys = Float[Array, "B H W ..."] | None  # pixels or, projected, [B, H, W, N, D_h]


_SEPARABLE_FROM = 256  # pixels; below, one product over the whole grid is faster


def dropout_probs(probs: Array, rate: float, *, train: bool) -> Array:
    """`probs` with dropout in training; one mask for each leading index."""
    return nn.Dropout(rate, name="dropout")(probs, deterministic=not train)


def value_params(module: nn.Module, num_heads: int, width: int, dtype: Any):
    """Kernel [N, D, D] and bias [D] of the map from all heads to the output.

    Every head mixes the whole width (D_h = D_out, paper, section 2.2): there is no
    projection per head before mixing.
    """
    init = torch_uniform(num_heads * width)
    kernel = module.param("value_kernel", init, (num_heads, width, width), dtype)
    return kernel, module.param("value_bias", init, (width,), dtype)


def mix_by_axes(
    module: Any, x, rows, cols, kernel, *, train: bool, shared_mask: bool
) -> Array:
    """Mix with the probabilities of a row term plus a column term.

    Dropout needs the whole probabilities; without it they factorise, which is faster
    on all but small grids, and are built only to be captured.
    """
    drops = train and module.dropout_rate > 0
    small = x.shape[1] * x.shape[2] < _SEPARABLE_FROM
    if drops or small or module.is_mutable_collection("intermediates"):
        probs = separable_probs(rows, cols)[None]
        module.sow("intermediates", "attention", probs)
        if drops:
            if not shared_mask:
                probs = jnp.broadcast_to(probs, (x.shape[0], *probs.shape[1:]))
            probs = dropout_probs(probs, module.dropout_rate, train=train)
        if drops or small:
            return mix(x, probs, kernel)
    return mix_separable(x, jax.nn.softmax(rows), jax.nn.softmax(cols), kernel)
