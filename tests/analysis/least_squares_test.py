"""The least squares of maps whose convolution is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.datasets import load_sample_images

from attn_cnn_jax.analysis.closest_convolution import LeastSquares
from attn_cnn_jax.models.attention import QuadraticAttention

SQUARE = [(row, column) for row in (-1, 0, 1) for column in (-1, 0, 1)]


@pytest.fixture(scope="module")
def photographs() -> np.ndarray:
    """2,080 pieces of two photographs, [B, 16, 16, 3] of mean 0 and deviation 1."""
    whole = np.stack(load_sample_images().images)  # [2, 427, 640, 3]
    pieces = whole[:, :416].reshape(2, 26, 16, 40, 16, 3).swapaxes(2, 3)
    pieces = pieces.reshape(-1, 16, 16, 3).astype(np.float32)
    pieces = np.random.default_rng(0).permutation(pieces)
    return (pieces - pieces.mean()) / pieces.std()


def convolve(x: np.ndarray, kernel: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """JAX's convolution of x, float64, on a map that repeats its border."""
    reach = len(kernel) // 2
    around = ((0, 0), (reach, reach), (reach, reach), (0, 0))
    with jax.enable_x64(True):
        y = jax.lax.conv_general_dilated(
            jnp.asarray(np.pad(x, around, mode="edge"), jnp.float64),
            jnp.asarray(kernel, jnp.float64),
            (1, 1),
            "VALID",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        return np.asarray(y) + bias


def fitted(x, y, sizes, parts=1) -> LeastSquares:
    """Fitted to the first half of the images and scored on the second."""
    squares, half = LeastSquares(sizes), len(x) // 2
    for add, rows in (
        (squares.fit, np.arange(half)),
        (squares.score, np.arange(half, len(x))),
    ):
        for part in np.array_split(rows, parts):
            add(x[part], y[part])
    return squares


def test_a_known_convolution_comes_back(photographs, rng):
    x = photographs[:400]
    kernel, bias = rng.normal(size=(3, 3, 3, 5)), rng.normal(size=5)
    y = convolve(x, kernel, bias)
    one, three, five = fitted(x, y, (1, 3, 5)).convolutions()
    assert [c.kernel_size for c in (one, three, five)] == [1, 3, 5]
    np.testing.assert_allclose(three.kernel, kernel, atol=1e-6)
    np.testing.assert_allclose(three.bias, bias, atol=1e-6)
    around = np.pad(kernel, ((1, 1), (1, 1), (0, 0), (0, 0)))
    np.testing.assert_allclose(five.kernel, around, atol=1e-5)
    assert 1 - three.r_squared < 1e-12 and 1 - five.r_squared < 1e-12
    assert 1 - three.r_squared_fitted < 1e-12
    assert 0.1 < one.r_squared < 0.97  # neighbours are alike, but it has one of nine


def test_r_squared_is_that_of_a_plain_regression(photographs, rng):
    """y is no convolution; by `lstsq` on neighbourhoods that a loop gathers."""
    x = photographs[:60, :5, :6]
    y = np.tanh(convolve(x, rng.normal(size=(5, 5, 3, 2)), np.ones(2))) * [3.0, 0.5]
    found = fitted(x, y, (1, 3), parts=4).convolutions()
    for size, convolution in zip((1, 3), found, strict=True):
        rows = []
        for image in x.astype(np.float64):
            for i in range(5):
                for j in range(6):
                    near = [
                        image[min(max(i + r, 0), 4), min(max(j + c, 0), 5)]
                        for r in range(-(size // 2), size // 2 + 1)
                        for c in range(-(size // 2), size // 2 + 1)
                    ]
                    rows.append(np.append(np.concatenate(near), 1.0))
        inputs, outputs = np.array(rows), y.reshape(-1, 2)
        half = 30 * 30
        solution = np.linalg.lstsq(inputs[:half], outputs[:half])[0]
        kernel = solution[:-1].reshape(size, size, 3, 2)
        np.testing.assert_allclose(convolution.kernel, kernel, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(convolution.bias, solution[-1], rtol=1e-6)
        for score, part in (
            (convolution.r_squared, slice(half, None)),
            (convolution.r_squared_fitted, slice(half)),
        ):
            wanted = outputs[part]
            residual = ((wanted - inputs[part] @ solution) ** 2).sum()
            total = ((wanted - wanted.mean(axis=0)) ** 2).sum()
            assert score == pytest.approx(1 - residual / total, rel=1e-9)
            assert score < 0.95


def attend(x: np.ndarray, spread: float, width: int = 8) -> tuple[np.ndarray, ...]:
    """Input and output of nine isotropic heads at the 3 x 3 offsets, float32."""
    rng = np.random.default_rng(1)
    mapped = (x @ rng.normal(size=(3, width))).astype(np.float32)
    layer = QuadraticAttention(
        9, 0.0, jnp.float32, isotropic=True, center_std=1.0, spread_std=0.0
    )
    params = {
        "centers": np.array(SQUARE, np.float32),
        "spreads": np.full(9, spread, np.float32),
        "value_kernel": rng.normal(size=(9, width, width)).astype(np.float32),
        "value_bias": rng.normal(size=width).astype(np.float32),
    }
    apply = jax.jit(lambda params, x: layer.apply({"params": params}, x, train=False))
    return mapped, np.asarray(apply(params, mapped)[0])


def test_sharp_heads_are_a_convolution_and_wide_ones_are_not(photographs):
    """Beyond the border a sharp head looks at the nearest pixel inside."""
    x, y = attend(photographs[:100], spread=15.0)
    one, three = fitted(x, y, (1, 3)).convolutions()
    assert 1 - three.r_squared < 1e-8
    assert one.r_squared < 0.98
    # Three channels lie behind the eight: the kernel is not unique, what it does is.
    wanted = convolve(x[:9], three.kernel, three.bias)
    np.testing.assert_allclose(wanted, y[:9], atol=1e-2)
    scores = [
        fitted(*attend(photographs[:100], spread), (1, 3)).convolutions()[1].r_squared
        for spread in (2.0, 0.5, 0.1)
    ]
    assert 1 > scores[0] > scores[1] > scores[2]
    assert 1 - scores[2] > 0.03  # though neighbours are alike


def test_what_does_not_vary_has_no_r_squared(photographs):
    x, y = photographs[:20], np.full((20, 16, 16, 4), 0.7, np.float32)
    (convolution,) = fitted(x, y, (3,)).convolutions()
    assert convolution.r_squared is None and convolution.r_squared_fitted is None
    np.testing.assert_allclose(convolution.bias, 0.7, rtol=1e-6)
    (nothing,) = fitted(0 * x, photographs[:20], (1,)).convolutions()
    assert nothing.r_squared_fitted == 0 and not nothing.kernel.any()


@pytest.mark.parametrize("height, width", [(16, 16), (7, 9)])
def test_an_output_may_have_every_other_pixel(photographs, rng, height, width):
    x = photographs[:300, :height, :width]
    kernel, bias = rng.normal(size=(3, 3, 3, 2)), rng.normal(size=2)
    y = convolve(x, kernel, bias)[:, ::2, ::2]
    (three,) = fitted(x, y, (3,)).convolutions()
    np.testing.assert_allclose(three.kernel, kernel, atol=1e-5)
