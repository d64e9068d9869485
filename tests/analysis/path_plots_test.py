"""Paths of centres are drawn where they went, beside the error of every start."""

import numpy as np

from attn_cnn_jax.analysis import plots


def test_paths_lie_where_the_centers_went(rng, drawn):
    steps, starts = np.arange(0, 60, 10), 9
    centers = rng.normal(size=(starts, 6, 4, 2))
    errors = np.exp(-steps[None] / 10) * np.ones((starts, 1))
    covered = np.minimum(np.arange(6)[None], 4) * np.ones((starts, 1), int)
    weights = np.array([[1.0, 0, 2], [1, 0, 2], [1, 0, 2]])
    names = [f"start {seed}" for seed in range(starts)]
    figure = plots.paths_of_centers(
        steps, centers, errors, covered, weights, title="a kernel", seeds=names
    )
    for seed, name in enumerate(names):
        lines = {line.get_label(): line for line in drawn.axes(figure, name).lines}
        for head in range(4):
            path = lines[f"head {head + 1}"].get_xydata()
            np.testing.assert_array_equal(path[:, ::-1], centers[seed, :, head])
    np.testing.assert_array_equal(drawn.array(drawn.axes(figure, "start 3")), weights)
    curves = drawn.axes(figure, "error")
    assert curves.get_yscale() == "log" and len(curves.lines) == starts
    np.testing.assert_allclose(curves.lines[-1].get_ydata(), errors[0])
    taps = drawn.axes(figure, "taps covered")
    assert taps.get_title(loc="left") == "taps covered, of 6"
    assert "a kernel" in drawn.words(figure)


def test_one_start_is_drawn_alone(rng, drawn):
    figure = plots.paths_of_centers(
        np.arange(3),
        rng.normal(size=(1, 3, 2, 2)),
        np.zeros((1, 3)),
        np.zeros((1, 3), int),
        np.ones((3, 3)),
        title="one",
        seeds=["start 5"],
    )
    assert len(figure.axes) == 3 and len(drawn.axes(figure, "start 5").lines) == 6
