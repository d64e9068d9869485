"""Learning curves as they are drawn: means, bands, and a legend that fits."""

import dataclasses

import numpy as np
import pytest
from matplotlib.collections import PolyCollection

from attn_cnn_jax.analysis import plots
from attn_cnn_jax.results.curves import Curve, RunCurves


def run_curves(label, accuracies, epochs=(1.0, 2.0, 3.0)):
    curve = Curve(np.array(epochs), np.array(accuracies))
    loss = Curve(np.array(epochs), 2 - np.array(accuracies))
    return RunCurves(f"config of {label}", label, curve, loss, loss)


def test_curves_are_mean_and_spread_over_seeds(drawn):
    runs = [
        run_curves("quadratic", [0.1, 0.5, 0.9]),
        run_curves("resnet", [0.3, 0.3, 0.3]),
        run_curves("quadratic", [0.3, 0.7, 0.7]),
        run_curves("quadratic", [0.2], epochs=[2.0]),
    ]
    figure = plots.learning_curves(runs, title="digits")
    accuracy, train, test = figure.axes[:3]
    lines = {line.get_label(): line for line in accuracy.get_lines()}
    mean = lines["quadratic (n = 3)"]
    np.testing.assert_allclose(mean.get_xydata(), [[2.0, 100 * 1.4 / 3]])
    resnet = lines["resnet"]
    np.testing.assert_allclose(resnet.get_ydata(), [30, 30, 30])
    assert mean.get_color() != resnet.get_color()
    # A marker is a group's only epoch, and not an event on a line.
    assert resnet.get_marker() == "" != mean.get_marker()
    legend = [line.get_marker() for line in figure.axes[3].get_lines()]
    assert legend == [mean.get_marker(), ""]
    (band,) = [c for c in accuracy.collections if isinstance(c, PolyCollection)]
    spread = 100 * np.std([0.5, 0.7, 0.2], ddof=1)
    heights = band.get_paths()[0].vertices[:, 1]
    assert np.ptp(heights) == pytest.approx(2 * spread)
    rest = [line for line in accuracy.get_lines() if line.get_linewidth() < 1]
    assert [line.get_ydata().tolist() for line in rest] == [[50, 90], [70, 70]]
    assert train.get_title(loc="left") == "training loss"
    scales = [axes.get_yscale() for axes in (accuracy, train, test)]
    assert scales == ["linear", "log", "log"]
    without = plots.learning_curves([run_curves("of no loss", [0.1, 1.0, 2.0])])
    assert [axes.get_yscale() for axes in without.axes[1:3]] == ["linear"] * 2
    np.testing.assert_allclose(test.get_lines()[-1].get_ydata(), [1.7, 1.7, 1.7])
    assert "quadratic (n = 3)" in drawn.texts(figure)


LONG = "Quadratic embedding (isotropic) (dataset.crop_padding 0 instead of 4; run {})"


@pytest.mark.parametrize("label", ["run {}", LONG, LONG * 3])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_names_of_lines_stand_apart_on_the_page(label, count):
    labels = [label.format(*[i] * 3) for i in range(count)]
    runs = [run_curves(one, [0.1, 0.5, 0.5 + i / 1000]) for i, one in enumerate(labels)]
    figure = plots.learning_curves(runs)
    figure.draw_without_rendering()
    panels, legend = figure.axes[:3], figure.axes[3]
    said = " ".join(text.get_text() for text in legend.texts)
    assert said == " ".join(labels)
    assert len(legend.get_lines()) == count
    page, boxes = figure.bbox, [text.get_window_extent() for text in legend.texts]
    bottom = min(panel.get_tightbbox().y0 for panel in panels)
    for box in boxes:
        assert page.x0 <= box.x0 and box.x1 <= page.x1
        assert page.y0 <= box.y0 and box.y1 <= bottom
    for i, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:i])
    colors = [line.get_color() for line in legend.get_lines()]
    for panel in panels:
        assert [line.get_color() for line in panel.get_lines()] == colors


def test_groups_of_equal_labels_are_not_pooled():
    none = Curve(np.zeros(0), np.zeros(0))
    scores = [Curve(np.array([1.0, 2.0]), np.full(2, v)) for v in (0.9, 0.2)]
    runs = [
        RunCurves(group, "same", one, none, none)
        for group, one in zip("ab", scores, strict=True)
    ]
    lines = plots.learning_curves(runs).axes[0].get_lines()
    assert [line.get_ydata().tolist() for line in lines] == [[90, 90], [20, 20]]


def test_a_band_of_accuracies_is_one_of_accuracies():
    runs = [run_curves("a", [0.0, 1.0, high]) for high in (1.0, 0.7)]
    runs += [run_curves("a", [0.3, 0.4, 0.9])]
    accuracy = plots.learning_curves(runs).axes[0]
    (band,) = [c for c in accuracy.collections if isinstance(c, PolyCollection)]
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (0, 100)


def test_the_number_of_runs_is_that_of_each_mean(drawn):
    none = Curve(np.zeros(0), np.zeros(0))
    new = run_curves("a", [0.3, 0.4, 0.9])
    new = dataclasses.replace(new, test_accuracy=none, test_loss=none)
    figure = plots.learning_curves([run_curves("a", [0.1, 0.2, 0.3]), new])
    assert "a (n = 1 in test, 2 in training)" in drawn.texts(figure)


def test_a_run_that_was_not_scored_yet_is_drawn_as_far_as_it_went():
    none = Curve(np.zeros(0), np.zeros(0))
    loss = Curve(np.array([1.0]), np.array([2.3]))
    runs = [
        RunCurves("a", "new", none, none, loss),
        run_curves("old", [0.1, 0.5, 0.9]),
    ]
    accuracy, train, _ = plots.learning_curves(runs).axes[:3]
    assert [line.get_label() for line in accuracy.get_lines()] == ["old"]
    assert [line.get_label() for line in train.get_lines()] == ["new", "old"]
    assert accuracy.get_lines()[0].get_color() == train.get_lines()[1].get_color()
    assert plots.learning_curves(runs[:1]).axes[0].get_xlim() == (0, 1)
