"""Dropout: how often, how independently, and the same in parts as in the whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_cnn_jax.models import dropout

RATE = 0.1
ROWS, COLUMNS = 20_000, 256


@pytest.fixture(scope="module")
def dropped():
    """Masks of several keys, as numbers of mean 0 and variance 1."""
    keys = [
        jax.random.key(0),
        jax.random.key(1),
        jax.random.fold_in(jax.random.key(0), 1),
    ]
    masks = [
        ~dropout.keep_mask(dropout.seeds(key), RATE, (ROWS, COLUMNS)) for key in keys
    ]
    return (np.array(masks) - RATE) / (RATE * (1 - RATE)) ** 0.5


def correlations(numbers):
    """Of all pairs of rows, in standard deviations of what independent ones have."""
    products = numbers @ numbers.T / numbers.shape[1] ** 0.5
    return products[np.triu_indices(len(products), 1)]


def test_values_are_dropped_by_the_rate(dropped):
    assert np.abs(dropped.mean((1, 2))).max() < 4 / (ROWS * COLUMNS) ** 0.5
    for axis in (1, 2):
        means = dropped.mean(axis) * dropped.shape[axis] ** 0.5
        assert 0.9 < means.std() < 1.1 and np.abs(means).max() < 6


def test_rows_columns_and_keys_are_independent(dropped):
    assert np.abs(correlations(dropped.reshape(3, -1))).max() < 4
    for numbers in (dropped[0].T, dropped[0, :: ROWS // 200]):
        found = correlations(numbers.astype(np.float32))
        assert abs(found.mean()) < 4 / len(found) ** 0.5
        assert 0.98 < found.std() < 1.02 and np.abs(found).max() < 8


def test_kept_values_are_scaled():
    y = dropout.drop(jnp.ones((50, 40)), 0.25, dropout.seeds(jax.random.key(0)))
    assert set(np.unique(y)) == {np.float32(0), np.float32(1 / 0.75)}


def test_a_part_has_the_mask_of_the_whole():
    words = dropout.seeds(jax.random.key(2))
    whole = dropout.keep_mask(words, 0.5, (6, 5, 3, 4))
    window = {0: (jnp.asarray(2), 6), 1: (1, 5)}
    part = dropout.keep_mask(words, 0.5, (3, 2, 3, 4), window)
    np.testing.assert_array_equal(part, whole[2:5, 1:3])


def test_images_from_moves_masks_of_images_but_not_of_the_batch():
    x, words = jnp.ones((6, 8)), dropout.seeds(jax.random.key(2))
    whole = dropout.drop(x, 0.5, words)
    with dropout.images_from(2):
        np.testing.assert_array_equal(dropout.drop(x[2:], 0.5, words), whole[2:])
        shared = dropout.drop(x[:1], 0.5, words, shared=True)
    np.testing.assert_array_equal(shared, whole[:1])


def test_without_training_nothing_is_dropped():
    x = jnp.ones((2, 8))
    layer = dropout.Dropout(0.5)
    np.testing.assert_array_equal(layer.apply({}, x, train=False), x)
    rngs = {"dropout": jax.random.key(0)}
    assert (layer.apply({}, x, train=True, rngs=rngs) == 0).any()
