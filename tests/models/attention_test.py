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


def gaussian_scores(centers, precision, *rows):
    """The scores of a precision, the heads first."""
    offsets = (lib.relative_offsets(HEIGHT, *rows), lib.relative_offsets(WIDTH))
    return heads_first(compiled(lib.quadratic_scores)(centers, precision, *offsets))


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


def heads_first(scores):
    """[..., N, Hq, Wq, Hk, Wk] of scores [..., Hq, Wq, N, Hk, Wk]."""
    return np.moveaxis(np.asarray(scores), -3, -5)


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

    actual = gaussian_scores(centers, precision)
    assert_equal(actual, by_pixels(score))
    upper = gaussian_scores(centers, precision, 1, 2)  # rows 1 and 2 of the queries
    assert_equal(upper, by_pixels(score)[:, 1:3])


def test_quadratic_scores_are_the_papers_up_to_a_constant():
    # Eq. 9: u = -alpha (1, -2 c1, -2 c2) and r = (|d|^2, d1, d2); alpha = spread^2 / 2.
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
    wanted = gaussian_scores(centers, precision)
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
    actual = heads_first(scores(x, keys, query_kernel, query_bias, key_kernel))[0]
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

    for first, count in [(0, HEIGHT), (1, 2)]:
        scores = compiled(lib.query_position_scores, height=HEIGHT, first=first)
        part = x[:, first : first + count]
        down, right = map(np.asarray, scores(part, kernel, bias, rows, cols))
        actual = down[0][..., :, None] + right[0][..., None, :]
        wanted = by_pixels(score)[:, first : first + count]
        assert_equal(heads_first(actual), wanted)


@pytest.mark.parametrize("batch", [1, 2])
def test_mixing_sums_the_heads_means(batch):
    x, kernel = drawn(0, 2, *GRID, DEPTH), drawn(1, HEADS, DEPTH, DEPTH)
    scores = drawn(2, batch, *GRID, HEADS, *GRID)
    probs = np.exp(scores) / np.exp(scores).sum(axis=(-2, -1), keepdims=True)
    assert_equal(compiled(lib.softmax_over_keys)(scores), probs)
    wanted = np.zeros((2, *GRID, DEPTH))
    for image, head, query in itertools.product(range(2), range(HEADS), PIXELS):
        weights = probs[(image % batch, *query, head)]
        mean = sum(weights[key] * x[image][key] for key in PIXELS)
        wanted[(image, *query)] += mean @ kernel[head]
    assert_equal(compiled(lib.mix)(x, probs, kernel), wanted)


def value_and_gradients(f, *arguments):
    """y and the gradients of its product with fixed numbers, in float64."""
    y, pull = jax.vjp(f, *map(jnp.asarray, arguments))
    cotangent = np.random.default_rng(9).normal(size=y.shape)
    return [np.asarray(a, np.float64) for a in (y, *pull(cotangent.astype(y.dtype)))]


def plain_mix(x, probs, kernel):
    """The sum as it is written."""
    probs, kernel = probs.astype(x.dtype), kernel.astype(x.dtype)
    probs = jnp.broadcast_to(probs, (x.shape[0], *probs.shape[1:]))
    heads = jnp.einsum("bijnkl,bkld->bijnd", probs, x)
    return jnp.einsum("bijnd,nde->bije", heads, kernel)


@pytest.mark.parametrize("grid", [(4, 4), (3, 5)])
@pytest.mark.parametrize("shared", [True, False])
def test_mixing_equals_the_plain_sum_in_float64_and_rounds_no_worse(grid, shared):
    pixels = grid[0] * grid[1]
    scores = 2 * drawn(0, 1 if shared else 8, *grid, HEADS, pixels)
    probs = np.asarray(jax.nn.softmax(scores)).reshape(*scores.shape[:-1], *grid)
    arguments = drawn(1, 8, *grid, 16), probs, drawn(2, HEADS, 16, 16)
    exact = value_and_gradients(plain_mix, *arguments)
    for actual, wanted in zip(
        value_and_gradients(lib.mix, *arguments), exact, strict=True
    ):
        assert_equal(actual, wanted)
    x = arguments[0].astype(jnp.bfloat16)
    rounded = (x, *(a.astype(np.float32) for a in arguments[1:]))
    ours, plains = (
        [np.linalg.norm(a - b) for a, b in zip(results, exact, strict=True)]
        for results in (
            value_and_gradients(lib.mix, *rounded),
            value_and_gradients(plain_mix, *rounded),
        )
    )
    assert all(a <= 1.2 * b for a, b in zip(ours, plains, strict=True))


def test_separable_mixing_equals_the_plain_one():
    x, kernel = drawn(0, 2, *GRID, DEPTH), drawn(1, HEADS, DEPTH, DEPTH)
    axes = drawn(2, HEADS, HEIGHT, HEIGHT), drawn(3, HEADS, WIDTH, WIDTH)

    def plain(x, rows, cols, kernel):
        probs = lib.softmax_over_keys(lib.sum_axes(rows, cols))
        return plain_mix(x, probs.transpose(1, 2, 0, 3, 4)[None], kernel)

    def separable(x, rows, cols, kernel):
        return lib.mix_separable(x, jax.nn.softmax(rows), jax.nn.softmax(cols), kernel)

    results = (value_and_gradients(f, x, *axes, kernel) for f in (separable, plain))
    for actual, wanted in zip(*results, strict=True):
        assert_equal(actual, wanted)


