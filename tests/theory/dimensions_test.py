"""Offsets that a head can reach, against brute force and Qhull; laws of each size."""

import itertools

import jax
import numpy as np
import pytest
from scipy.spatial import ConvexHull

from attn_cnn_jax.models.attention import LearnedPositionAttention
from attn_cnn_jax.theory.dimensions import (
    axis_quadratic_encoding,
    circle_encoding,
    joined_encoding,
    margins,
    quadratic_encoding,
    reachable_offsets,
    sphere_encoding,
    sum_encoding,
)

DIRECTIONS = circle_encoding(100_000)


def drawn(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def margins_by_search(encoding):
    """The best margin over a hundred thousand keys of the plane."""
    scores = DIRECTIONS @ encoding.T
    first, second = -np.partition(-scores, 1, axis=1)[:, :2].T
    winners, best = scores.argmax(axis=1), np.zeros(len(encoding))
    np.maximum.at(best, winners, first - second)
    return best


@pytest.mark.parametrize("num_offsets", [2, 3, 4, 9, 25])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_margins_in_the_plane_are_those_of_a_search(num_offsets, scale):
    encoding = drawn(num_offsets, num_offsets, 2)
    wanted = scale * margins_by_search(encoding)
    np.testing.assert_allclose(
        margins(scale * encoding), wanted, rtol=1e-3, atol=1e-6 * scale
    )
    assert (reachable_offsets(scale * encoding) == (wanted > 0)).all()


@pytest.mark.parametrize("dimension", [2, 3, 5])
@pytest.mark.parametrize("num_offsets", [9, 81])
def test_reachable_offsets_are_the_vertices_of_the_hull(num_offsets, dimension):
    encoding = drawn(7, num_offsets, dimension)
    reachable = reachable_offsets(encoding)
    assert set(np.flatnonzero(reachable)) == set(ConvexHull(encoding).vertices)
    assert not reachable.all() or dimension == 5


def test_the_inside_of_an_edge_and_twins_are_not_reached():
    square = np.array(list(itertools.product((-1.0, 0.0, 1.0), repeat=2)))
    corners = [0, 2, 6, 8]
    assert set(np.flatnonzero(reachable_offsets(square))) == set(corners)
    twins = np.concatenate([square, square[:1]])
    assert set(np.flatnonzero(reachable_offsets(twins))) == set(corners[1:])
    assert reachable_offsets(square[:1]).all()
    assert not reachable_offsets(np.zeros((3, 2))).any()


@pytest.mark.parametrize("seed", range(3))
def test_one_dimension_reaches_two_offsets(seed):
    assert reachable_offsets(drawn(seed, 25, 1)).sum() == 2


@pytest.mark.parametrize("num_offsets", [4, 9, 25, 81, 225])
def test_a_circle_reaches_all_with_a_margin_of_1_by_n_squared(num_offsets):
    encoding = circle_encoding(num_offsets)
    np.testing.assert_allclose(
        margins(encoding), 1 - np.cos(2 * np.pi / num_offsets), rtol=1e-7
    )
    assert reachable_offsets(encoding).all()


@pytest.mark.parametrize("seed", range(5))
def test_no_encoding_in_the_unit_disc_has_larger_margins_than_of_that_order(seed):
    """At most 4 pi^2 / (n - 3)^2: perimeter and angles of the polygon are bounded."""
    random = np.random.default_rng(seed)
    for num_offsets in (9, 25, 81):
        angles = np.sort(random.uniform(0, 2 * np.pi, num_offsets))
        axes = random.uniform(0.3, 1, 2)  # an ellipse in the disc
        encoding = axes * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        smallest = margins(encoding).min()
        assert 0 < smallest <= 4 * np.pi**2 / (num_offsets - 3) ** 2
        assert smallest < 1.001 * margins(circle_encoding(num_offsets)).min()


@pytest.mark.parametrize("num_offsets", [9, 25, 81, 225])
def test_a_sphere_reaches_all_with_a_margin_of_1_by_n(num_offsets):
    smallest = margins(sphere_encoding(num_offsets)).min()
    assert 3 < smallest * num_offsets < 8


@pytest.mark.parametrize("m, n", [(3, 3), (5, 5), (4, 7)])
def test_rows_plus_columns_in_the_plane_reach_m_plus_n_offsets(m, n):
    """Whatever the tables; polygons without parallel edges attain it."""
    counts = [
        reachable_offsets(sum_encoding(drawn(seed, m, 2), drawn(50 + seed, n, 2))).sum()
        for seed in range(25)
    ]
    assert max(counts) <= m + n < m * n
    turn = np.array([[np.cos(0.1), -np.sin(0.1)], [np.sin(0.1), np.cos(0.1)]])
    polygons = circle_encoding(m), circle_encoding(n) @ turn
    assert reachable_offsets(sum_encoding(*polygons)).sum() == m + n


def test_rows_plus_columns_in_three_dimensions_reach_all():
    """The paper's quadratic encoding, on the offsets of a 3 x 3 and a 7 x 5 kernel."""
    for reach in [(1, 1), (3, 2)]:
        rows, cols = (np.arange(-n, n + 1.0) for n in reach)
        encoding = quadratic_encoding(rows, cols)
        d = np.array(list(itertools.product(rows, cols)))
        wanted = np.column_stack([(d**2).sum(axis=1), d])
        np.testing.assert_array_equal(encoding, wanted)
        assert reachable_offsets(encoding).all()


def test_a_key_for_each_axis_reaches_what_the_axes_reach():
    rows, cols = drawn(0, 6, 2), drawn(1, 5, 2)
    apart = np.outer(reachable_offsets(rows), reachable_offsets(cols)).ravel()
    np.testing.assert_array_equal(reachable_offsets(joined_encoding(rows, cols)), apart)
    assert 0 < apart.sum() < 30
    for dimension, wanted in ((1, 4), (2, 49)):
        offsets = axis_quadratic_encoding(np.arange(-3, 4.0))[:, -dimension:]
        both = joined_encoding(offsets, offsets)
        assert reachable_offsets(both).sum() == wanted


def best_offsets(row_table, col_table, row_keys, col_keys):
    """Where the heads of a layer put most attention, and how much, of 7 x 7 offsets."""
    params = {
        "row_embeddings": row_table,
        "col_embeddings": col_table,
        "row_keys": row_keys,
        "col_keys": col_keys,
    }
    scores = np.asarray(LearnedPositionAttention.offset_scores(params, (4, 4)))
    probs = np.asarray(jax.nn.softmax(scores.reshape(len(scores), -1)))
    return probs.argmax(axis=1), probs.max(axis=1)


def test_heads_of_the_layer_reach_four_offsets_with_one_dimension_an_axis():
    heads = 500
    tables, keys = drawn(0, 2, 7, 1), 1e3 * drawn(1, 2, 1, heads)
    places, _ = best_offsets(*(a.astype(np.float32) for a in (*tables, *keys)))
    reachable = reachable_offsets(joined_encoding(*tables))
    assert set(places) == set(np.flatnonzero(reachable)) and reachable.sum() == 4


def test_heads_of_the_layer_reach_all_offsets_with_two_dimensions_an_axis():
    offsets = np.arange(-3, 4)
    table = axis_quadratic_encoding(offsets.astype(np.float32))
    centers = np.array(list(itertools.product(offsets, repeat=2)), np.float32)
    keys = [
        -20 * np.stack([np.ones_like(c), -2 * c]) for c in centers.T
    ]  # -20 |d - c|^2
    places, masses = best_offsets(table, table, *keys)
    np.testing.assert_array_equal(places, np.arange(49))
    assert masses.min() > 1 - 1e-6
