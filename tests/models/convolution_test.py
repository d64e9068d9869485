"""The gradient of a convolution's kernel by products, against XLA's own."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_cnn_jax.models.convolution import convolve

NUMBERS = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}


@pytest.mark.parametrize("size, stride", [(1, 1), (1, 2), (3, 1), (3, 2), (5, 3)])
@pytest.mark.parametrize("grid", [(6, 6), (7, 4)])
def test_gradients_equal_those_of_xla(size, stride, grid, x64):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(2, *grid, 3)))
    kernel = jnp.asarray(rng.normal(size=(size, size, 3, 4)))
    options = {
        "window_strides": (stride, stride),
        "padding": [(size // 2, size // 2)] * 2,
        **NUMBERS,
    }
    results = []
    for form in (convolve, jax.lax.conv_general_dilated):
        y, pull = jax.vjp(partial(form, **options), x, kernel)
        cotangent = jnp.cos(jnp.arange(y.size)).reshape(y.shape)
        results.append((y, *pull(cotangent)))
    for actual, wanted in zip(*results, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "kernel, strides, padding, products",
    [
        ((3, 3), (1, 1), [(1, 1)] * 2, True),
        ((3, 3), (1, 2), [(1, 1)] * 2, False),
        ((3, 1), (1, 1), [(1, 1), (0, 0)], False),
        ((3, 3), (1, 1), [(0, 0)] * 2, False),
        ((2, 2), (1, 1), [(1, 1)] * 2, False),
    ],
)
def test_what_the_products_are_not_written_for_is_left_to_xla(
    kernel, strides, padding, products
):
    def loss(kernel, x):
        return convolve(x, kernel, strides, padding, **NUMBERS).sum()

    shapes = jnp.ones((*kernel, 2, 2)), jnp.ones((1, 6, 6, 2))
    text = str(jax.make_jaxpr(jax.grad(loss))(*shapes))
    assert ("dot_general" in text) is products
