"""Save, resume and load: what a workdir holds, and the only place that uses Orbax.

    workdir/config.json          the resolved config
    workdir/checkpoints/STEP/    record, variables, training: the newest and the best
    workdir/snapshots/STEP/      record, variables: those of the figures, all kept
    workdir/damaged/             checkpoints that could not be read back

A checkpoint appears under its name when it is complete. Its record (JSON) holds the
config and a digest of every array, for Orbax alone does not notice a flipped byte.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import time
import warnings
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from ml_collections import ConfigDict
from orbax.checkpoint import v1 as ocp

from attn_cnn_jax import config as config_lib
from attn_cnn_jax.errors import UserError

_policies = ocp.training.preservation_policies


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """What one checkpoint holds; `training` is None where only variables were saved."""

    step: int
    config: ConfigDict
    variables: dict[str, Any]
    training: Any = None
    progress: dict[str, Any] = dataclasses.field(default_factory=dict)


class DamagedError(Exception):
    """A checkpoint that cannot be read back as it was written."""


class Checkpoints:
    """The checkpoints of a run that is being trained; also a context manager."""

    def __init__(
        self, workdir: str | os.PathLike, config: ConfigDict, keep: int = 2
    ) -> None:
        self._workdir = pathlib.Path(workdir).absolute()
        self._config = config
        self._keep = keep
        self._pending: Any = None
        self._manager: ocp.training.Checkpointer | None = None

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def _open(self) -> ocp.training.Checkpointer:
        """Orbax's manager of `checkpoints/`; it refuses to start on broken JSON."""
        if self._manager is not None:
            return self._manager
        for step, folder in self._folders().items():
            if not _is_readable_json(folder):
                self._set_aside(step, "its metadata cannot be read")
        best = _policies.BestN(
            get_metric_fn=lambda metrics: metrics.get("accuracy", -1.0),  # if damaged
            n=1,
            keep_checkpoints_without_metrics=False,
        )
        self._manager = ocp.training.Checkpointer(
            self._workdir / "checkpoints",
            context=_context(),
            preservation_policy=_policies.AnyPreservationPolicy(
                [_policies.LatestN(self._keep), best]
            ),
            cleanup_tmp_directories=True,
        )
        return self._manager

    def _folders(self) -> dict[int, pathlib.Path]:
        return _folders(self._workdir, kinds=("checkpoints",))

    def _set_aside(self, step: int, reason: str) -> None:
        """Move a damaged checkpoint to `damaged/`, where nothing looks for it."""
        warnings.warn(f"checkpoint {step} is damaged: {reason}", stacklevel=4)
        multihost_utils.sync_global_devices(f"before_set_aside_{step}")
        if jax.process_index() == 0:
            target = self._workdir / "damaged" / f"{step}_{time.time_ns()}"
            target.parent.mkdir(exist_ok=True)
            (self._workdir / "checkpoints" / str(step)).rename(target)
        multihost_utils.sync_global_devices(f"after_set_aside_{step}")

    def save(
        self,
        step: int,
        variables: Mapping[str, Any],
        training: Any,
        progress: Mapping[str, Any],
        accuracy: float | None = None,
    ) -> None:
        """Begin to save; the arrays may be donated as soon as this returns.

        A state with a value that is not finite is refused with a `UserError`.
        `accuracy` (in [0, 1]) makes this a candidate for the best.
        """
        self.wait()
        if step in self._folders():
            return
        items = {"variables": variables, "training": training}
        record = _record(self._config, step, items, progress, accuracy)
        self._pending = self._open().save_checkpointables_async(
            step,
            {"record": record, **items},
            metrics=None if accuracy is None else {"accuracy": accuracy},
            force=True,
        )

    def save_snapshot(self, step: int, variables: Mapping[str, Any]) -> None:
        """Save the variables alone, to be kept; does nothing if they already are."""
        path = self._workdir / "snapshots" / str(step)
        if not path.exists():
            _save_variables(path, self._config, step, variables)

    def wait(self) -> None:
        """Until the checkpoint that is being saved is complete.

        Where it cannot be written (a full disk), training goes on without it: the
        earlier ones are whole, and the next save tries again.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            pending.result()
        except Exception as error:
            cause = _root_cause(error)
            warnings.warn(
                f"a checkpoint could not be written: {cause}; training goes on from "
                "the one before.",
                stacklevel=2,
            )
            try:
                self._close_manager()
            except Exception as again:
                if str(_root_cause(again)) != str(cause):  # else it is said twice
                    raise

    def restore(self, like: tuple[Any, Any]) -> Checkpoint | None:
        """The newest checkpoint that is whole, or None if there is none at all.

        `like`: (variables, training) as pytrees of `jax.ShapeDtypeStruct` with their
        shardings. A damaged checkpoint is named in a warning and set aside, and the one
        before it is used; if none is whole, a `UserError` lists them.
        """
        abstract = dict(zip(("variables", "training"), like, strict=True))
        damage = {}
        for step, folder in sorted(self._folders().items(), reverse=True):
            try:
                restored = _load_folder(folder, abstract)
            except DamagedError as error:
                damage[step] = str(error)
                continue
            for broken, reason in damage.items():
                self._set_aside(broken, f"{reason}; using {step} instead")
            return restored
        if damage:
            reasons = "; ".join(f"{step}: {why}" for step, why in damage.items())
            raise UserError(
                f"no checkpoint in {self._workdir} can be read ({reasons}). Restore "
                "one from a copy, or start again in another --workdir."
            )
        return None

    def close(self) -> None:
        """Wait for the last save and release the directory."""
        self.wait()
        self._close_manager()

    def _close_manager(self) -> None:
        manager, self._manager = self._manager, None
        if manager is not None:
            manager.close()


def load(workdir: str | os.PathLike, checkpoint: str | int = "last") -> Checkpoint:
    """The config and the variables (NumPy arrays) of a run, from its workdir alone.

    `checkpoint`: "last" (the newest that is whole), "best" (by the accuracy when it was
    saved), or a step. Raises a `UserError` that says what there is.
    """
    folders = _folders(pathlib.Path(workdir).absolute())
    if not folders:
        raise UserError(f"{workdir} holds no checkpoint of a run.")
    if checkpoint == "last":
        wanted = sorted(folders, reverse=True)
    elif checkpoint == "best":
        wanted = [_best(folders)]
    elif checkpoint in folders:
        wanted = [int(checkpoint)]
    else:
        there = ", ".join(str(step) for step in sorted(folders))
        raise UserError(
            f"{workdir} has no checkpoint {checkpoint}; choose last, best or one of "
            f"{there}."
        )
    damage = []
    for step in wanted:
        try:
            loaded = _load_folder(folders[step], None)
        except DamagedError as error:
            damage.append(f"{folders[step]} is damaged: {error}")
            continue
        for line in damage:
            warnings.warn(f"{line}; using {step} instead.", stacklevel=2)
        return loaded
    raise UserError("; ".join(damage))


def steps(workdir: str | os.PathLike) -> list[int]:
    """Steps that `load` can find in a workdir, oldest first."""
    return sorted(_folders(pathlib.Path(workdir).absolute()))


def write_variables(
    workdir: str | os.PathLike, config: ConfigDict, variables: Mapping[str, Any]
) -> None:
    """Make a workdir of variables that were trained elsewhere, as checkpoint 0.

    It evaluates and analyses like a run of our own; it cannot be trained on.
    """
    path = pathlib.Path(workdir).absolute()
    if read_config(path) is not None or _folders(path):
        raise UserError(f"{workdir} already holds a run; name another --workdir.")
    write_config(path, config)
    _save_variables(path / "checkpoints" / "0", config, 0, variables)


def write_config(workdir: str | os.PathLike, config: ConfigDict) -> None:
    """Write `config.json`, replacing it whole."""
    path = pathlib.Path(workdir) / "config.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".json.new")
        new.write_text(config_lib.to_json(config) + "\n", encoding="utf-8")
        new.replace(path)
    except OSError as error:
        raise UserError(f"the workdir {workdir} cannot be written: {error}.") from error


def read_config(workdir: str | os.PathLike) -> ConfigDict | None:
    """The config of a run, or None where there is no run."""
    path = pathlib.Path(workdir) / "config.json"
    if not path.exists():
        return None
    try:
        return config_lib.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from error


def _folders(
    workdir: pathlib.Path, kinds: tuple[str, ...] = ("snapshots", "checkpoints")
) -> dict[int, pathlib.Path]:
    """Complete checkpoints by step; one that can be resumed hides a snapshot."""
    found = {}
    for kind in kinds:
        for path in (workdir / kind).glob("*"):
            if path.name.isdigit() and path.is_dir():
                found[int(path.name)] = path
    return found


def _is_readable_json(folder: pathlib.Path) -> bool:
    for name in ("_CHECKPOINT_METADATA", "metrics/metrics"):
        path = folder / name
        try:
            if path.exists():
                json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
    return True


def _best(folders: Mapping[int, pathlib.Path]) -> int:
    accuracies = {}
    for step, path in folders.items():
        try:
            accuracy = _load_record(path)["accuracy"]
        except DamagedError as error:
            warnings.warn(f"{path} is damaged: {error}", stacklevel=3)
            continue
        if accuracy is not None:
            accuracies[step] = accuracy
    if not accuracies:
        raise UserError("no checkpoint was evaluated yet: there is no best one.")
    return max(accuracies, key=lambda step: (accuracies[step], step))


def _context() -> ocp.Context:
    """Orbax with the item `record` kept as plain JSON."""
    registry = ocp.handlers.local_registry()
    registry.add(ocp.handlers.JsonHandler, checkpointable_name="record")
    context = ocp.Context()
    context.checkpointables.registry = registry
    return context


def _save_variables(
    path: pathlib.Path, config: ConfigDict, step: int, variables: Mapping[str, Any]
) -> None:
    items = {"variables": variables}
    with _context():
        ocp.save_checkpointables(
            path, {"record": _record(config, step, items), **items}
        )


def _record(
    config: ConfigDict,
    step: int,
    items: Mapping[str, Any],
    progress: Mapping[str, Any] | None = None,
    accuracy: float | None = None,
) -> dict[str, Any]:
    """What stands beside the arrays, with digests of them and of itself."""
    content = {
        "step": step,
        "config": config.to_dict(),
        "digests": _digests(items),
        "progress": dict(progress or {}),
        "accuracy": accuracy,
    }
    return {"content": json.dumps(content), "digest": _digest_of_content(content)}


def _digest_of_content(content: Any) -> str:
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=16).hexdigest()


def _digests(items: Mapping[str, Any]) -> dict[str, str]:
    """A digest of every array; refuses values that are not finite."""
    digests = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(items):
        array = np.ascontiguousarray(leaf)
        name = "/".join(str(getattr(k, "key", getattr(k, "name", k))) for k in path)
        if array.dtype.kind not in "iub" and not np.isfinite(array).all():
            raise UserError(
                f"{name} has values that are not finite; such a state is never saved. "
                "Lower config.optimizer.learning_rate."
            )
        header = f"{array.dtype} {array.shape}".encode()
        digest = hashlib.blake2b(header, digest_size=16)
        digest.update(array.reshape(-1).view(np.uint8).data)
        digests[name] = digest.hexdigest()
    return digests


def _load_record(path: pathlib.Path) -> dict[str, Any]:
    try:
        with _context():
            record = ocp.load_checkpointables(path, {"record": None})["record"]
        content = json.loads(record["content"])
        intact = record["digest"] == _digest_of_content(content)
    except Exception as error:
        raise DamagedError(f"its record cannot be read ({_root_cause(error)})") from (
            error
        )
    if not intact:
        raise DamagedError("its record does not match its digest")
    return content


def _load_folder(path: pathlib.Path, like: Mapping[str, Any] | None) -> Checkpoint:
    """Load and verify one checkpoint; without `like` its variables as NumPy arrays."""
    record = _load_record(path)
    if like is not None and not (path / "training").exists():
        raise DamagedError("it holds variables only and cannot be trained on")
    try:
        with _context():
            if like is None:
                saved = ocp.checkpointables_metadata(path).metadata["variables"]
                like = {
                    "variables": jax.tree.map(
                        lambda leaf: np.empty(leaf.shape, leaf.dtype), saved
                    )
                }
            items = ocp.load_checkpointables(path, dict(like))
    except Exception as error:
        raise DamagedError(str(_root_cause(error)).splitlines()[0]) from error
    for name, digest in _digests(items).items():
        if record["digests"].get(name) != digest:
            raise DamagedError(f"{name} does not match its digest")
    return Checkpoint(
        step=record["step"],
        config=config_lib.from_dict(record["config"]),
        variables=items["variables"],
        training=items.get("training"),
        progress=record["progress"],
    )


def _root_cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error
