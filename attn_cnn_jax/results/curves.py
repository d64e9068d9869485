"""Accuracy and loss over training, the runs of one config side by side (Figure 1)."""

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from jaxtyping import Float

from attn_cnn_jax.analysis import plots
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.results.summaries import (
    RunSummary,
    Series,
    group_by_seed,
    read_runs,
)

_MOST_FIELDS = 3  # that tell runs of equal names apart


@dataclasses.dataclass(frozen=True)
class Curve:
    """Scores of runs that differ only in the seed, at the same epochs.

    `group` is what these runs have in common, and theirs alone; `label` is for people.
    NaN where a run has no score at an epoch: it is unfinished, or was evaluated at
    other intervals.
    """

    group: str
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
    found = []
    for label, runs in _labelled(workdirs):
        scored = [run for run in runs if split in run.series]
        if scored:
            found.append(_curve(label, scored, split))
    if not found:
        raise UserError(f"none of these runs has scores of the split {split!r}.")
    return found


def _curve(label: str, runs: Sequence[RunSummary], split: str) -> Curve:
    series = [run.series[split] for run in runs]
    epochs = np.unique(np.concatenate([one.epochs for one in series]))
    accuracy = np.full((len(runs), len(epochs)), np.nan)
    loss = accuracy.copy()
    for i, one in enumerate(series):
        at = np.searchsorted(epochs, one.epochs)
        accuracy[i, at], loss[i, at] = one.accuracy, one.loss
    seeds = tuple(run.seed for run in runs)
    return Curve(runs[0].identity, label, seeds, epochs, accuracy, loss)


def _labelled(
    workdirs: Iterable[str | os.PathLike],
) -> Iterator[tuple[str, list[RunSummary]]]:
    """The runs of each config with its label, which no other config has."""
    groups = group_by_seed(read_runs(workdirs))
    alike: dict[str, list[RunSummary]] = {}
    for runs in groups:
        alike.setdefault(_label(runs[0]), []).append(runs[0])
    for runs in groups:
        label = _label(runs[0])
        others = alike[label]
        if len(others) > 1:
            label = f"{label} ({_own(runs[0], others)})"
        yield label, runs


def _label(run: RunSummary) -> str:
    if run.row is None:
        return run.name
    differences = run.row.differences(run.fields)
    return (
        f"{run.row.label} ({'; '.join(differences)})" if differences else run.row.label
    )


def _own(run: RunSummary, others: Sequence[RunSummary]) -> str:
    """What tells a run's config from those of equal label: fields, or its path."""
    configs = [json.loads(other.identity) for other in others]
    keys = sorted(
        key
        for key in {key for config in configs for key in config}
        if any(config.get(key) != configs[0].get(key) for config in configs)
    )
    if len(keys) > _MOST_FIELDS:
        return str(run.workdir)
    values = [run.fields.get(key, "absent") for key in keys]
    return "; ".join(
        f"{key} {'empty' if value == '' else value}"
        for key, value in zip(keys, values, strict=True)
    )


def run_curves(workdirs: Iterable[str | os.PathLike]) -> list[plots.RunCurves]:
    """What `plots.learning_curves` draws: the scores of every run, named by its row.

    A run that has not been evaluated yet has training losses alone. Raises a
    `UserError` where no run has any score.
    """
    found = []
    for label, runs in _labelled(workdirs):
        for run in runs:
            train, test = run.series.get("train"), run.series.get("test")
            if train is None and test is None:
                continue
            found.append(
                plots.RunCurves(
                    group=run.identity,
                    label=label,
                    test_accuracy=_drawn(test, "accuracy"),
                    test_loss=_drawn(test, "loss"),
                    train_loss=plots.epoch_means(_drawn(train, "loss")),
                )
            )
    if not found:
        raise UserError(
            "none of these runs has scores of the split 'train' or 'test' in its "
            "metrics.jsonl yet: train on, or name others."
        )
    return found


def _drawn(series: Series | None, score: str) -> plots.Curve:
    if series is None:
        return plots.Curve(np.zeros(0), np.zeros(0))
    values = getattr(series, score)
    there = np.isfinite(values)
    epochs, first = np.unique(series.epochs[there], return_index=True)
    return plots.Curve(epochs, values[there][first])
