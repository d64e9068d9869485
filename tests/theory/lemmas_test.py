"""The lemmas as the paper writes them, and the error of heads that are not sharp."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_cnn_jax import theory
from attn_cnn_jax.models.scores import mix
from attn_cnn_jax.theory.lemmas import check_sharpness

OFFSETS = jnp.array([(row, col) for row in (-1, 0, 1) for col in (-1, 0, 1)])
GRID = (5, 6)


def test_lemma_1_heads_that_look_at_one_shift_are_a_convolution(convolve, x64):
    rng = np.random.default_rng(0)
    x, kernel = (
        jnp.asarray(rng.normal(size=(2, *GRID, 3))),
        rng.normal(size=(3, 3, 3, 4)),
    )
    y = theory.attention_of_shifts(
        x, OFFSETS * 1.0, jnp.asarray(kernel.reshape(9, 3, 4))
    )
    wanted = convolve(x, kernel, 0.0, "edge", (1, 1), (1, 1))
    np.testing.assert_allclose(y, wanted, atol=1e-12)


def test_lemma_2_the_score_of_the_vectors(x64):
    """v . r = -alpha (|delta - Delta|^2 - |Delta|^2), alpha = s^2 / 2."""
    offsets, sharpness = jnp.array([[0.0, 0.0], [1.0, -2.0], [-0.5, 3.0]]), 1.7
    scores = (
        theory.quadratic_encoding(GRID) @ theory.quadratic_vectors(offsets, sharpness).T
    )
    for row in range(-4, 5):
        for col in range(-5, 6):
            for head, (down, right) in enumerate(np.asarray(offsets)):
                squared = (row - down) ** 2 + (col - right) ** 2
                wanted = -(sharpness**2) / 2 * (squared - down**2 - right**2)
                actual = scores[row + 4, col + 5, head]
                np.testing.assert_allclose(actual, wanted, atol=1e-12)


def test_lemma_2_the_limit_is_one_pixel(x64):
    probs = theory.quadratic_probs(
        OFFSETS * 1.0, theory.exact_sharpness("float64"), GRID
    )
    assert (probs == theory.shift_probs(OFFSETS * 1.0, GRID)).all()
    soft = theory.quadratic_probs(OFFSETS * 1.0, 1.0, GRID)
    assert 0.1 < np.abs(soft - probs).max() < 1


def test_the_paper_s_layer_is_the_project_s(x64):
    """Eq. 8 with queries and content keys of 0 is our quadratic layer."""
    rng = np.random.default_rng(1)
    x, kernel = (
        jnp.asarray(rng.normal(size=(2, *GRID, 3))),
        rng.normal(size=(3, 3, 3, 2)),
    )
    probs = theory.quadratic_probs(OFFSETS * 1.0, 1.3, GRID)
    layer, variables = theory.convolution_as_attention(kernel, sharpness=1.3)
    wanted = mix(x, probs[None], jnp.asarray(kernel.reshape(9, 3, 2)))
    np.testing.assert_allclose(layer.apply(variables, x), wanted, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_exact_sharpness_is_one_hot_and_little_less_is_not(dtype, x64):
    enough = theory.exact_sharpness(dtype)

    def others(sharpness: float) -> float:
        """What a head keeps for others, in a sum that does not round it away."""
        scores = -(jnp.arange(3.0, dtype=dtype) ** 2) * sharpness**2 / 2
        return float(jax.nn.softmax(scores)[1:].sum())

    assert others(enough) == 0
    # Some processors take subnormal numbers for 0, a tenth of the sharpness earlier.
    assert others(0.9 * enough) > 0


@pytest.mark.parametrize("sharpness, error", [(3, 0.9), (5, 3e-4), (8, 1e-12)])
def test_the_error_of_a_random_kernel(sharpness, error, convolve, x64):
    """Known points: interior pixels, a random 3 x 3 kernel, within a factor of 4."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(4, 16, 16, 16)))
    kernel = rng.normal(size=(3, 3, 16, 16))
    layer, variables = theory.convolution_as_attention(
        kernel, sharpness=float(sharpness)
    )
    wanted = convolve(x, kernel, 0.0, "edge", (1, 1), (1, 1))
    difference = np.abs(np.asarray(layer.apply(variables, x)) - wanted)
    assert error / 4 < difference[:, 1:-1, 1:-1].max() < 4 * error


@pytest.mark.parametrize("sharpness", [0.5, 1.0, 2.0, 4.0, 7.0])
def test_the_error_stays_below_its_bound(sharpness, convolve, x64):
    """At the border too; a checkerboard comes close to the bound where heads leak."""
    rng = np.random.default_rng(5)
    kernel = rng.normal(size=(3, 3, 4, 2))
    board = (-1.0) ** np.add.outer(np.arange(8), np.arange(7))[None, :, :, None]
    random = rng.uniform(-1, 1, (8, 8, 7, 4))
    layer, variables = theory.convolution_as_attention(kernel, sharpness=sharpness)
    bound = theory.error_bound(kernel, sharpness, (8, 7), "float64")
    worst = 0.0
    for x in map(jnp.asarray, (random, np.broadcast_to(board, (1, 8, 7, 4)))):
        wanted = convolve(x, kernel, 0.0, "edge", (1, 1), (1, 1))
        worst = max(worst, np.abs(np.asarray(layer.apply(variables, x)) - wanted).max())
    assert bound / 200 < worst <= bound


def test_the_leaked_mass_is_that_of_the_softmax(x64):
    """The largest over heads and queries of what others than the target get."""
    for sharpness in (0.3, 1.0, 2.5):
        probs = theory.quadratic_probs(OFFSETS * 1.0, sharpness, (9, 11))
        targets = theory.shift_probs(OFFSETS * 1.0, (9, 11))
        largest = float(1 - (probs * targets).sum((-2, -1)).min())
        bound = theory.leaked_mass(sharpness, (9, 11))
        assert largest <= bound < 1.3 * largest


def test_the_sharpness_for_an_error(convolve, x64):
    rng = np.random.default_rng(6)
    kernel = rng.normal(size=(3, 3, 4, 2))
    x = jnp.asarray(rng.uniform(-1, 1, (2, 8, 8, 4)))
    wanted = convolve(x, kernel, 0.0, "edge", (1, 1), (1, 1))
    for error in (1.0, 1e-3, 1e-9):
        sharpness = theory.sharpness_for(error, kernel, (8, 8), "float64")
        layer, variables = theory.convolution_as_attention(kernel, sharpness=sharpness)
        assert np.abs(np.asarray(layer.apply(variables, x)) - wanted).max() <= error
        assert theory.error_bound(kernel, 0.99 * sharpness, (8, 8), "float64") > error
    with pytest.raises(ValueError, match="1e-09 cannot be promised in float32"):
        theory.sharpness_for(1e-9, kernel, (8, 8), "float32")


def test_a_sharpness_without_scores_is_refused():
    with pytest.raises(ValueError, match="overflow float32"):
        check_sharpness(1e16, "float32")
    check_sharpness(1e16, "float64")
