"""Accuracy and loss of several runs, mean and spread over seeds."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from attn_cnn_jax.analysis.plots.page import LINE, Heading, Page, wrapped
from attn_cnn_jax.analysis.plots.style import DASHES, color, current, marker, styled

_LEFT, _RIGHT = 0.5, 0.2  # inches, margins of the panels
_SAMPLE = 0.45  # of a line, before its name in the legend
_MOST_COLUMNS = 3  # of the legend
_MARKER_SIZE = 3.2
_SHORTEST = 1.2  # inches, of a name in the legend


def mean_and_spread(
    curves: Sequence[Any],
) -> tuple[
    Float[np.ndarray, "E"],  # noqa: F821
    Float[np.ndarray, "E"],  # noqa: F821
    Float[np.ndarray, "E"],  # noqa: F821
]:
    """Return the epochs that all curves have, and mean and deviation (n - 1) at them.

    A curve has `epochs` and `values`. The deviation of a single one is 0.
    """
    epochs = curves[0].epochs
    for curve in curves[1:]:
        epochs = np.intersect1d(epochs, curve.epochs)
    values = np.stack(
        [curve.values[np.isin(curve.epochs, epochs)] for curve in curves]
    ).astype(np.float64)
    if len(curves) == 1:
        return epochs, values[0], np.zeros(len(epochs))
    return epochs, values.mean(0), values.std(0, ddof=1)


@styled
def learning_curves(
    runs: Sequence[Any], *, title: str = "", heading: str = "Learning curves"
) -> Figure:
    """Draw test accuracy, training loss and test loss over the epochs (report, Fig. 1).

    A run has a `group`, whose runs differ in their seed alone, its `label`, and
    `test_accuracy` in [0, 1], `test_loss` and `train_loss`: each with its `epochs` [E]
    in increasing order and `values` [E].

    A line a group: the mean over its runs, the band one standard deviation to either
    side; it ends with the shortest run, longer ones go on as thin lines. Groups differ
    in colour and dashes; a marker is a group's only epoch. A run that has no value of a
    kind yet is not in it.
    """
    if not runs:
        raise ValueError("no run to draw")
    by_group: dict[str, list[Any]] = {}
    for run in runs:
        by_group.setdefault(run.group, []).append(run)
    groups = list(by_group.values())
    lines = [title] if title else []
    if any(len(group) > 1 for group in groups):
        lines.append("lines: mean over seeds, bands: ± one standard deviation")
    names = _Legend([_name(group) for group in groups])
    page = Page(Heading(heading, lines), 4.85 + names.height)
    top, wide = page.top + 0.2, page.width - _LEFT - _RIGHT
    accuracy = page.axes(_LEFT, top, wide, 2.1)
    half = (wide - 0.5) / 2
    train = page.axes(_LEFT, top + 2.65, half, 1.45)
    test = page.axes(_LEFT + half + 0.5, top + 2.65, half, 1.45)
    points = _panel(accuracy, groups, "test_accuracy", "test accuracy (%)", 100.0)
    points |= _panel(train, groups, "train_loss", "training loss", 1.0)
    points |= _panel(test, groups, "test_loss", "test loss", 1.0)
    last = max(float(axes.dataLim.x1) for axes in (accuracy, train, test))
    for axes in (accuracy, train, test):
        axes.set_xlim(0, last if np.isfinite(last) and last > 0 else 1)
    for axes in (train, test):
        _log_scale(axes)
    names.draw(page, top + 2.65 + 1.45 + 0.45, points)
    return page.figure


def _name(group: Sequence[Any]) -> str:
    """The label, with the number of runs that each mean is over."""
    trained = sum(len(run.train_loss.epochs) > 0 for run in group)
    tested = sum(len(run.test_accuracy.epochs) > 0 for run in group)
    label = group[0].label
    if max(trained, tested) < 2:
        return label
    number = f"n = {tested}"
    if trained not in (0, tested):
        number += f" in test, {trained} in training"
    return f"{label} ({number})"


def _panel(
    axes: Axes,
    groups: Sequence[Sequence[Any]],
    quantity: str,
    label: str,
    factor: float,
) -> set[int]:
    """Draw a quantity; return the groups that are points, for they have one epoch."""
    points = set()
    for index, runs in enumerate(groups):
        curves = [getattr(run, quantity) for run in runs]
        curves = [curve for curve in curves if len(curve.epochs)]
        if not curves:
            continue
        epochs, mean, spread = mean_and_spread(curves)
        look = _look(index)
        values, band = factor * mean, factor * spread
        if len(epochs) == 1:
            points.add(index)
        axes.plot(
            epochs,
            values,
            **look,
            marker=marker(index) if len(epochs) == 1 else "",
            markersize=_MARKER_SIZE,
            label=_name(runs),
            linewidth=1.1,
            zorder=3,
            clip_on=False,  # the last epoch is on the edge
        )
        if len(curves) > 1:
            # No run is above 100 % or has a loss below 0.
            highest = factor if quantity == "test_accuracy" else np.inf
            axes.fill_between(
                epochs,
                np.maximum(values - band, 0),
                np.minimum(values + band, highest),
                color=color(index),
                alpha=0.18,
                linewidth=0,
            )
        end = epochs[-1] if len(epochs) else -np.inf
        for curve in curves:
            rest = curve.epochs >= end
            if rest.sum() > 1:
                axes.plot(
                    curve.epochs[rest],
                    factor * curve.values[rest],
                    **look,
                    linewidth=0.5,
                    label=f"_{_name(runs)}, one run",
                )
    axes.set_xlabel("epoch")
    axes.set_title(label, loc="left", pad=3)
    axes.grid(linewidth=0.3, color="0.88")
    axes.tick_params(length=2, width=0.5, pad=2)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    return points


def _look(index: int) -> dict[str, Any]:
    return {"color": color(index), "linestyle": DASHES[index % len(DASHES)]}


def _log_scale(axes: Axes) -> None:
    """Take logarithms where everything is above zero, with plain numbers as ticks."""
    lines = [np.asarray(line.get_ydata(), float) for line in axes.get_lines()]
    values = np.concatenate([np.ones(0), *lines])
    if not len(values) or not (np.isfinite(values).all() and (values > 0).all()):
        return
    axes.set_yscale("log")
    axes.set_ylim(values.min() / 1.2, values.max() * 1.2)
    decades = np.arange(np.floor(np.log10(values.min())), 3)
    narrow = values.max() / values.min() < 30
    steps = (1, 2, 5) if narrow else (1,)
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    low, high = axes.get_ylim()
    axes.set_yticks([tick for tick in ticks if low <= tick <= high])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
    axes.tick_params(which="minor", length=1, width=0.4)


class _Legend:
    """The names of the lines below the panels, in columns where all are short."""

    def __init__(self, names: Sequence[str]) -> None:
        wide = current().width - _LEFT - _RIGHT
        most = min(_MOST_COLUMNS, len(names), int(wide / (_SAMPLE + _SHORTEST)))
        for columns in range(max(1, most), 0, -1):
            self.width = wide / columns
            self.names = [wrapped(name, self.width - _SAMPLE - 0.1) for name in names]
            if all(len(lines) == 1 for lines in self.names):
                break
        self.columns = columns

    @property
    def height(self) -> float:
        """Return the height in inches."""
        return sum(LINE * len(lines) for lines in self.names[:: self.columns])

    def draw(self, page: Page, top: float, points: set[int]) -> None:
        """Draw a sample of each line, or of each point, with its name."""
        wide, height = page.width - _LEFT - _RIGHT, self.height
        axes = page.axes(_LEFT, top, wide, height, xlim=(0, wide), ylim=(height, 0))
        axes.axis("off")
        below = 0.0
        for index, lines in enumerate(self.names):
            left = self.width * (index % self.columns)
            axes.plot(
                [left, left + _SAMPLE / 2 - 0.05, left + _SAMPLE - 0.1],
                [below + LINE / 2] * 3,
                **_look(index),
                marker=marker(index) if index in points else "",
                markevery=[1],
                markersize=_MARKER_SIZE,
                linewidth=1.1,
                clip_on=False,
            )
            for number, line in enumerate(lines):
                axes.text(
                    left + _SAMPLE, below + LINE * (number + 0.5), line, va="center"
                )
            if index % self.columns == self.columns - 1:
                below += LINE * len(lines)
