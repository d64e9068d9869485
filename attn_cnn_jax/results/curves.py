"""Accuracy and loss of runs over training, labelled to be drawn (Figure 1)."""

import dataclasses
import os
import re
import warnings
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float

from attn_cnn_jax import remote
from attn_cnn_jax.errors import UserError, one_line
from attn_cnn_jax.results import published
from attn_cnn_jax.results.runs import (
    ScoredRun,
    Series,
    group_by_seed,
    read_run,
    read_runs,
)

_MOST_FIELDS = 3  # that tell runs of equal names apart


@dataclasses.dataclass(frozen=True)
class Curve:
    """A number of one run over its epochs, in increasing order."""

    epochs: Float[np.ndarray, "E"]
    values: Float[np.ndarray, "E"]


@dataclasses.dataclass(frozen=True)
class RunCurves:
    """The curves of one run. Runs of one `group` differ in their seed alone."""

    group: str
    label: str  # of the group, which no other group has
    test_accuracy: Curve  # in [0, 1]
    test_loss: Curve  # nats
    train_loss: Curve  # nats, mean of each epoch


def run_curves(workdirs: Iterable[str | os.PathLike]) -> list[RunCurves]:
    """Return the curves of every run, side by side those that differ in their seed.

    Labels are the published rows' with what a run changed, or a run's name, of several
    that of none: what their names have in common but the seed, or their network. A run
    that has not been evaluated yet has training losses alone. Raises a `UserError`
    where no run has any score.
    """
    groups = group_by_seed(read_runs(workdirs))
    alike: dict[str, list[ScoredRun]] = {}
    for runs in groups:
        alike.setdefault(_label(runs), []).append(runs[0])
    found = []
    for runs in groups:
        label = _label(runs)
        if len(alike[label]) > 1:
            label = f"{label} ({_distinction(runs[0], alike[label])})"
        for run in runs:
            train, test = run.series.get("train"), run.series.get("test")
            if train is None and test is None:
                continue
            found.append(
                RunCurves(
                    group=run.identity,
                    label=label,
                    test_accuracy=_curve(test, "accuracy"),
                    test_loss=_curve(test, "loss"),
                    train_loss=epoch_means(_curve(train, "loss")),
                )
            )
    if not found:
        raise UserError(
            "none of these runs has scores of the split 'train' or 'test' in its "
            "metrics.jsonl yet: train on, or name others."
        )
    return found


def accuracies_by_step(workdir: str | os.PathLike) -> dict[int, float]:
    """Return a run's accuracies on the test set, in [0, 1], by the step of each.

    A warning says why there are none where its scores cannot be read.
    """
    try:
        test = read_run(workdir).series.get("test")
    except UserError as error:
        warnings.warn(f"no test accuracy is told: {one_line(error)}", stacklevel=2)
        return {}
    if test is None:
        return {}
    return dict(zip(test.steps.tolist(), test.accuracy.tolist(), strict=True))


def epoch_means(curve: Curve) -> Curve:
    """Return means over epochs: a value at epoch e - 1 < t <= e counts for epoch e."""
    whole = np.ceil(np.round(curve.epochs, 6))
    epochs = np.unique(whole)
    means = [curve.values[whole == epoch].mean() for epoch in epochs]
    return Curve(epochs, np.asarray(means, np.float64))


def _label(runs: Sequence[ScoredRun]) -> str:
    run = runs[0]
    if run.row is None:
        names = {re.sub(r"_?seed_?\d+$", "", run.name) or run.name for run in runs}
        if len(runs) == 1:
            return run.name
        if len(names) == 1:
            return names.pop()
        data, *network = published.data_and_network(run.config)
        return f"{', '.join(filter(None, network))} on {data}"
    _, _, option = run.row.config_name.partition(":")
    changed = "; ".join([*filter(None, [option]), *run.differences])
    return f"{run.row.label} ({changed})" if changed else run.row.label


def _distinction(run: ScoredRun, others: Sequence[ScoredRun]) -> str:
    """Return what tells a run from those of equal label: fields, or its path."""
    first, absent = others[0].settings, "absent"
    keys = {
        key
        for other in others
        for key in first.keys() | other.settings.keys()
        if first.get(key, absent) != other.settings.get(key, absent)
    }
    if len(keys) > _MOST_FIELDS:
        return remote.in_users_words(str(run.workdir))
    values = {key: run.settings.get(key, absent) for key in sorted(keys)}
    return "; ".join(
        f"{key} {'empty' if value == '' else value}" for key, value in values.items()
    )


def _curve(series: Series | None, score: str) -> Curve:
    if series is None:
        return Curve(np.zeros(0), np.zeros(0))
    values = getattr(series, score)
    there = np.isfinite(values)
    epochs, first = np.unique(series.epochs[there], return_index=True)
    return Curve(epochs, values[there][first])
