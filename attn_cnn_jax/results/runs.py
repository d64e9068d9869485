"""Runs as tables and curves need them: config, scores over epochs, size, speed.

Everything is read as data and checked; no checkpoint is opened and no array computed.
"""

import dataclasses
import functools
import json
import math
import os
import pathlib
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from ml_collections import ConfigDict

from attn_cnn_jax import config as config_lib
from attn_cnn_jax import records
from attn_cnn_jax.errors import UserError, one_line
from attn_cnn_jax.goodput import ACTIVITIES
from attn_cnn_jax.results import published
from attn_cnn_jax.results.bench_records import (
    BenchRecord,
    finite,
    read_bench_record,
)
from attn_cnn_jax.run import Run


@dataclasses.dataclass(frozen=True)
class Series:
    """The scores of one split over a run, by rising step."""

    steps: Int[np.ndarray, "E"]
    epochs: Float[np.ndarray, "E"]
    accuracy: Float[np.ndarray, "E"]  # in [0, 1]
    loss: Float[np.ndarray, "E"]  # nats


@dataclasses.dataclass(frozen=True)
class Score:
    """Accuracy on the test set at a step."""

    step: int
    accuracy: float


@dataclasses.dataclass(frozen=True)
class ScoredRun:
    """A run and how far it came."""

    run: Run
    seed: int
    num_epochs: int
    epochs: float  # trained so far
    finished: bool  # trained and evaluated to the end
    series: Mapping[str, Series]  # by split: train, test, validation
    final: Score | None  # last evaluation on the test set
    best: Score | None  # on the test set, at the step that `chosen_on` chose
    chosen_on: str  # "test", as published, or "validation"
    parameters: int | None  # None: its model cannot be counted without its data
    bench: BenchRecord | None
    goodput: float | None = None  # share of its wall time that it trained, at its end
    test_images: int | None = None  # that were scored
    digest: str | None = None  # of its log: the first 8 hex digits of the last "chain"

    @property
    def name(self) -> str:
        """The name of the workdir."""
        return self.run.name

    @property
    def workdir(self) -> pathlib.Path:
        """The workdir as an absolute path."""
        return self.run.workdir

    @property
    def config(self) -> ConfigDict:
        """The config of the run."""
        return self.run.config

    @functools.cached_property
    def row(self) -> published.Row | None:
        """The row of the published tables that this run belongs to."""
        return published.find_row(self.config, self.parameters)

    @functools.cached_property
    def differences(self) -> tuple[str, ...]:
        """Return how this run departs from its row; nothing where it has none."""
        return self.row.differences(self.config) if self.row else ()

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """All that decides the numbers of this run but its seed, by dotted field."""
        changes = config_lib.changes(ConfigDict(), self.config).items()
        return {field: value for field, (_, value) in changes if field != "seed"}

    @property
    def identity(self) -> str:
        """The text that is the same for runs that differ only in the seed."""
        return json.dumps(self.settings, sort_keys=True, default=str)


def read_run(workdir: str | os.PathLike) -> ScoredRun:
    """Return the run of a workdir with its scores.

    Raises a `UserError` where it holds none, or one whose config or metrics cannot be
    read; warns of single lines that cannot.
    """
    try:
        run = Run(workdir)
    except UserError as error:  # which names the folder as it is, on several lines too
        raise UserError(one_line(error)) from error
    path, fields = run.workdir, config_lib.flatten(run.config)
    seed, num_epochs = (_whole(path, fields, key) for key in ("seed", "num_epochs"))
    log = _read_log(path)
    series = log.series
    test, validation = series.get("test"), series.get("validation")
    held_out = fields.get("dataset.validation_fraction", 0) not in (0, None)
    epochs = max((float(s.epochs[-1]) for s in series.values()), default=0.0)
    parameters = _count(run)
    return ScoredRun(
        run=run,
        seed=seed,
        num_epochs=num_epochs,
        epochs=epochs,
        finished=test is not None and bool(test.epochs[-1] >= num_epochs - 1e-6),
        series=series,
        final=_score(test, -1) if test else None,
        best=_best(test, validation if held_out else test),
        chosen_on="validation" if held_out else "test",
        parameters=parameters,
        bench=read_bench_record(path, parameters),
        goodput=log.goodput,
        test_images=log.test_images,
        digest=log.digest,
    )


def read_runs(workdirs: Iterable[str | os.PathLike]) -> list[ScoredRun]:
    """Return the runs among `workdirs`, each once.

    A warning of one line names every other folder. Raises a `UserError` where there is
    no run at all.
    """
    paths = list(
        {pathlib.Path(w).resolve(): pathlib.Path(w) for w in workdirs}.values()
    )
    runs = []
    for path in paths:
        try:
            runs.append(read_run(path))
        except UserError as error:
            warnings.warn(f"{error} It is left out.", stacklevel=2)
    if not runs:
        raise UserError(
            f"none of the {len(paths)} folders is the workdir of a run; name some, as "
            "in --workdirs=runs/*."
        )
    kept = {id(run) for group in group_by_seed(runs) for run in group}
    for run in runs:
        if id(run) not in kept:
            warnings.warn(
                f"{one_line(run.workdir)} repeats the seed {run.seed} of another of "
                "these runs and is left out.",
                stacklevel=2,
            )
    return [run for run in runs if id(run) in kept]


