"""Accuracy and loss over training, the runs of one config side by side (Figure 1)."""

import dataclasses
import os
from collections.abc import Iterable

import numpy as np
from jaxtyping import Float

from attn_cnn_jax.analysis import plots
from attn_cnn_jax.analysis.summaries import RunSummary, group_by_seed, read_runs
from attn_cnn_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Curve:
    """Scores of runs that differ only in the seed, at the same epochs.

    NaN where a run has no score at an epoch: it is unfinished, or was evaluated at
    other intervals.
    """

    label: str
    seeds: tuple[int, ...]
    epochs: Float[np.ndarray, "E"]
    accuracy: Float[np.ndarray, "S E"]  # in [0, 1]
    loss: Float[np.ndarray, "S E"]  # nats


def curves(workdirs: Iterable[str | os.PathLike], split: str = "test") -> list[Curve]:
    """A curve for each config among the runs, over its seeds, on one split.

    `split` is test, train or validation. Labels are the published rows' with what a
    run changed, or a run's name. Runs without scores on the split are left out.
    Raises a `UserError` where no run has any.
    """
    groups = [
        [run for run in group if split in run.series]
        for group in group_by_seed(read_runs(workdirs))
    ]
    found = [_curve(group, split) for group in groups if group]
    if not found:
        raise UserError(f"none of these runs has scores of the split {split!r}.")
    return found


def _curve(runs: list[RunSummary], split: str) -> Curve:
    series = [run.series[split] for run in runs]
    epochs = np.unique(np.concatenate([one.epochs for one in series]))
    accuracy = np.full((len(runs), len(epochs)), np.nan)
    loss = accuracy.copy()
    for i, one in enumerate(series):
        at = np.searchsorted(epochs, one.epochs)
        accuracy[i, at], loss[i, at] = one.accuracy, one.loss
    seeds = tuple(run.seed for run in runs)
    return Curve(_label(runs[0]), seeds, epochs, accuracy, loss)


def _label(run: RunSummary) -> str:
    if run.row is None:
        return run.name
    differences = run.row.differences(run.fields)
    return (
        f"{run.row.label} ({'; '.join(differences)})" if differences else run.row.label
    )


def run_curves(workdirs: Iterable[str | os.PathLike]) -> list[plots.RunCurves]:
    """What `plots.learning_curves` draws: the scores of every run, named by its row."""
    workdirs = list(workdirs)
    training = {curve.label: curve for curve in curves(workdirs, "train")}
    found = []
    for curve in curves(workdirs, "test"):
        train = training.get(curve.label)
        for i, seed in enumerate(curve.seeds):
            of_seed = (
                _drawn(train.epochs, train.loss[train.seeds.index(seed)])
                if train is not None and seed in train.seeds
                else plots.Curve(np.zeros(0), np.zeros(0))
            )
            found.append(
                plots.RunCurves(
                    label=curve.label,
                    test_accuracy=_drawn(curve.epochs, curve.accuracy[i]),
                    test_loss=_drawn(curve.epochs, curve.loss[i]),
                    train_loss=plots.epoch_means(of_seed),
                )
            )
    return found


def _drawn(epochs: np.ndarray, values: np.ndarray) -> plots.Curve:
    there = np.isfinite(values)
    return plots.Curve(epochs[there], values[there])
