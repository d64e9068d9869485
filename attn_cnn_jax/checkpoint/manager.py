"""The checkpoints of a run that is being trained."""

import os
import pathlib
import time
import warnings
from collections.abc import Mapping
from typing import Any

import jax
from jax.experimental import multihost_utils
from ml_collections import ConfigDict
from orbax.checkpoint import v1 as ocp

from attn_cnn_jax.checkpoint import folder
from attn_cnn_jax.errors import UserError

_policies = ocp.training.preservation_policies


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
        for step, path in self._folders().items():
            if not folder.is_readable_json(path):
                self._set_aside(step, "its metadata cannot be read")
        best = _policies.BestN(
            get_metric_fn=lambda metrics: metrics.get("accuracy", -1.0),  # if damaged
            n=1,
            keep_checkpoints_without_metrics=False,
        )
        policies: list[Any] = [_policies.LatestN(self._keep), best]
        preserved: Any = _policies.AnyPreservationPolicy(policies)
        self._manager = ocp.training.Checkpointer(
            str(self._workdir / "checkpoints"),
            context=folder.context(),
            preservation_policy=preserved,
            cleanup_tmp_directories=True,
        )
        return self._manager

    def _folders(self) -> dict[int, pathlib.Path]:
        return folder.find(self._workdir, kinds=("checkpoints",))

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
        record = folder.make_record(self._config, step, items, progress, accuracy)
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
            folder.save_variables(path, self._config, step, variables)

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
            cause = folder.root_cause(error)
            warnings.warn(
                f"a checkpoint could not be written: {cause}; training goes on from "
                "the one before.",
                stacklevel=2,
            )
            try:
                self._close_manager()
            except Exception as again:
                if str(folder.root_cause(again)) != str(cause):  # else it is said twice
                    raise

    def restore(self, like: tuple[Any, Any]) -> folder.Checkpoint | None:
        """The newest checkpoint that is whole, or None if there is none at all.

        `like`: (variables, training) as pytrees of `jax.ShapeDtypeStruct` with their
        shardings. A damaged checkpoint is named in a warning and set aside, and the one
        before it is used; if none is whole, a `UserError` lists them.
        """
        abstract = {"variables": like[0], "training": like[1]}
        damage = {}
        for step, path in sorted(self._folders().items(), reverse=True):
            try:
                restored = folder.load_folder(path, abstract)
            except folder.DamagedError as error:
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
