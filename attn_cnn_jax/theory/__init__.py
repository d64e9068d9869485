"""Theorem 1 as code: what attention has to be to compute a convolution.

    layer, variables = theory.convolution_as_attention(kernel, bias)
    y = layer.apply(variables, x)

`lemmas` has the two lemmas and the sharpness that an error needs, `patches` attention
between patches.
"""

from attn_cnn_jax.theory.construction import attention_params, convolution_as_attention
from attn_cnn_jax.theory.lemmas import (
    attention_of_shifts,
    error_bound,
    exact_sharpness,
    leaked_mass,
    quadratic_encoding,
    quadratic_probs,
    quadratic_vectors,
    sharpness_for,
    shift_probs,
)
from attn_cnn_jax.theory.patches import convolution_as_patch_attention, patch_kernel

__all__ = [
    "attention_params",
    "attention_of_shifts",
    "convolution_as_attention",
    "convolution_as_patch_attention",
    "error_bound",
    "exact_sharpness",
    "leaked_mass",
    "patch_kernel",
    "quadratic_encoding",
    "quadratic_probs",
    "quadratic_vectors",
    "sharpness_for",
    "shift_probs",
]
