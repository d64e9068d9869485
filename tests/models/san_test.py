"""SAN's two operations against loops over pixels, and what they cost."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_cnn_jax.models.san import Bottleneck, aggregate, neighbourhoods, subtract

# Kernel size, and a map that is just large enough, not square.
SIZES = [(3, (2, 3)), (3, (4, 5)), (5, (3, 4)), (7, (6, 4)), (11, (6, 7))]
PADDINGS = ("reflect", "zero")


def reflected(index, length):
    """Index of a pixel behind the border, the edge not repeated."""
    if index < 0:
        return -index
    return 2 * (length - 1) - index if index >= length else index


def taps_by_loop(x, kernel_size, padding):
    """[B, H, W, T, C]: tap t = row * k + column reads (h + row - p, w + column - p)."""
    batch, height, width, channels = x.shape
    border = (kernel_size - 1) // 2
    taps = np.zeros((batch, height, width, kernel_size**2, channels), x.dtype)
    for h in range(height):
        for w in range(width):
            for tap in range(kernel_size**2):
                row, col = (
                    h + tap // kernel_size - border,
                    w + tap % kernel_size - border,
                )
                inside = 0 <= row < height and 0 <= col < width
                if padding == "reflect":
                    row, col = reflected(row, height), reflected(col, width)
                if inside or padding == "reflect":
                    taps[:, h, w, tap] = x[:, row, col]
    return taps


def aggregate_by_loop(values, weights, padding):
    """Channel c of a pixel: the sum over taps of plane c mod G times the value."""
    taps = taps_by_loop(values, round(weights.shape[3] ** 0.5), padding)
    out = np.zeros_like(values)
    for c in range(values.shape[-1]):
        plane = weights[..., c % weights.shape[-1]]
        out[..., c] = (plane * taps[..., c]).sum(-1)
    return out


def copied_out(values, weights, padding="reflect"):
    """The same in JAX, from all neighbourhoods at once: differentiable as it stands."""
    kernel_size, planes = round(weights.shape[3] ** 0.5), weights.shape[-1]
    taps = neighbourhoods(values, kernel_size, padding=padding)
    taps = taps.reshape(*taps.shape[:-1], -1, planes)
    mixed = (taps * weights[..., None, :]).sum(3)
    return mixed.reshape(values.shape)


def draw(kernel_size, shape, channels=6, planes=3, dtype=np.float64):
    """Values, weights of their taps, and other values."""
    rng = np.random.default_rng(kernel_size)

    def normal(*last):
        return rng.normal(size=(2, *shape, *last)).astype(dtype)

    return normal(channels), normal(kernel_size**2, planes), normal(channels)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("kernel_size, shape", SIZES)
def test_the_operations_are_those_of_a_loop(kernel_size, shape, padding, x64):
    arrays = draw(kernel_size, shape)
    values, weights, others = map(jnp.asarray, arrays)
    taps = taps_by_loop(arrays[0], kernel_size, padding)
    copied = neighbourhoods(values, kernel_size, padding=padding)
    np.testing.assert_array_equal(copied, taps)
    minus = subtract(others, values, kernel_size, padding=padding)
    np.testing.assert_array_equal(minus, arrays[2][:, :, :, None] - taps)
    out = jax.jit(functools.partial(aggregate, padding=padding))(values, weights)
    wanted = aggregate_by_loop(*arrays[:2], padding)
    np.testing.assert_allclose(out, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("kernel_size, shape", SIZES)
def test_gradients_are_those_of_the_copied_out_form(
    kernel_size, shape, padding, x64, quick_jit
):
    values, weights, cotangent = draw(kernel_size, shape)

    def gradients(function):
        def scalar(values, weights):
            return (function(values, weights, padding=padding) * cotangent).sum()

        return quick_jit(jax.grad(scalar, argnums=(0, 1)))(values, weights)

    ours, theirs = gradients(aggregate), gradients(copied_out)
    for actual, wanted in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-11, atol=1e-11)
        assert np.abs(wanted).max() > 1


@pytest.mark.parametrize("planes", [1, 2, 6])
def test_planes_are_interleaved(planes):
    """Plane g weighs the channels g, g + G, ..., not a run of neighbours."""
    values = np.random.default_rng(0).normal(size=(1, 3, 4, 6)).astype(np.float32)
    for plane in range(planes):
        weights = np.zeros((1, 3, 4, 9, planes), np.float32)
        weights[:, :, :, 4, plane] = 1  # the tap in the middle
        out = aggregate(jnp.asarray(values), jnp.asarray(weights))
        kept = np.arange(6) % planes == plane
        np.testing.assert_array_equal(out, np.where(kept, values, 0))


def test_bfloat16_sums_in_float32():
    """A sum of 49 taps in bfloat16 loses what is small against the sum so far."""
    values, weights, cotangent = (
        jnp.asarray(np.abs(a) + 0.5, jnp.bfloat16) for a in draw(7, (8, 9))
    )
    wanted = copied_out(*(a.astype(jnp.float32) for a in (values, weights)))
    out, pull = jax.vjp(aggregate, values, weights)
    assert out.dtype == jnp.bfloat16
    half_a_unit = 2.0**-8
    np.testing.assert_allclose(
        out.astype(np.float32), wanted, rtol=1.01 * half_a_unit
    )  # rounded once, at the end
    of_values, of_weights = pull(cotangent)
    assert (of_values.dtype, of_weights.dtype) == (jnp.bfloat16, jnp.bfloat16)
    exact = jax.vjp(copied_out, *(a.astype(jnp.float32) for a in (values, weights)))[1]
    for actual, wanted in zip(
        (of_values, of_weights), exact(cotangent.astype(jnp.float32)), strict=True
    ):
        np.testing.assert_allclose(
            actual.astype(np.float32), wanted, rtol=1.01 * half_a_unit
        )


@pytest.mark.parametrize(
    "num_taps, planes", [(8, 2), (16, 2), (10, 2), (9, 4), (9, 12), (9, 0), (0, 2)]
)
def test_taps_and_planes_that_do_not_fit_are_refused(num_taps, planes):
    values, weights = jnp.zeros((1, 8, 8, 6)), jnp.zeros((1, 8, 8, num_taps, planes))
    with pytest.raises(
        ValueError, match=f"{num_taps} taps .* or {planes} weight plane"
    ):
        aggregate(values, weights)


@pytest.mark.parametrize(
    "shape", [(1, 4, 5, 9, 2), (2, 1, 1, 9, 2), (2, 5, 4, 9, 2), (2, 4, 5, 9)]
)
def test_weights_that_would_broadcast_are_refused(shape):
    """The gradient could not: it is of the shape that was given."""
    values = jnp.zeros((2, 4, 5, 6))
    unchecked = inspect.unwrap(aggregate)  # in tests shapes are checked before
    with pytest.raises(ValueError, match=r"weights of shape .* for values"):
        unchecked(values, jnp.zeros(shape))


@pytest.mark.parametrize("kernel_size", [2, 0, -1, -3])
def test_a_kernel_that_is_not_odd_is_named(kernel_size):
    x = jnp.zeros((1, 4, 4, 32))
    blocks = [
        Bottleneck(attention, kernel_size, True, jnp.dtype("float32"))
        for attention in ("pairwise", "patchwise")
    ]
    for operation in (
        lambda: neighbourhoods(x, kernel_size),
        lambda: subtract(x, x, kernel_size),
        *(lambda b=b: b.init(jax.random.key(0), x, train=False) for b in blocks),
    ):
        with pytest.raises(ValueError, match=f"kernel_size={kernel_size} is not odd"):
            operation()


def test_an_unknown_padding_is_named():
    x = jnp.zeros((1, 4, 4, 2))
    for operation in (
        lambda: neighbourhoods(x, 3, padding="x"),
        lambda: subtract(x, x, 3, padding="x"),
        lambda: aggregate(x, jnp.zeros((1, 4, 4, 9, 2)), padding="x"),
    ):
        with pytest.raises(ValueError, match="padding='x' is not one of reflect, zero"):
            operation()


def test_second_derivatives_are_those_of_the_copied_out_form(x64, quick_jit):
    values, weights, _ = draw(3, (2, 3), channels=4, planes=2)
    cotangent = draw(3, (2, 3), channels=4)[2]

    def second(function):
        def scalar(values, weights):
            return (jnp.sin(function(values, weights)) * cotangent).sum()

        def steepness(values, weights):
            gradients = jax.grad(scalar, argnums=(0, 1))(values, weights)
            return sum(jnp.square(g).sum() for g in gradients)

        return quick_jit(jax.grad(steepness, argnums=(0, 1)))(values, weights)

    for actual, wanted in zip(second(aggregate), second(copied_out), strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-10, atol=1e-10)
        assert np.abs(wanted).max() > 1


@pytest.mark.parametrize("shape", [(3, 8), (8, 3)])
def test_a_kernel_too_large_to_reflect_is_refused(shape):
    """Reflection meets each pixel once: 3 rows carry 5 x 5 and not 7 x 7."""
    values = jnp.zeros((1, *shape, 4))
    message = "kernel_size=7 is too large for a map of .* at most 5 x 5"
    for operation in (
        lambda: neighbourhoods(values, 7),
        lambda: subtract(values, values, 7),
        lambda: aggregate(values, jnp.zeros((1, *shape, 49, 2))),
    ):
        with pytest.raises(ValueError, match=message):
            operation()
    assert neighbourhoods(values, 5).shape == (1, *shape, 25, 4)
    assert neighbourhoods(values, 7, padding="zero").shape == (1, *shape, 49, 4)


def test_aggregation_takes_a_third_of_the_copied_out_forms_memory():
    """Of temporary memory, forward and backward, as XLA compiles it for users."""
    jax.config.update("jax_disable_most_optimizations", False)
    shape = (64, 32, 32)
    arguments = [
        jax.ShapeDtypeStruct((*shape, *last), jnp.float32) for last in ((64,), (49, 8))
    ]

    def temporary_bytes(function):
        def scalar(values, weights):
            return jnp.square(function(values, weights)).sum()

        step = jax.jit(jax.value_and_grad(scalar, argnums=(0, 1)))
        return step.lower(*arguments).compile().memory_analysis().temp_size_in_bytes

    try:
        ours, theirs = temporary_bytes(aggregate), temporary_bytes(copied_out)
    finally:
        jax.config.update("jax_disable_most_optimizations", True)
    neighbours = 64 * 32 * 32 * 49 * 64 * 4
    assert theirs >= neighbours  # it does copy them out
    assert 0 < ours < theirs / 3
