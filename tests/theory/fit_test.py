"""A layer that learns a convolution: what it finds, and that the report says so."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention import QuadraticAttention
from attn_cnn_jax.theory import fit as fit_lib
from attn_cnn_jax.theory import problem as problem_lib
from attn_cnn_jax.theory.fit import FitOptions, fit
from attn_cnn_jax.theory.problem import Problem, named_kernel
from attn_cnn_jax.theory.study import row

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def problem():
    train, test = problem_lib.load_images("digits_8x8")
    return Problem(named_kernel("random", 3, 1, 16), train[:512], test[:64])


@pytest.fixture(scope="module")
def found(problem):
    options = FitOptions(num_heads=16, num_steps=200, record_every=20, batch_size=32)
    return fit(problem, (0, 1), options)


def test_the_heads_find_the_taps(found):
    assert found.num_taps == 9 and (found.covered[:, 0] < 9).all()
    assert found.found.all() and found.covered[:, -1].tolist() == [9, 9]
    assert (found.errors[:, -1] < 1e-2 * found.errors[:, 0]).all()
    assert all(0 < step <= 200 for step in found.found_at)


def test_the_layer_itself_computes_the_convolution(found):
    np.testing.assert_allclose(found.layer_errors(), found.errors[:, -1], rtol=1e-3)


def test_fewer_heads_than_taps_cover_fewer_and_the_same_seed_gives_the_same(problem):
    options = FitOptions(num_heads=4, num_steps=20, record_every=10, batch_size=16)
    few, again = (fit(problem, (3, 4), options) for _ in range(2))
    assert (few.covered <= 4).all() and not few.found.any()
    assert few.found_at == [None, None]
    assert few.sentence().startswith(
        "In 0 of 2 starts the 4 heads cover all 9 taps of the 3 x 3 kernel; the mean"
    )
    for field in ("centers", "spreads", "values", "errors", "covered"):
        np.testing.assert_array_equal(getattr(few, field), getattr(again, field))
    assert not np.array_equal(few.centers[0], few.centers[1])


def test_the_sentence_and_the_row_follow_the_numbers(found):
    covered = np.array([[0, 9, 8, 9], [0, 1, 7, 7]])
    errors = np.array([[1, 0.5, 0.1, 0.25], [1, 0.5, 0.1, 0.75]])
    steps = np.array([0, 5, 10, 15])
    path, width = np.zeros((2, 4, 16, 2)), np.zeros((2, 4, 16))
    result = dataclasses.replace(
        found, steps=steps, centers=path, spreads=width, errors=errors, covered=covered
    )
    assert result.found_at == [15, None]
    assert result.sentence() == (
        "In 1 of 2 starts the 16 heads cover all 9 taps of the 3 x 3 kernel, from step "
        "15 on at the latest; the mean over all starts is 8.0 taps. The median error "
        "after 15 steps is 5.0e-01."
    )
    expected = "| x | 1 of 2 | 8.0 of 9 | 5.0e-01 | 7.5e-01 | 15 |"
    assert row("x", result) == expected
    blind = dataclasses.replace(result, covered=np.ones((2, 4), int))
    assert "without a head" not in blind.sentence()
    blind = dataclasses.replace(blind, errors=1e-3 * errors)
    assert blind.sentence().endswith("imitate the kernel without a head at every tap.")
    sobel = Problem(named_kernel("sobel", 3, 1, 1), *[np.zeros((1, 8, 8, 1))] * 2)
    result = dataclasses.replace(
        result,
        problem=sobel,
        values=np.zeros((2, 16, 1, 1)),
        covered=np.full((2, 4), 6),
    )
    assert result.num_taps == 6 and result.found_at == [0, 0]
    assert "kernel that are not 0, from step 0 on" in result.sentence()


@pytest.mark.parametrize("size", [2, 3])
def test_the_border_is_repeated(size):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 5, 6, 2)).astype(np.float32)
    kernel = rng.normal(size=(size, size, 2, 4)).astype(np.float32)
    expected = np.zeros((2, 5, 6, 4), np.float32)
    for i, j in np.ndindex(5, 6):
        for taps in np.ndindex(size, size):
            down, right = (tap + 1 - (size - 1) // 2 for tap in taps)
            key = np.clip(i + down - 1, 0, 4), np.clip(j + right - 1, 0, 5)
            expected[:, i, j] += x[:, key[0], key[1]] @ kernel[taps]
    np.testing.assert_allclose(
        problem_lib.convolve(x, kernel), expected, rtol=1e-4, atol=1e-5
    )


def test_masses_are_the_mean_attention_of_the_layer():
    rng = np.random.default_rng(1)
    centers, spreads = rng.normal(size=(3, 2)), rng.uniform(1, 3, size=3)
    layer = QuadraticAttention(
        3, 0.0, jnp.float32, isotropic=True, center_std=1.0, spread_std=0.0
    )
    params = {"centers": centers, "spreads": spreads}
    params |= {"value_kernel": np.zeros((3, 1, 1)), "value_bias": np.zeros(1)}
    params = {name: jnp.asarray(a, jnp.float32) for name, a in params.items()}
    x = jnp.zeros((1, 5, 6, 1), jnp.float32)
    _, sown = layer.apply({"params": params}, x, train=False, mutable="intermediates")
    (probs,) = sown["intermediates"]["attention"]
    masses = fit_lib.tap_masses(params["centers"], params["spreads"], 3, (5, 6))
    for down, right in np.ndindex(3, 3):
        expected = np.mean(
            [
                probs[0, :, i, j, i + down - 1, j + right - 1]
                for i in range(1, 4)
                for j in range(1, 5)
            ],
            axis=0,
        )
        np.testing.assert_allclose(masses[:, down, right], expected, rtol=1e-4)


def test_least_squares_find_the_values():
    rng = np.random.default_rng(2)
    means = jnp.asarray(rng.normal(size=(4, 5, 5, 3, 2)), jnp.float32)
    values = jnp.asarray(rng.normal(size=(3, 2, 4)), jnp.float32)
    y = jnp.einsum("bijnc,nce->bije", means, values)
    np.testing.assert_allclose(fit_lib.least_squares(means, y), values, atol=1e-4)


def test_whitened_pixels_are_uncorrelated(problem):
    def largest_correlation(images):
        pixels = images[:, 2:6, 2:6].reshape(len(images), -1)
        correlations = np.corrcoef(pixels.T)
        return np.abs(correlations - np.eye(len(correlations))).max()

    white, test = problem_lib.load_images("digits_8x8", whiten=True)
    assert largest_correlation(problem.train) > 0.5 > 5 * largest_correlation(white)
    np.testing.assert_array_equal(test[:64], problem.test)


def test_crops_are_pieces_of_the_images():
    blocks, _ = problem_lib.load_images("digits")
    assert blocks.shape == (1437, 8, 8, 3)
    steps = (blocks[:, 1:] != blocks[:, :-1]).any(axis=(2, 3))
    assert (steps.sum(axis=1) <= 2).all()  # a row of blocks is four pixels high


@pytest.mark.parametrize(
    "flag, message",
    [
        ("--size=4", "--size=4; take an odd number from 1 to 7."),
        ("--heads=0", "--heads=0"),
        ("--kernel=edges", "--kernel=edges"),
    ],
)
def test_wrong_flags_are_told_in_a_line(flag, message, tmp_path):
    command = [sys.executable, "-m", "attn_cnn_jax.theory", "fit", flag]
    command += [f"--output={tmp_path}/figures"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("error: ") and message in done.stderr
    assert not done.stdout and not list(tmp_path.iterdir())


def test_kernels_and_data_that_there_are_not(tmp_path):
    with pytest.raises(UserError, match="--kernel=edges; choose from random, blur"):
        named_kernel("edges", 3, 1, 1)
    with pytest.raises(UserError, match="--kernel=sobel has 3 x 3 taps; drop --size=5"):
        named_kernel("sobel", 5, 1, 1)
    with pytest.raises(UserError, match="cifar10 is not prepared in"):
        problem_lib.load_images("cifar10", str(tmp_path))
