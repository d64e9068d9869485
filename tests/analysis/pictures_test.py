"""Pictures of attention, against sums that are written out; query pixels; orders."""

import numpy as np
import pytest

from attn_cnn_jax.analysis.pictures import (
    average_attention,
    key_attention,
    mean_query_attention,
    parse_query,
    query_attention,
    reading_order,
    tap_maps,
)
from attn_cnn_jax.errors import UserError

MATRIX = np.array(  # rows are queries, of a grid of 1 x 3
    [[0.5, 0.5, 0.0], [0.25, 0.25, 0.5], [0.0, 1.0, 0.0]], np.float32
)


@pytest.mark.parametrize(
    "variant, wanted",
    [
        # Columns sum to 0.75, 1.75, 0.5.
        (
            "query",
            [
                (0.5 / 0.75 + 0.5 / 1.75) / 3,
                (0.25 / 0.75 + 0.25 / 1.75 + 1) / 3,
                (1 / 1.75) / 3,
            ],
        ),
        ("received", [0.75 / 3, 1.75 / 3, 0.5 / 3]),
        ("literal", [1 / (3 * 0.75), 1 / (3 * 1.75), 1 / (3 * 0.5)]),
    ],
)
def test_by_hand(variant, wanted):
    average = average_attention(MATRIX.reshape(1, 3, 1, 3), variant)
    assert average.shape == (1, 3) and average.dtype == np.float32
    np.testing.assert_allclose(average[0], wanted, rtol=1e-6)


def test_query_is_the_default_and_heads_and_images_are_kept_apart(heads):
    probs = heads.random(2, 3, 4, 5, 4, 5)
    matrix = probs.reshape(2, 3, 20, 20).astype(np.float64)
    wanted = np.zeros((2, 3, 20))
    for i in range(20):
        for j in range(20):
            wanted[..., i] += matrix[..., i, j] / matrix[..., :, j].sum(-1) / 20
    average = average_attention(probs)
    np.testing.assert_allclose(average.reshape(2, 3, 20), wanted, rtol=1e-5)
    np.testing.assert_allclose(average.sum(axis=(-2, -1)), 1, rtol=1e-5)


def test_a_pixel_that_nobody_attends_to(heads):
    probs = heads.fixed((0, 1), (2, 2))
    np.testing.assert_allclose(average_attention(probs), 1 / 16)  # 1/4 of one column
    received = average_attention(probs, "received")
    np.testing.assert_array_equal(received, [[0, 1], [0, 0]])
    literal = average_attention(probs, "literal")
    np.testing.assert_array_equal(literal, [[np.inf, 1 / 16], [np.inf, np.inf]])


def test_an_unknown_variant_is_refused():
    with pytest.raises(UserError, match="choose from query, received, literal"):
        average_attention(MATRIX.reshape(1, 3, 1, 3), "rows")


def test_tap_maps_are_the_mean_over_planes():
    weights = np.random.default_rng(0).normal(size=(2, 4, 5, 9, 8)).astype(np.float32)
    maps = tap_maps(weights)
    assert maps.shape == (2, 9, 4, 5)
    np.testing.assert_allclose(maps[1, 7, 2, 3], weights[1, 2, 3, 7].mean(), rtol=1e-5)


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("0,0", (0, 0)),
        ("3,4", (3, 4)),
        (" 2 , 1 ", (2, 1)),
        ("", (2, 2)),
        (" ", (2, 2)),
    ],
)
def test_a_query_is_row_and_column(text, wanted):
    assert parse_query(text, (4, 5)) == wanted


@pytest.mark.parametrize(
    "text", ["4,0", "0,5", "-1,0", "1", "1,2,3", "a,b", "1.0,2", "1;2", "9" * 20 + ",1"]
)
def test_nonsense_is_refused_with_the_range(text):
    with pytest.raises(UserError, match=r"row,column, from 0,0 to 3,4\.$"):
        parse_query(text, (4, 5))


def test_row_and_column_of_the_attention_matrix(heads):
    probs = heads.random(2, 3, 4, 5, 4, 5)
    matrix = probs.reshape(2, 3, 20, 20)
    pixel, index = (2, 3), 2 * 5 + 3
    np.testing.assert_array_equal(
        query_attention(probs, pixel).reshape(2, 3, 20), matrix[:, :, index]
    )
    np.testing.assert_array_equal(
        key_attention(probs, pixel).reshape(2, 3, 20), matrix[:, :, :, index]
    )


def test_the_mean_over_images_counts_each_once(heads):
    content = heads.random(5, 3, 4, 4, 4, 4)
    position = heads.random(1, 3, 4, 4, 4, 4, seed=1)
    batches = [
        heads.maps(content[:4], position, num_images=4),
        heads.maps(content[4:], position, num_images=1),
    ]
    first, second = mean_query_attention(batches, (1, 2))
    np.testing.assert_allclose(first, content[:, :, 1, 2].mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(second, position[0, :, 1, 2], rtol=1e-6)


def test_reading_order_is_by_row_then_column():
    kernel = np.array([(r, c) for r in (-1, 0, 1) for c in (-1, 0, 1)], float)
    heads = np.array([4, 8, 0, 2, 6, 1, 5, 3, 7])
    noise = 0.2 * np.sin(np.arange(18.0)).reshape(9, 2)
    order = reading_order((kernel + noise)[heads])
    np.testing.assert_array_equal(heads[order], np.arange(9))
    unknown = np.array([(np.nan, 0.0), (1.0, 1.0), (-2.0, 3.0)])
    np.testing.assert_array_equal(reading_order(unknown), [2, 1, 0])
