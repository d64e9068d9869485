"""Centres of attention and their contours lie where the Gaussians of the heads do."""

import matplotlib
import numpy as np
import pytest
from matplotlib.patches import Ellipse

from attn_cnn_jax.analysis import plots
from attn_cnn_jax.analysis.learned_positions import GaussianHeads

TITLE = "quadratic_seed1, step 500 (epoch 3)"
LAYERS = ["layer 1", "layer 2"]
GRID = (7, 9)


def gaussians(rng, count=3):
    spreads = rng.normal(size=(count, 2, 2)) + np.eye(2)
    precisions = spreads @ spreads.transpose(0, 2, 1)
    return GaussianHeads(rng.normal(size=(count, 2)), precisions, GRID)


def ellipse(axes, head, mass):
    (found,) = [
        patch
        for patch in axes.patches
        if isinstance(patch, Ellipse) and patch.get_label() == f"head {head}, {mass}%"
    ]
    return found


def test_contours_hold_their_share_of_the_mass(rng, drawn):
    heads = gaussians(rng)
    figure = plots.centers_of_layers([heads], title=TITLE, layers=["layer 1"])
    axes = drawn.axes(figure, "layer 1")
    for head in range(3):
        covariance = np.linalg.inv(heads.precisions[head])
        sample = rng.multivariate_normal(heads.centers[head], covariance, 40_000)
        for mass, style in ((50, "-"), (90, None)):
            patch = ellipse(axes, head + 1, mass)
            path = patch.get_patch_transform().transform_path(patch.get_path())
            inside = path.contains_points(sample[:, ::-1]).mean()
            assert inside == pytest.approx(mass / 100, abs=0.01)
            assert (patch.get_linestyle() == "-") == (style == "-")


def test_a_contour_lies_along_its_gaussian_with_rows_down(drawn):
    """Mass along row = column runs from the upper left to the lower right."""
    long, short = np.array([1, 1]) / 2**0.5, np.array([1, -1]) / 2**0.5
    precision = np.outer(long, long) / 4 + np.outer(short, short) * 4
    heads = GaussianHeads(np.array([[1.0, 3.0]]), precision[None], GRID)
    figure = plots.centers_of_layers([heads], title=TITLE, layers=["layer 1"])
    axes = drawn.axes(figure, "layer 1")
    patch = ellipse(axes, 1, 50)
    assert patch.center == (3.0, 1.0)
    corners = patch.get_patch_transform().transform([(1, 0), (-1, 0)])
    ends = axes.transData.transform(corners)
    (right, down) = ends[ends[:, 0].argmax()] - ends[ends[:, 0].argmin()]
    assert right > 0 and down == pytest.approx(-right)
    assert patch.width == pytest.approx(2 * 2 * np.sqrt(2 * np.log(2)))
    assert patch.height == pytest.approx(2 * 0.5 * np.sqrt(2 * np.log(2)))


def test_degenerate_heads_are_drawn_and_named(drawn):
    precisions = np.stack(
        [np.zeros((2, 2)), np.diag([4.0, 0.0]), np.eye(2) * 1e12, np.full((2, 2), 9e9)]
    )
    precisions[3, 0, 0] = np.inf
    heads = GaussianHeads(np.zeros((4, 2)), precisions, GRID)
    figure = plots.centers_of_layers([heads], title=TITLE, layers=["layer 1"])
    assert "uniform: 1\nstrip: 2\nnot finite: 4" in drawn.texts(figure)
    axes = drawn.axes(figure, "layer 1")
    strip = ellipse(axes, 2, 50)
    # A precision of 4 along the rows: narrow in rows, endless along the columns.
    assert strip.angle % 180 == pytest.approx(0)
    assert strip.height == pytest.approx(np.sqrt(2 * np.log(2)))
    assert strip.width > 1000
    assert ellipse(axes, 3, 90).width < 0.01
    assert len([p for p in axes.patches if isinstance(p, Ellipse)]) == 6
    figure.draw_without_rendering()


def test_centres_stand_where_they_are_or_on_the_border(rng, drawn):
    centers, round_heads = (
        np.array([[-9.0, 3.0], [1.0, -2.0]]),
        np.stack([np.eye(2)] * 2),
    )
    far = GaussianHeads(centers, round_heads, GRID)
    rows = [[gaussians(rng, 2), far], [far, gaussians(rng, 2)]]
    figure = plots.centers_over_training(
        rows, title=TITLE, checkpoint_names=["epoch 0", "epoch 50"], layers=LAYERS
    )
    upper, lower = (
        drawn.axes(figure, "epoch 0, layer 2"),
        drawn.axes(figure, "epoch 50, layer 1"),
    )
    assert upper.get_position().y0 > lower.get_position().y0
    assert upper.get_position().x0 > lower.get_position().x0
    marks = {line.get_label(): line for line in upper.get_lines()}
    numbers = {text.get_text(): text.get_position() for text in upper.texts}
    assert marks["head 1"].get_xydata().tolist() == [[1.5, -4.5]]
    assert numbers["2"] == (-2.0, 1.0)
    assert marks["head 1"].get_markerfacecolor() == "white"  # hollow: outside
    [legend] = figure.legends
    for head, line in enumerate(legend.get_lines(), start=1):
        edge = matplotlib.colors.to_hex(ellipse(upper, head, 50).get_edgecolor())
        assert (line.get_label(), line.get_color()) == (f"head {head}", edge)
    first, second = (line.get_marker() for line in legend.get_lines())
    # The second head is nowhere a marker: it is a number where it stands.
    assert (first, second) == (marks["head 1"].get_marker(), "")
    assert {"epoch 50", "layer 2", "head 1", "head 2"} <= set(drawn.texts(figure))


def test_one_layer_over_training_has_a_panel_a_checkpoint(rng, drawn):
    names = [f"epoch {epoch}" for epoch in range(0, 301, 50)]
    heads = [gaussians(rng) for _ in names]
    figure = plots.centers_of_layer(
        heads, title=TITLE, layer="layer 4", checkpoint_names=names
    )
    for name, one in zip(names, heads, strict=True):
        patch = ellipse(drawn.axes(figure, name), 2, 90)
        assert patch.center == pytest.approx(tuple(one.centers[1][::-1]))
    assert "Centres of attention of layer 4 over training" in drawn.texts(figure)
