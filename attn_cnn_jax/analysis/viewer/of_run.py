"""The viewer of a run: written once, or again whenever the run has saved more."""

import os
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from attn_cnn_jax import checkpoint
from attn_cnn_jax.analysis.attention_maps import LazyMaps
from attn_cnn_jax.analysis.figure_request import FigureRequest, checkpoints
from attn_cnn_jax.analysis.viewer import run_facts, write_viewer
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.run import Run

SECONDS_BETWEEN_LOOKS = 2.0


def write_viewer_of_run(
    request: FigureRequest,
    path: str | os.PathLike,
    *,
    accuracies: Callable[[pathlib.Path], Mapping[int, float]],
    snapshots: bool,
    max_bytes: int,
    others: Sequence[Run] = (),
) -> str:
    """Write the viewer of the shown images and return a line on what it holds.

    It has the run's checkpoint, with `snapshots` those too, and the checkpoints of
    `others`, to be shown beside them. `accuracies` gives those on the test set by step,
    for a workdir. Raises a `UserError` as `write_viewer` does, and for other runs of
    other data, layers or heads.
    """
    run = request.run
    for other in others:
        _refuse_another_kind(run, other)
    runs = [*others, *(checkpoints(run) if snapshots else [run])]
    scores = {one.workdir: accuracies(one.workdir) for one in [*others, run]}
    written = write_viewer(
        path,
        LazyMaps(runs, request.shown),
        title=run.name,
        facts=run_facts(
            runs, request.shown, [scores[one.workdir].get(one.step) for one in runs]
        ),
        max_bytes=max_bytes,
    )
    images = _count(written.num_images, "image")
    shown = _count(written.num_checkpoints, "checkpoint")
    line = (
        f"{path} ({written.size / 1e6:.1f} MB, {images}, {shown} up to epoch "
        f"{run.epoch:.4g}): open it in a browser"
    )
    if written.left_out:
        line += (
            f". {written.left_out} Show fewer images or checkpoints for more of the "
            "others, or raise it."
        )
    return line


def _refuse_another_kind(run: Run, other: Run) -> None:
    """Refuse a run that has no maps of the same images, layers and heads."""
    kinds = [
        (one.config.dataset.name, [(name, s.shape[1:]) for name, s in one.layers])
        for one in (run, other)
    ]
    if kinds[0] != kinds[1]:
        raise UserError(
            f"{other.name} cannot be shown beside {run.name}: they differ in their "
            "data, layers or heads."
        )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def newest(run: Run) -> Iterator[Run]:
    """Yield the run at its newest checkpoint, until it has trained all of its epochs.

    The first is `run` itself as soon as it has saved anything; each later one shares
    its data and programs, and comes when a checkpoint or a snapshot is new.
    """
    shown: list[int] = []
    while True:
        saved = checkpoint.steps(run.workdir)
        if saved != shown:
            at_newest = run.at("last") if shown else run
            yield at_newest
            if at_newest.epoch >= run.config.num_epochs:
                return
            shown = saved
        time.sleep(SECONDS_BETWEEN_LOOKS)
