"""Scores and mixing against brute force over pixels, on a grid that is not square."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_cnn_jax.models import scores as lib

HEIGHT, WIDTH, DEPTH, HEADS = 3, 5, 4, 2
GRID = (HEIGHT, WIDTH)
PIXELS = list(itertools.product(range(HEIGHT), range(WIDTH)))
PAIRS = list(itertools.product(PIXELS, PIXELS))

pytestmark = pytest.mark.usefixtures("x64")


def drawn(seed, *shape):
    """Float64 normal numbers."""
    return np.random.default_rng(seed).normal(size=shape)


def compiled(function, **static):
    """The jitted function; NumPy arrays may go in."""
    options = {"xla_backend_optimization_level": 0}  # compiles fast, runs once
    return jax.jit(partial(function, **static), compiler_options=options)


def isotropic_scores(centers, spreads):
    """The scores on the grid from their row and column terms."""
    return lib.sum_axes(*lib.isotropic_axis_scores(centers, spreads, GRID))


def by_pixels(score, num_heads=HEADS):
    """[N, Hq, Wq, Hk, Wk] of `score(head, query, key)`, one pair at a time."""
    scores = np.zeros((num_heads, *GRID, *GRID))
    for head, (query, key) in itertools.product(range(num_heads), PAIRS):
        scores[(head, *query, *key)] = score(head, np.array(query), np.array(key))
    return scores


def assert_equal(actual, wanted, tolerance=1e-12):
    """Same shape, and equal up to `tolerance` of the largest value."""
    assert actual.shape == wanted.shape
    error = np.abs(np.asarray(actual) - np.asarray(wanted)).max()
    assert error <= tolerance * np.abs(wanted).max()


def up_to_a_constant(scores):
    """What the softmax sees: scores of a query with their mean over the keys at 0."""
    return scores - np.mean(np.asarray(scores), axis=(-2, -1), keepdims=True)


def test_offsets_are_key_minus_query():
    offsets = np.asarray(lib.relative_offsets(WIDTH))
    assert offsets.shape == (WIDTH, WIDTH)
    assert offsets[1, 4] == 3 and offsets[4, 1] == -3


def test_quadratic_scores():
    centers = drawn(0, HEADS, 2)
    spreads = drawn(1, HEADS, 2, 2)
    precision = np.einsum("nij,nkj->nik", spreads, spreads)

    def score(head, query, key):
        distance = key - query - centers[head]
        return -0.5 * distance @ precision[head] @ distance

    actual = compiled(lib.quadratic_scores, grid=GRID)(centers, precision)
    assert_equal(actual, by_pixels(score))


def test_quadratic_scores_are_the_papers_up_to_a_constant():
    # Eq. 8: u = -alpha (1, -2 c1, -2 c2) and r = (|d|^2, d1, d2); alpha = spread^2 / 2.
    centers, spreads = drawn(0, HEADS, 2), drawn(1, HEADS)

    def score(head, query, key):
        alpha, (c1, c2), d = spreads[head] ** 2 / 2, centers[head], key - query
        u = -alpha * np.array([1, -2 * c1, -2 * c2])
        return u @ np.array([d @ d, d[0], d[1]])

    actual = compiled(isotropic_scores)(centers, spreads)
    assert_equal(up_to_a_constant(actual), up_to_a_constant(by_pixels(score)))


def test_isotropic_scores_are_those_with_a_diagonal_precision():
    centers, spreads = drawn(0, HEADS, 2), drawn(1, HEADS)
    precision = spreads[:, None, None] ** 2 * np.eye(2)[None]
    wanted = compiled(lib.quadratic_scores, grid=GRID)(centers, precision)
    assert_equal(compiled(isotropic_scores)(centers, spreads), wanted)


def test_table_scores():
    max_position, size = 6, 3
    rows, cols = (drawn(seed, 2 * max_position - 1, size) for seed in (0, 1))
    row_keys, col_keys = (drawn(seed, size, HEADS) for seed in (2, 3))

    def score(head, query, key):
        down, right = key - query + max_position - 1
        return row_keys[:, head] @ rows[down] + col_keys[:, head] @ cols[right]

    @compiled
    def scores(rows, cols, row_keys, col_keys):
        return lib.sum_axes(
            lib.table_axis_scores(rows, row_keys, HEIGHT),
            lib.table_axis_scores(cols, col_keys, WIDTH),
        )

    assert_equal(scores(rows, cols, row_keys, col_keys), by_pixels(score))


@pytest.mark.parametrize("key_bias", [0.0, 3.0])
def test_content_scores_do_not_need_the_key_bias(key_bias):
    x, keys = drawn(0, 1, *GRID, DEPTH), drawn(1, 1, *GRID, DEPTH)
    query_kernel, key_kernel = (drawn(s, DEPTH, HEADS, 6) for s in (2, 3))
    query_bias, bias = drawn(4, HEADS, 6), key_bias * drawn(5, HEADS, 6)

    def score(head, query, key):
        q = x[0][tuple(query)] @ query_kernel[:, head] + query_bias[head]
        k = keys[0][tuple(key)] @ key_kernel[:, head] + bias[head]
        return q @ k

    scores = compiled(lib.folded_content_scores)
    actual = scores(x, keys, query_kernel, query_bias, key_kernel)[0]
    assert_equal(up_to_a_constant(actual), up_to_a_constant(by_pixels(score)))


def test_query_position_scores():
    max_position, half = 6, 3
    x = drawn(0, 1, *GRID, DEPTH)
    kernel, bias = drawn(1, DEPTH, HEADS, 2 * half), drawn(2, HEADS, 2 * half)
    rows, cols = (drawn(seed, 2 * max_position - 1, half) for seed in (3, 4))

    def score(head, query, key):
        q = x[0][tuple(query)] @ kernel[:, head] + bias[head]
        down, right = key - query + max_position - 1
        return q[:half] @ rows[down] + q[half:] @ cols[right]

    scores = compiled(lib.query_position_scores)
    down, right = scores(x, kernel, bias, rows, cols)
    actual = np.asarray(down)[0][..., :, None] + np.asarray(right)[0][..., None, :]
    assert_equal(actual, by_pixels(score))


@pytest.mark.parametrize("batch", [1, 2])
def test_mixing_sums_the_heads_means(batch):
    x, kernel = drawn(0, 2, *GRID, DEPTH), drawn(1, HEADS, DEPTH, DEPTH)
    scores = drawn(2, batch, HEADS, *GRID, *GRID)
    probs = np.exp(scores) / np.exp(scores).sum(axis=(-2, -1), keepdims=True)
    assert_equal(compiled(lib.softmax_over_keys)(scores), probs)
    wanted = np.zeros((2, *GRID, DEPTH))
    for image, head, query in itertools.product(range(2), range(HEADS), PIXELS):
        weights = probs[(image % batch, head, *query)]
        mean = sum(weights[key] * x[image][key] for key in PIXELS)
        wanted[(image, *query)] += mean @ kernel[head]
    assert_equal(compiled(lib.mix)(x, probs, kernel), wanted)


def test_factorised_softmax_and_mixing_equal_the_plain_ones():
    # Equivalence of the exact rewrites, gradients included.
    x, kernel = drawn(0, 2, *GRID, DEPTH), drawn(1, HEADS, DEPTH, DEPTH)
    rows, cols = drawn(2, HEADS, HEIGHT, HEIGHT), drawn(3, HEADS, WIDTH, WIDTH)
    weights = drawn(4, 2, *GRID, DEPTH)

    def plain(x, rows, cols, kernel):
        probs = lib.softmax_over_keys(lib.sum_axes(rows, cols))
        return lib.mix(x, probs[None], kernel), probs

    def factorised(x, rows, cols, kernel):
        y = lib.mix_separable(x, jax.nn.softmax(rows), jax.nn.softmax(cols), kernel)
        return y, lib.separable_probs(rows, cols)

    def loss(f, *arguments):
        y, probs = f(*arguments)
        return (weights * y).sum() + (probs**2).sum(), (y, probs)

    results = (
        compiled(
            jax.value_and_grad(partial(loss, f), argnums=(0, 1, 2, 3), has_aux=True)
        )(x, rows, cols, kernel)
        for f in (factorised, plain)
    )
    leaves = map(jax.tree.leaves, results)
    for actual, wanted in zip(*leaves, strict=True):
        assert_equal(actual, wanted)


def test_folded_content_scores_have_the_gradients_of_q_k():
    x, keys = drawn(0, 2, *GRID, DEPTH), drawn(1, 2, *GRID, DEPTH)
    kernels = drawn(2, DEPTH, HEADS, 6), drawn(3, HEADS, 6), drawn(4, DEPTH, HEADS, 6)
    weights = drawn(5, 2, HEADS, *GRID, *GRID)

    def plain(x, keys, query_kernel, query_bias, key_kernel):
        queries = jnp.einsum("bijd,dne->bijne", x, query_kernel)
        queries = queries + query_bias[None, None, None]
        keys = jnp.einsum("bkld,dne->bklne", keys, key_kernel)
        return jnp.einsum("bijne,bklne->bnijkl", queries, keys)

    def loss(scores, *arguments):
        return (weights * lib.softmax_over_keys(scores(*arguments))).sum()

    gradients = (
        compiled(jax.grad(partial(loss, f), argnums=range(5)))(x, keys, *kernels)
        for f in (lib.folded_content_scores, plain)
    )
    for actual, wanted in zip(*gradients, strict=True):
        assert_equal(actual, wanted, 1e-11)
