"""Save, resume and load: what a workdir holds, and the only place that uses Orbax.

    workdir/config.json          the resolved config
    workdir/checkpoints/STEP/    record, variables, training: the newest and the best
    workdir/snapshots/STEP/      record, variables: those of the figures, all kept
    workdir/damaged/             checkpoints that could not be read back

A checkpoint appears under its name when it is complete. Its record (JSON) holds the
config and a digest of every array, for Orbax alone does not notice a flipped byte.
"""

import json
import os
import pathlib
import time
import warnings
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from attn_cnn_jax import config as config_lib
from attn_cnn_jax import remote
from attn_cnn_jax.checkpoint.folder import (
    Checkpoint,
    DamagedError,
    find,
    load_folder,
    load_record,
    refuse_other_shapes,
    save_variables,
)
from attn_cnn_jax.checkpoint.lock import refuse_links
from attn_cnn_jax.checkpoint.manager import Checkpoints
from attn_cnn_jax.errors import UserError

_SECONDS_TO_REMOVE = 0.2  # a checkpoint that is not kept, while somebody reads it

__all__ = [
    "Checkpoint",
    "Checkpoints",
    "is_resumable",
    "last_resumable",
    "load",
    "read_config",
    "refuse_links",
    "refuse_other_shapes",
    "snapshots",
    "steps",
    "write_config",
    "write_variables",
]


def load(workdir: str | os.PathLike, checkpoint: str | int = "last") -> Checkpoint:
    """Load config and variables (NumPy arrays) of a run, from its workdir or URL.

    `checkpoint`: "last" (the newest that is whole), "best" (by the accuracy when it was
    saved), or a step. Raises a `UserError` that says what there is.
    """
    path = pathlib.Path(remote.local(os.fspath(workdir))).absolute()
    while True:
        damage: dict[pathlib.Path, str] = {}
        loaded = _load(path, checkpoint, damage)
        if damage:
            time.sleep(_SECONDS_TO_REMOVE)
        if all(damaged.exists() for damaged in damage):
            break  # else a run that goes on was removing it: look again
    instead = "" if loaded is None else f"; using {loaded.step} instead"
    lines = [f"{damaged} is damaged: {why}" for damaged, why in damage.items()]
    if loaded is None:
        raise UserError("; ".join(lines))
    for line in lines:
        warnings.warn(f"{line}{instead}.", stacklevel=2)
    return loaded


def _load(
    workdir: pathlib.Path, checkpoint: str | int, damage: dict[pathlib.Path, str]
) -> Checkpoint | None:
    """Load as `load` does; note what is damaged, None if nothing else is there."""
    folders = find(workdir)
    if not folders:
        raise UserError(f"{workdir} holds no checkpoint of a run.")
    if checkpoint == "last":
        wanted = sorted(folders, reverse=True)
    elif checkpoint == "best":
        wanted = _by_accuracy(folders, damage)[:1]
    elif checkpoint in folders:
        wanted = [int(checkpoint)]
    else:
        there = ", ".join(str(step) for step in sorted(folders))
        raise UserError(
            f"{workdir} has no checkpoint {checkpoint}; choose last, best or one of "
            f"{there}."
        )
    for step in wanted:
        try:
            return load_folder(folders[step], None)
        except DamagedError as error:
            damage[folders[step]] = str(error)
    return None


def steps(workdir: str | os.PathLike) -> list[int]:
    """Return the steps that `load` can find in a workdir, oldest first."""
    return sorted(find(pathlib.Path(workdir).absolute()))


def snapshots(workdir: str | os.PathLike) -> list[int]:
    """Return the steps of the snapshots for figures, oldest first."""
    return sorted(find(pathlib.Path(workdir).absolute(), kinds=("snapshots",)))


def is_resumable(workdir: str | os.PathLike) -> bool:
    """Tell whether a run has saved anything that it could be continued from."""
    return last_resumable(workdir) is not None


def last_resumable(workdir: str | os.PathLike) -> int | None:
    """Return the newest step that a run could be continued from, if any."""
    return max(
        find(pathlib.Path(workdir).absolute(), kinds=("checkpoints",)), default=None
    )


def write_variables(
    workdir: str | os.PathLike, config: ConfigDict, variables: Mapping[str, Any]
) -> None:
    """Make a workdir of variables that were trained elsewhere, as checkpoint 0.

    It evaluates and analyses like a run of our own; it cannot be trained on.
    """
    path = pathlib.Path(workdir).absolute()
    if read_config(path) is not None or find(path):
        raise UserError(f"{workdir} already holds a run; name another --workdir.")
    write_config(path, config)
    try:
        save_variables(path / "checkpoints" / "0", config, 0, variables)
    except (OSError, ValueError) as error:
        raise UserError(f"{workdir} cannot be written: {error}.") from error


def write_config(workdir: str | os.PathLike, config: ConfigDict) -> None:
    """Write `config.json`, replacing it whole."""
    path = pathlib.Path(workdir) / "config.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        refuse_links(path.parent)
        new = path.with_suffix(".json.new")
        new.write_text(config_lib.to_json(config) + "\n", encoding="utf-8")
        new.replace(path)
    except OSError as error:
        raise UserError(f"the workdir {workdir} cannot be written: {error}.") from error


def read_config(workdir: str | os.PathLike) -> ConfigDict | None:
    """Return the config of a run, or None where there is no run."""
    path = pathlib.Path(workdir) / "config.json"
    if not path.exists():
        return None
    try:
        return config_lib.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except Exception as error:  # it may hold whatever JSON can say
        raise UserError(f"{path} cannot be read: {error}.") from error


def _by_accuracy(
    folders: Mapping[int, pathlib.Path], damage: dict[pathlib.Path, str]
) -> list[int]:
    """Return the steps that were evaluated, best first, of equal ones the latest."""
    accuracies = {}
    for step, path in folders.items():
        try:
            accuracy = load_record(path)["accuracy"]
        except DamagedError as error:
            damage[path] = str(error)
            continue
        if accuracy is not None:
            accuracies[step] = accuracy
    if not accuracies and not damage:
        raise UserError("no checkpoint was evaluated yet: there is no best one.")
    return sorted(accuracies, key=lambda step: (accuracies[step], step), reverse=True)
