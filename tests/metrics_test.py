"""Sums over images, of a step and of many, and what they come to."""

import jax.numpy as jnp
import numpy as np
import pytest

from attn_cnn_jax.metrics import Sums


@pytest.fixture
def batch():
    """Logits and labels of 12 images of 5 classes, some of them answered right."""
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(12, 5)).astype(np.float32)
    labels = generator.integers(0, 5, 12).astype(np.int32)
    labels[:4] = logits[:4].argmax(-1)
    return logits, labels


def losses(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    logits = logits.astype(np.float64)
    log_sum = np.log(np.exp(logits).sum(-1))
    return log_sum - logits[np.arange(len(labels)), labels]


def test_sums_are_those_of_numpy(batch):
    logits, labels = batch
    weights = (np.arange(12) % 3 > 0).astype(np.float32)
    correct = logits.argmax(-1) == labels
    for given, counted in ((None, np.ones(12)), (weights, weights)):
        passed = None if given is None else jnp.asarray(given)
        sums = Sums.of(jnp.asarray(logits), jnp.asarray(labels), passed)
        wanted = (losses(logits, labels) * counted).sum()
        np.testing.assert_allclose(sums.loss, wanted, rtol=1e-5)
        assert float(sums.correct) == (correct * counted).sum()
        assert float(sums.count) == counted.sum()


@pytest.mark.parametrize("smoothing", [0.1, 0.5])
def test_a_smoothed_label_shares_with_the_other_classes(smoothing):
    """1 - eps on the label, eps / 9 on each of the nine others."""
    generator = np.random.default_rng(1)
    logits = generator.normal(size=(12, 10), scale=3).astype(np.float32)
    labels = generator.integers(0, 10, 12).astype(np.int32)
    labels[:6] = logits[:6].argmax(-1)
    weights = (np.arange(12) % 3 > 0).astype(np.float32)
    targets = np.full((12, 10), smoothing / 9)
    targets[np.arange(12), labels] = 1 - smoothing
    exact = logits.astype(np.float64)
    log_probs = exact - np.log(np.exp(exact).sum(-1, keepdims=True))
    of_images = -(targets * log_probs).sum(-1)
    arrays = [jnp.asarray(a) for a in (logits, labels, weights)]
    sums = Sums.of(*arrays, label_smoothing=smoothing)
    np.testing.assert_allclose(sums.loss, (of_images * weights).sum(), rtol=1e-5)
    plain = Sums.of(*arrays)
    assert float(sums.loss) > float(plain.loss) + 0.1
    assert (sums.correct, sums.count) == (plain.correct, plain.count)


def test_added_batches_have_the_means_of_all_images(batch):
    logits, labels = batch
    total = Sums.zero()
    for part in (slice(0, 7), slice(7, 12)):  # unequal: no mean of means
        sums = Sums.of(jnp.asarray(logits[part]), jnp.asarray(labels[part]))
        total = total + sums.on_host()
    assert total.count == 12
    means = total.means()
    np.testing.assert_allclose(means["loss"], losses(logits, labels).mean(), rtol=1e-6)
    assert means["accuracy"] == (logits.argmax(-1) == labels).mean()


def test_sums_on_the_host_are_exact_where_float32_is_not():
    one = Sums(np.float32(1), np.float32(1), np.float32(1)).on_host()
    large = Sums(2.0**24, 2.0**24, 2.0**24)
    assert (large + one).count == 2**24 + 1
    assert all(type(value) is float for value in (one.loss, one.correct, one.count))


def test_stacked_sums_are_those_of_their_steps():
    stacked = Sums(np.float32([1.5, 2.5]), np.float32([3, 4]), np.float32([8, 8]))
    assert list(stacked.of_steps()) == [Sums(1.5, 3.0, 8.0), Sums(2.5, 4.0, 8.0)]
    assert list(Sums(np.float32(1.5), 3, 8).of_steps()) == [Sums(1.5, 3, 8)]
