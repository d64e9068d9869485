"""Dense layers on matrices equal Flax's own, and their gradients are one product."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from attn_cnn_jax.models.dense import Dense, DenseGeneral


@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 3, 4, 5)])
def test_values_and_gradients_are_those_of_flax(shape, x64):
    x = jnp.asarray(np.random.default_rng(0).normal(size=shape))
    assert_equal(Dense(6, dtype="float64"), nn.Dense(6, dtype="float64"), x)


@pytest.mark.parametrize("features, axis", [((2, 3), -1), (6, (-2, -1)), (6, -2)])
def test_several_axes_of_features_or_input(features, axis, x64):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 4, 5)))
    options = {"axis": axis, "dtype": "float64"}
    ours, flax = (kind(features, **options) for kind in (DenseGeneral, nn.DenseGeneral))
    assert_equal(ours, flax, x)


def assert_equal(ours, flax, x):
    results = []
    for layer in (ours, flax):
        variables = layer.init(jax.random.key(0), x)
        y, pull = jax.vjp(layer.apply, variables, x)
        results.append((y, pull(jnp.cos(jnp.arange(y.size)).reshape(y.shape))))
    for a, b in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13)


@pytest.mark.parametrize("layer", [Dense(6), DenseGeneral((2, 3))])
def test_the_kernels_gradient_is_over_one_axis(layer):
    x = jnp.ones((2, 3, 4, 5))
    variables = layer.init(jax.random.key(0), x)
    gradient = jax.grad(lambda variables: layer.apply(variables, x).sum())
    assert "dimension_numbers=(([0], [0]), ([], []))" in str(
        jax.make_jaxpr(gradient)(variables)
    )
