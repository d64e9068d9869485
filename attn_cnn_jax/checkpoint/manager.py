"""The checkpoints of a run that is being trained."""

import os
import pathlib
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from ml_collections import ConfigDict
from orbax.checkpoint import v1 as ocp

from attn_cnn_jax.checkpoint import folder
from attn_cnn_jax.errors import UserError

_policies = ocp.training.preservation_policies


class Checkpoints:
    """The checkpoints of a run that is being trained; also a context manager.

    Saving copies the arrays to the host; a thread does the rest, in the order in which
    it was asked to. There is at most one step that is being saved.
    """

    def __init__(
        self, workdir: str | os.PathLike, config: ConfigDict, keep: int = 2
    ) -> None:
        self._workdir = pathlib.Path(workdir).absolute()
        self._config = config
        self._keep = keep
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._saving = -1  # the step whose saves are pending
        self._pending: list[Callable[[], Any]] = []
        self._manager: ocp.training.Checkpointer | None = None

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def _open(self) -> ocp.training.Checkpointer:
        """Open Orbax's manager of `checkpoints/`.

        It does not start on broken JSON of its own, without which all else can be read.
        """
        if self._manager is not None:
            return self._manager
        for path in self._folders().values():
            for broken in folder.unreadable_json(path):
                warnings.warn(f"{broken} is damaged; going on without it", stacklevel=3)
                self._on_process_0(broken.unlink)
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
        )
        return self._manager

    def _folders(self) -> dict[int, pathlib.Path]:
        return folder.find(self._workdir, kinds=("checkpoints",))

    def _set_aside(self, step: int, reason: str) -> None:
        """Move a damaged checkpoint to `damaged/`, where nothing looks for it."""
        warnings.warn(f"checkpoint {step} is damaged: {reason}", stacklevel=4)
        target = self._workdir / "damaged" / f"{step}_{time.time_ns()}"
        target.parent.mkdir(exist_ok=True)
        checkpoint = self._workdir / "checkpoints" / str(step)
        self._on_process_0(lambda: checkpoint.rename(target))

    def _on_process_0(self, change: Callable[[], Any]) -> None:
        """Change files once all processes have read them, and before any goes on."""
        multihost_utils.sync_global_devices("before a change of files")
        if jax.process_index() == 0:
            change()
        multihost_utils.sync_global_devices("after a change of files")

    def save(
        self,
        step: int,
        variables: Mapping[str, Any],
        training: Any,
        progress: Mapping[str, Any],
        accuracy: float | None = None,
    ) -> None:
        """Begin to save; the arrays may be donated as soon as this returns.

        A state with a value that is not finite is never saved: the next `wait`, `save`
        of another step or `close` raises a `UserError`. `accuracy` (in [0, 1]) makes
        this a candidate for the best.
        """
        self._wait_for_other_steps(step)
        if step in self._folders():
            return
        items = folder.on_host({"variables": variables, "training": training})
        metrics: Any = None if accuracy is None else {"accuracy": accuracy}

        def begin() -> Any:
            record = folder.make_record(self._config, step, items, progress, accuracy)
            self._remove_leftovers()
            return self._open().save_checkpointables_async(
                step, {"record": record, **items}, metrics=metrics, force=True
            )

        self._begin(begin)

    def save_snapshot(self, step: int, variables: Mapping[str, Any]) -> None:
        """Save the variables alone, to be kept; does nothing if they already are.

        It is complete before a checkpoint of a later step is.
        """
        self._wait_for_other_steps(step)
        path = self._workdir / "snapshots" / str(step)
        if path.exists():
            return
        variables = folder.on_host(variables)
        self._begin(lambda: folder.save_variables(path, self._config, step, variables))

    def wait(self) -> None:
        """Wait until all that is being saved is complete.

        Raises a `UserError` if it has a value that is not finite.
        """
        while self._pending:
            self._pending.pop(0)()

    def _wait_for_other_steps(self, step: int) -> None:
        if step != self._saving:
            self.wait()
        self._saving = step

    def _begin(self, begin: Callable[[], Any]) -> None:
        """Let the thread call `begin()` and wait for what it returns, if anything.

        With several processes only Orbax's own threads work beside the steps, for it
        begins a save with a computation of all devices: that has to come after the same
        step in every process.
        """
        if jax.process_count() > 1:
            begun = self._attempt(begin)
            if begun is not None:
                self._pending.append(lambda: self._attempt(begun.result))
            return

        def save() -> None:
            begun = begin()
            if begun is not None:
                begun.result()

        self._pending.append(self._thread.submit(self._attempt, save).result)

    def _attempt(self, write: Callable[[], Any]) -> Any:
        """Return `write()`. Where it fails (a full disk) training goes on.

        A warning says so; the earlier checkpoints are whole, and the next save tries
        again.
        """
        try:
            return write()
        except UserError:
            raise
        except Exception as error:
            cause = folder.root_cause(error)
            warnings.warn(
                f"a checkpoint could not be written: {cause}; training goes on.",
                stacklevel=3,
            )
            try:
                self._close_manager()
            except Exception as again:
                if str(folder.root_cause(again)) != str(cause):  # else it is said twice
                    raise
            return None

    def _remove_leftovers(self) -> None:
        """Remove what saves have left that failed or were killed.

        Of a save that has just failed some files may still be written, so that its
        folder cannot be removed yet; the next save does that.
        """
        if jax.process_index() == 0:
            for path in self._workdir.glob("*/*.orbax-checkpoint-tmp*"):
                shutil.rmtree(path, ignore_errors=True)

    def restore(self, like: tuple[Any, Any]) -> folder.Checkpoint | None:
        """Restore the newest checkpoint that is whole; None if there is none at all.

        `like`: (variables, training) as pytrees of `jax.ShapeDtypeStruct` with their
        shardings. A damaged checkpoint is named in a warning and set aside, and the one
        before it is used; if none is whole, a `UserError` lists them.
        """
        abstract = {"variables": like[0], "training": like[1]}
        restored, damage = None, {}
        for step, path in sorted(self._folders().items(), reverse=True):
            try:
                restored = folder.load_folder(path, abstract)
                break
            except folder.DamagedError as error:
                damage[step] = str(error)
        self._refuse_disagreement(-1 if restored is None else restored.step)
        if restored is None:
            if damage:
                reasons = "; ".join(f"{step}: {why}" for step, why in damage.items())
                raise UserError(
                    f"no checkpoint in {self._workdir} can be read ({reasons}). "
                    "Restore one from a copy, or start again in another --workdir."
                )
            return None
        for broken, reason in damage.items():
            self._set_aside(broken, f"{reason}; using {restored.step} instead")
        return restored

    def _refuse_disagreement(self, step: int) -> None:
        """Refuse to continue from another step than the one that process 0 found."""
        first = int(multihost_utils.broadcast_one_to_all(np.asarray(step, np.int32)))
        if step != first:
            raise UserError(
                f"process {jax.process_index()} finds checkpoint {step} and process 0 "
                f"{first} in {self._workdir} (-1 is none): all processes need to see "
                "the same workdir."
            )

    def close(self) -> None:
        """Wait for the last save and release the directory."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
            self._close_manager()

    def _close_manager(self) -> None:
        manager, self._manager = self._manager, None
        if manager is not None:
            manager.close()
