"""Accuracy and loss of several runs, mean and spread over seeds."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from attn_cnn_jax.analysis.plots.page import LINE, Page, wrapped
from attn_cnn_jax.analysis.plots.style import (
    DASHES,
    PAGE_WIDTH,
    color,
    marker,
    styled,
)

_MARKERS_A_LINE = 8
End = tuple[str, float, float, str]  # name, epoch, value, colour
_LABELS = 1.55  # inches, for the names at the ends of the lines


@dataclasses.dataclass(frozen=True)
class Curve:
    """A number of one run over its epochs, in increasing order."""

    epochs: Float[np.ndarray, "E"]  # noqa: F821
    values: Float[np.ndarray, "E"]  # noqa: F821


@dataclasses.dataclass(frozen=True)
class RunCurves:
    """The curves of one run. Runs of one `label` differ in their seed alone."""

    label: str
    test_accuracy: Curve  # between 0 and 1
    test_loss: Curve
    train_loss: Curve


def epoch_means(curve: Curve) -> Curve:
    """Means over each epoch: a value at epoch e - 1 < t <= e counts for epoch e."""
    whole = np.ceil(np.round(curve.epochs, 6))
    epochs = np.unique(whole)
    means = [curve.values[whole == epoch].mean() for epoch in epochs]
    return Curve(epochs, np.asarray(means, np.float64))


def mean_and_spread(
    curves: Sequence[Curve],
) -> tuple[Curve, Float[np.ndarray, "_"]]:
    """Mean and standard deviation (n - 1) over runs, at the epochs that all have.

    The deviation of a single run is 0.
    """
    epochs = curves[0].epochs
    for curve in curves[1:]:
        epochs = np.intersect1d(epochs, curve.epochs)
    values = np.stack(
        [curve.values[np.isin(curve.epochs, epochs)] for curve in curves]
    ).astype(np.float64)
    if len(curves) == 1:
        return Curve(epochs, values[0]), np.zeros(len(epochs))
    return Curve(epochs, values.mean(0)), values.std(0, ddof=1)


@styled
def learning_curves(
    runs: Sequence[RunCurves], *, title: str = "", heading: str = "Learning curves"
) -> Figure:
    """Test accuracy, training loss and test loss over the epochs (report, Fig. 1).

    A line a label: the mean over its runs, the band one standard deviation to either
    side; it ends with the shortest run, longer ones go on as thin lines. Labels differ
    in colour, dashes and marker. A run that has no value of a kind yet is not in it.
    """
    if not runs:
        raise ValueError("no run to draw")
    groups: dict[str, list[RunCurves]] = {}
    for run in runs:
        groups.setdefault(run.label, []).append(run)
    page = Page(PAGE_WIDTH, 5.15)
    lines = [title] if title else []
    if any(len(group) > 1 for group in groups.values()):
        lines.append("lines: mean over seeds, bands: ± one standard deviation")
    page.heading(0.1, 0.1, PAGE_WIDTH - 0.2, heading, lines)
    top, wide = 0.72, PAGE_WIDTH - 0.5 - _LABELS
    accuracy = page.axes(0.5, top, wide, 2.1)
    half = (wide - 0.5) / 2
    train = page.axes(0.5, top + 2.65, half, 1.45)
    test = page.axes(0.5 + half + 0.5, top + 2.65, half, 1.45)
    ends = _panel(accuracy, groups, "test_accuracy", "test accuracy (%)", 100.0)
    _panel(train, groups, "train_loss", "training loss", 1.0)
    test_ends = _panel(test, groups, "test_loss", "test loss", 1.0)
    last = max(float(axes.dataLim.x1) for axes in (accuracy, train, test))
    for axes in (accuracy, train, test):
        axes.set_xlim(0, last if np.isfinite(last) and last > 0 else 1)
    for axes in (train, test):
        _log_scale(axes)
    _name_lines(page, accuracy, ends)
    _name_lines(page, test, test_ends)
    return page.figure


def _panel(
    axes: Axes,
    groups: dict[str, list[RunCurves]],
    quantity: str,
    label: str,
    factor: float,
) -> list[End]:
    """Draw all lines; returns where each ends."""
    ends = []
    for index, (name, runs) in enumerate(groups.items()):
        curves = [getattr(run, quantity) for run in runs]
        curves = [curve for curve in curves if len(curve.epochs)]
        if not curves:
            continue
        mean, spread = mean_and_spread(curves)
        look = {"color": color(index), "linestyle": DASHES[index % len(DASHES)]}
        gap = max(1, round(len(mean.epochs) / _MARKERS_A_LINE))
        values, band = factor * mean.values, factor * spread
        name = f"{name} (n = {len(curves)})" if len(curves) > 1 else name
        axes.plot(
            mean.epochs,
            values,
            **look,
            linewidth=1.1,
            marker=marker(index),
            markersize=3.2,
            # Markers of different lines stand at different epochs.
            markevery=(index * gap // len(groups), gap),
            label=name,
            zorder=3,
        )
        if len(curves) > 1:
            axes.fill_between(
                mean.epochs,
                values - band,
                values + band,
                color=color(index),
                alpha=0.18,
                linewidth=0,
            )
        longest = max(curves, key=lambda curve: float(curve.epochs[-1]))
        end = mean.epochs[-1] if len(mean.epochs) else -np.inf
        if longest.epochs[-1] > end:
            last = (longest.epochs[-1], factor * longest.values[-1])
        else:
            last = (end, values[-1])
        ends.append((name, *last, color(index)))
        for curve in curves:
            rest = curve.epochs >= end
            if rest.sum() > 1:
                axes.plot(
                    curve.epochs[rest],
                    factor * curve.values[rest],
                    **look,
                    linewidth=0.5,
                    label=f"_{name}, one run",
                )
    axes.set_xlabel("epoch")
    axes.set_title(label, loc="left", pad=3)
    axes.grid(linewidth=0.3, color="0.88")
    axes.tick_params(length=2, width=0.5, pad=2)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    return ends


def _log_scale(axes: Axes) -> None:
    """Logarithmic where everything is above zero; ticks as plain numbers."""
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


def _name_lines(page: Page, axes: Axes, ends: Sequence[End]) -> None:
    """Write each line's name at its end, apart from the others."""
    axes.set_ylim(*axes.get_ylim())
    height = axes.get_position().height * page.height
    names = ["\n".join(wrapped(end[0], _LABELS - 0.2)) for end in ends]
    sizes = [(name.count("\n") + 1) * LINE / height for name in names]
    to_axes = axes.transData + axes.transAxes.inverted()
    wanted = [float(to_axes.transform(end[1:3])[1]) for end in ends]
    places = spread_out(np.array(wanted), np.array(sizes))
    for index, (name, end) in enumerate(zip(names, ends, strict=True)):
        axes.annotate(
            name,
            end[1:3],
            (1.03, float(places[index])),
            textcoords="axes fraction",
            va="center",
            color=end[3],
            linespacing=1.0,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "linewidth": 0.5,
                "color": end[3],
                "shrinkA": 1,
                "shrinkB": 1,
            },
        )


def spread_out(
    places: Float[np.ndarray, "N"],  # noqa: F821
    sizes: Float[np.ndarray, "N"],  # noqa: F821
) -> Float[np.ndarray, "N"]:  # noqa: F821
    """Places near these, in the same order, whose intervals do not overlap.

    Interval i has the length sizes[i] and its middle at place i. Intervals that would
    overlap move as one block, to the mean of where they want to be.
    """
    order = np.argsort(places, kind="stable")
    blocks: list[list[int]] = []
    for index in order:
        blocks.append([int(index)])
        while len(blocks) > 1 and _bottom(places, sizes, blocks[-1]) < _bottom(
            places, sizes, blocks[-2]
        ) + sum(sizes[i] for i in blocks[-2]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    result = np.empty(len(places))
    for block in blocks:
        bottom = _bottom(places, sizes, block)
        for index in block:
            result[index] = bottom + sizes[index] / 2
            bottom += sizes[index]
    return result


def _bottom(places: np.ndarray, sizes: np.ndarray, block: list[int]) -> float:
    middle = float(np.mean([places[index] for index in block]))
    return middle - sum(float(sizes[index]) for index in block) / 2
