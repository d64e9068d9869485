"""The error against the sharpness: its curves, its figure and its command."""

import jax
import numpy as np
import pytest

from attn_cnn_jax.analysis import plots
from attn_cnn_jax.theory.errors import error_curves


@pytest.fixture(scope="module")
def curves():
    rng = np.random.default_rng(0)
    kernel, x = rng.normal(size=(2, 2, 3, 4)), rng.uniform(-1, 1, (2, 6, 7, 3))
    with jax.enable_x64(True):
        return error_curves(kernel, x, (1.0, 4.0, 10.0))


def test_each_dtype_falls_to_its_rounding_and_no_further(curves):
    assert [curve.dtype for curve in curves] == ["float64", "float32", "bfloat16"]
    for curve, rounding in zip(curves, (1e-14, 1e-6, 1e-2), strict=True):
        soft, sharper, sharp = curve.errors
        assert soft > 0.3 > sharper >= sharp
        assert rounding / 30 < sharp < 30 * rounding
        assert all(np.array(curve.errors) <= curve.bounds)


def test_the_figure_shows_every_curve_and_its_bound(curves):
    (axes,) = plots.error_against_sharpness(curves, "a kernel").axes
    drawn = [tuple(line.get_ydata()) for line in axes.get_lines()]
    assert drawn == [values for c in curves for values in (c.errors, c.bounds)]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        curve.dtype for curve in curves
    ]