def group_by_seed(runs: Iterable[ScoredRun]) -> list[list[ScoredRun]]:
    """Return the runs in groups that differ only in the seed, by rising seed.

    Of two runs of one seed the one that was trained longer stands for both.
    """
    groups: dict[str, dict[int, ScoredRun]] = {}
    for run in runs:
        seeds = groups.setdefault(run.identity, {})
        seeds[run.seed] = max(seeds.get(run.seed, run), run, key=lambda r: r.epochs)
    return [[seeds[seed] for seed in sorted(seeds)] for seeds in groups.values()]


@dataclasses.dataclass(frozen=True)
class _Log:
    """What `metrics.jsonl` says, see `ScoredRun`."""

    series: dict[str, Series] = dataclasses.field(default_factory=dict)
    goodput: float | None = None
    test_images: int | None = None
    digest: str | None = None


def _read_log(path: pathlib.Path) -> _Log:
    """Return what the log says; a file without a single good line is damaged."""
    file = path / "metrics.jsonl"
    if not file.exists():
        return _Log()  # begun, but nothing was logged yet
    try:
        lines, complaints = records.inspect(path)
    except OSError as error:
        raise UserError(
            f"{one_line(file)} cannot be read: {one_line(error)}."
        ) from error
    good: dict[str, dict[int, tuple[float, float, float]]] = {}
    without_scores = 0
    for record in lines:
        if record.get("split") in (records.HEADS, records.GOODPUT):
            continue
        step, epoch = finite(record["step"]), finite(record.get("epoch"))
        accuracy, loss = finite(record.get("accuracy")), finite(record.get("loss"))
        if step is None or epoch is None or accuracy is None or accuracy > 1:
            without_scores += 1
            continue
        scores = (epoch, accuracy, math.nan if loss is None else loss)
        good.setdefault(str(record.get("split")), {})[int(step)] = scores
    if not good and file.stat().st_size:
        raise UserError(f"{one_line(file)} has no line with scores.")
    if without_scores:
        complaints.append(f"{one_line(file)}: {without_scores} lines have no scores.")
    for complaint in complaints:
        warnings.warn(one_line(complaint), stacklevel=3)
    by_split = {
        split: [record for record in lines if record.get("split") == split]
        for split in ("test", records.GOODPUT)
    }
    return _Log(
        series={split: _series(steps) for split, steps in good.items()},
        goodput=_goodput(by_split[records.GOODPUT]),
        test_images=_images(by_split["test"]),
        digest=_digest(lines),
    )


def _images(of_test: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the number of images that every evaluation scored, if it is one."""
    counts = [record.get("images") for record in of_test]
    count = counts[0] if counts and all(c == counts[0] for c in counts) else None
    return count if type(count) is int and 0 < count < 2**53 else None


def _digest(lines: Sequence[Mapping[str, Any]]) -> str | None:
    chain = str(lines[-1].get("chain")) if lines else ""
    return chain[:8] if re.fullmatch("[0-9a-f]{16}", chain) else None


def _goodput(of_ends: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the share of training in the seconds that the last end of a run knows."""
    if not of_ends:
        return None
    seconds = [finite(of_ends[-1].get(name)) for name in ACTIVITIES]
    known = [max(value, 0.0) for value in seconds if value is not None]
    whole = len(known) == len(ACTIVITIES) and sum(known) > 0
    return known[0] / sum(known) if whole else None


def _series(by_step: Mapping[int, tuple[float, float, float]]) -> Series:
    steps = sorted(by_step)
    values = np.array([by_step[step] for step in steps], np.float64)
    return Series(np.array(steps, np.int64), *values.T)


def _best(test: Series | None, chooser: Series | None) -> Score | None:
    """Return the test score at the latest of the steps where `chooser` is highest."""
    if test is None or chooser is None:
        return None
    highest = np.flatnonzero(chooser.accuracy == chooser.accuracy.max())[-1]
    at = np.flatnonzero(test.steps == chooser.steps[highest])
    return _score(test, int(at[0])) if len(at) else None


def _score(series: Series, index: int) -> Score:
    return Score(int(series.steps[index]), float(series.accuracy[index]))


def _count(run: Run) -> int | None:
    try:
        return published.count_parameters(run.config)
    except Exception as error:  # what a damaged config can raise in a model is endless
        reason = one_line(error) or type(error).__name__
        text = f"the parameters of {one_line(run.workdir)} cannot be counted: {reason}"
        warnings.warn(text, stacklevel=3)
        return None


def _whole(path: pathlib.Path, fields: Mapping[str, Any], key: str) -> int:
    value = fields.get(key)
    if type(value) is not int or not 0 <= value < 2**63:
        raise UserError(f"{one_line(path)}: config.json names no {key}.")
    return value
