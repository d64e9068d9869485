"""Query pixels: how they are written, and what is read of the maps at one."""

import numpy as np
import pytest

from attn_cnn_jax.analysis.queries import (
    center,
    key_attention,
    mean_query_attention,
    parse_query,
    query_attention,
)
from attn_cnn_jax.errors import UserError


@pytest.mark.parametrize(
    "text, wanted",
    [("0,0", (0, 0)), ("3,4", (3, 4)), (" 2 , 1 ", (2, 1)), ("", (2, 2))],
)
def test_a_query_is_row_and_column(text, wanted):
    assert parse_query(text, (4, 5)) == wanted


@pytest.mark.parametrize(
    "text", ["4,0", "0,5", "-1,0", "1", "1,2,3", "a,b", "1.0,2", "1;2", "9" * 20 + ",1"]
)
def test_nonsense_is_refused_with_the_range(text):
    with pytest.raises(UserError, match=r"row,column, from 0,0 to 3,4\.$"):
        parse_query(text, (4, 5))


def test_the_center_of_an_even_grid_is_below_and_right_of_the_middle():
    assert center((16, 16)) == (8, 8) and center((5, 4)) == (2, 2)


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
