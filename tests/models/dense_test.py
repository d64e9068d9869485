"""The dense layer on a matrix equals Flax's own, and its gradient is one product."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from attn_cnn_jax.models.dense import Dense


@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 3, 4, 5)])
def test_values_and_gradients_are_those_of_flax(shape, x64):
    x = jnp.asarray(np.random.default_rng(0).normal(size=shape))
    results = []
    for layer in (Dense(6, dtype="float64"), nn.Dense(6, dtype="float64")):
        variables = layer.init(jax.random.key(0), x)
        y, pull = jax.vjp(layer.apply, variables, x)
        results.append((y, pull(jnp.cos(jnp.arange(y.size)).reshape(y.shape))))
    for a, b in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13)


def test_the_kernels_gradient_is_over_one_axis():
    x, layer = jnp.ones((2, 3, 4, 5)), Dense(6)
    variables = layer.init(jax.random.key(0), x)
    gradient = jax.grad(lambda variables: layer.apply(variables, x).sum())
    assert "dimension_numbers=(([0], [0]), ([], []))" in str(
        jax.make_jaxpr(gradient)(variables)
    )
