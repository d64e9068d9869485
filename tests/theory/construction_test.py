"""Theorem 1: attention computes the convolution, in all of its forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_cnn_jax import theory
from attn_cnn_jax.models.attention import QuadraticAttention

PADDINGS = ("edge", "zero", "reflect", "valid")


def drawn(case: int, padding: str) -> dict:
    """A convolution at random: sizes odd and even, oblong grids, strides, dilations."""
    rng = np.random.default_rng(case)
    grid = rng.integers(1, 9, 2)
    size, dilation = rng.integers(1, 5, 2), rng.integers(1, 4, 2)
    if padding == "valid":  # a kernel that fits
        grid = grid + dilation * (size - 1)
    if padding == "reflect":  # a pixel to reflect
        grid = np.maximum(grid, 2)
    depth, features = rng.integers(1, 5, 2)
    return {
        "x": rng.normal(size=(2, *grid, depth)),
        "kernel": rng.normal(size=(*size, depth, features)),
        "bias": rng.normal(size=features),
        "strides": tuple(map(int, rng.integers(1, 4, 2))),
        "dilation": tuple(map(int, dilation)),
        "padding": padding,
    }


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("encoding", ["quadratic", "learned"])
@pytest.mark.parametrize("case", range(4))
def test_attention_is_the_convolution(case, encoding, padding, convolve, x64):
    options = drawn(100 * PADDINGS.index(padding) + case, padding)
    x = options.pop("x")
    wanted = convolve(x, **options)
    kernel, bias = options.pop("kernel"), options.pop("bias")
    layer, variables = theory.convolution_as_attention(
        kernel, bias, encoding=encoding, **options
    )
    actual = jax.jit(layer.apply)(variables, x)
    assert actual.shape == wanted.shape and wanted.size
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=1e-10)


def test_the_layer_is_the_project_s_own_attention(x64):
    """Without strides or padding, it is quadratic attention with these parameters."""
    rng = np.random.default_rng(0)
    x, kernel = (
        jnp.asarray(rng.normal(size=(2, 5, 6, 3))),
        rng.normal(size=(3, 3, 3, 3)),
    )
    layer, variables = theory.convolution_as_attention(kernel, sharpness=2.0)
    ours = QuadraticAttention(9, 0.0, jnp.float64, True, 1.0, 1.0)
    params = {"params": variables["params"]["attention"]}
    np.testing.assert_allclose(
        layer.apply(variables, x), ours.apply(params, x, train=False)[0], atol=1e-13
    )


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("encoding", ["quadratic", "learned"])
def test_lower_precision_keeps_to_its_bound(dtype, encoding, convolve):
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.uniform(-1, 1, (4, 12, 9, 16)), dtype)
    kernel = rng.normal(size=(3, 5, 16, 8)).astype(np.float32)
    wanted = convolve(
        np.asarray(x, float), kernel.astype(float), 0.0, "zero", (1, 1), (1, 1)
    )
    layer, variables = theory.convolution_as_attention(
        kernel, padding="zero", encoding=encoding
    )
    actual = layer.apply(variables, x)
    assert actual.dtype == dtype
    error = np.abs(np.asarray(actual, np.float64) - wanted).max()
    bound = theory.error_bound(kernel, theory.exact_sharpness(dtype), (14, 13), dtype)
    assert 0 < error <= bound
    assert bound < 0.02 * np.abs(kernel).sum((0, 1, 2)).max() * (
        1 if dtype == jnp.float32 else 5
    )


@pytest.mark.parametrize("encoding", ["quadratic", "learned"])
def test_gradients_are_those_of_the_convolution(encoding, convolve, x64):
    """For the values and the image; positions of one-hot heads have none left."""
    rng = np.random.default_rng(2)
    x = jnp.asarray(rng.normal(size=(1, 4, 5, 2)))
    kernel = rng.normal(size=(3, 2, 2, 3))
    layer, variables = theory.convolution_as_attention(
        kernel, padding="zero", strides=(2, 1), encoding=encoding
    )
    loss = lambda variables, x: jnp.square(layer.apply(variables, x)).sum()  # noqa: E731
    of_variables, of_x = jax.jit(jax.grad(loss, (0, 1)))(variables, x)

    def plain(kernel, x):
        y = jax.lax.conv_general_dilated(
            x,
            kernel,
            (2, 1),
            ((1, 1), (0, 1)),
            dimension_numbers=("NHWC", "HWIO") * 1 + ("NHWC",),
        )
        return jnp.square(y).sum()

    of_kernel, wanted = jax.jit(jax.grad(plain, (0, 1)))(jnp.asarray(kernel), x)
    np.testing.assert_allclose(of_x, wanted, atol=1e-10)
    values = of_variables["params"]["attention"]["value_kernel"]
    np.testing.assert_allclose(values.reshape(kernel.shape), of_kernel, atol=1e-10)
    soft, softer = theory.convolution_as_attention(kernel, sharpness=1.0)
    moves = jax.jit(jax.grad(lambda v: jnp.square(soft.apply(v, x)).sum()))(softer)
    assert np.abs(moves["params"]["attention"]["centers"]).min() > 1e-6


def test_a_map_of_one_pixel(convolve, x64):
    """An even kernel at the edge of a map of one pixel: all heads look at it."""
    kernel = np.random.default_rng(3).normal(size=(4, 2, 2, 2))
    layer, variables = theory.convolution_as_attention(kernel)
    x = jnp.array([[[[1.0, -2.0]]]])
    wanted = convolve(x, kernel, 0.0, "edge", (1, 1), (1, 1))
    np.testing.assert_allclose(layer.apply(variables, x), wanted, atol=1e-12)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"kernel": np.zeros((3, 3, 2))}, r"shape \(3, 3, 2\); it must be \[K_h"),
        ({"kernel": np.zeros((3, 0, 2, 2))}, "must be"),
        ({"bias": np.zeros(3)}, r"the bias has shape \(3,\) for 2 outputs"),
        ({"strides": (0, 1)}, r"strides=\(0, 1\) must be two whole numbers"),
        ({"dilation": (-1, 1)}, "dilation=.* must be two whole numbers"),
        ({"padding": "same"}, "padding='same'; choose from edge"),
        ({"encoding": "sine"}, "encoding='sine'; choose from quadratic"),
        ({"sharpness": 1e30}, "scores overflow float32; 14.56 is exact"),
        ({"sharpness": float("nan")}, "must be above 0"),
        ({"sharpness": 0.0}, "must be above 0"),
    ],
)
def test_what_is_no_convolution_is_refused(change, message):
    options = {"kernel": np.zeros((3, 3, 2, 2), np.float32), **change}
    with pytest.raises(ValueError, match=message):
        theory.convolution_as_attention(**options)


def test_the_learned_tables_end():
    kernel = np.zeros((1, 1, 1, 1), np.float32)
    layer, variables = theory.convolution_as_attention(
        kernel, encoding="learned", max_position=4
    )
    with pytest.raises(ValueError, match="larger than attention.max_position=4"):
        layer.apply(variables, jnp.zeros((1, 5, 5, 1)))