def test_a_product_in_float32_rounds_its_cotangent_to_the_operands():
    a, b = (jnp.asarray(drawn(seed, 3, 4), jnp.bfloat16) for seed in (0, 1))
    y, pull = jax.vjp(partial(lib.product_in_float32, "ij,kj->ik"), a, b)
    assert y.dtype == np.float32
    wanted = a.astype(np.float32) @ b.astype(np.float32).T
    np.testing.assert_allclose(y, wanted, rtol=1e-6)
    cotangent = jnp.asarray(drawn(2, 3, 3), jnp.float32)
    for actual, exact in zip(
        pull(cotangent), (cotangent @ b, cotangent.T @ a), strict=True
    ):
        assert actual.dtype == jnp.bfloat16
        np.testing.assert_allclose(actual.astype(np.float32), exact, atol=0.05)


@pytest.mark.parametrize("grid", [(4, 4), (3, 5)])
def test_content_and_position_scores_equal_the_plain_ones_and_round_no_worse(grid):
    """Folded, the positions in the same product; float64, and bfloat16 against it."""
    depth = 64
    tables = [drawn(s, 11, depth // 2) for s in (1, 2)]
    query = 0.3 * drawn(3, depth, HEADS, depth), drawn(4, HEADS, depth)
    x, key_kernel = drawn(0, 4, *grid, depth), 0.3 * drawn(5, depth, HEADS, depth)

    def ours(x, query_kernel, query_bias, key_kernel, rows, cols):
        by_position = lib.query_position_scores(
            x, query_kernel, query_bias, rows, cols, grid[0]
        )
        scores = lib.folded_content_scores(
            x, x, query_kernel, query_bias, key_kernel, by_position
        )
        return lib.softmax_over_keys(scores / depth)

    def plain(x, query_kernel, query_bias, key_kernel, rows, cols):
        cast = [a.astype(x.dtype) for a in (query_kernel, key_kernel, rows, cols)]
        queries = jnp.einsum("bijd,dne->bijne", x, cast[0])
        queries = queries + query_bias.astype(x.dtype)[None, None, None]
        keys = jnp.einsum("bkld,dne->bklne", x, cast[1])
        down, right = (lib.relative_offsets(n) + 5 for n in grid)
        dot = partial(jnp.einsum, preferred_element_type=lib.at_least_float32(x))
        scores = dot("bijne,bklne->bijnkl", queries, keys)
        half = depth // 2
        by_row = dot("bijne,ike->bijnk", queries[..., :half], cast[2][down])
        by_col = dot("bijne,jle->bijnl", queries[..., half:], cast[3][right])
        scores = scores + by_row[..., :, None] + by_col[..., None, :]
        return lib.softmax_over_keys(scores / depth)

    arguments = (x, *query, key_kernel, *tables)
    exact = value_and_gradients(plain, *arguments)
    for actual, wanted in zip(
        value_and_gradients(ours, *arguments), exact, strict=True
    ):
        assert_equal(actual, wanted)
    rounded = [jnp.asarray(a, jnp.float32) for a in arguments]
    rounded[0] = rounded[0].astype(jnp.bfloat16)
    errors = [
        [
            np.linalg.norm(a - b) / np.linalg.norm(b)
            for a, b in zip(results, exact, strict=True)
        ]
        for results in (
            value_and_gradients(ours, *rounded),
            value_and_gradients(plain, *rounded),
        )
    ]
    assert all(a <= 1.2 * b for a, b in zip(*errors, strict=True))


def test_folded_content_scores_have_the_gradients_of_q_k():
    x, keys = drawn(0, 2, *GRID, DEPTH), drawn(1, 2, *GRID, DEPTH)
    kernels = drawn(2, DEPTH, HEADS, 6), drawn(3, HEADS, 6), drawn(4, DEPTH, HEADS, 6)
    weights = drawn(5, 2, *GRID, HEADS, *GRID)

    def plain(x, keys, query_kernel, query_bias, key_kernel):
        queries = jnp.einsum("bijd,dne->bijne", x, query_kernel)
        queries = queries + query_bias[None, None, None]
        keys = jnp.einsum("bkld,dne->bklne", keys, key_kernel)
        return jnp.einsum("bijne,bklne->bijnkl", queries, keys)

    def loss(scores, *arguments):
        return (weights * lib.softmax_over_keys(scores(*arguments))).sum()

    gradients = (
        compiled(jax.grad(partial(loss, f), argnums=range(5)))(x, keys, *kernels)
        for f in (lib.folded_content_scores, plain)
    )
    for actual, wanted in zip(*gradients, strict=True):
        assert_equal(actual, wanted, 1e-11)
