"""The checkpoints of a run that is being trained."""

import contextlib
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

from attn_cnn_jax import remote
from attn_cnn_jax.checkpoint import folder
from attn_cnn_jax.checkpoint.lock import WorkdirLock
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
        self._failure, self._quiet = "", False  # of the last save that failed
        self._manager: ocp.training.Checkpointer | None = None
        self._lock: WorkdirLock | None = None

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def lock(self) -> None:
        """Make the workdir and lock it until `close`.

        Process 0 does; all raise a `UserError` where another run writes there.
        """
        refusal = None
        if jax.process_index() == 0:
            try:
                self._lock = WorkdirLock(self._workdir)
            except (UserError, OSError) as error:
                refusal = error
        if self._agreed(refusal is not None):
            raise refusal or UserError(f"process 0 may not write to {self._workdir}.")

    def check_room(self, variables: Any, training: Any, snapshots: int) -> str:
        """Return in words the space that a run will need and that there is.

        Beside those that are kept there are the best and one that is being written.
        Raises a `UserError` where the disk has too little. `snapshots` are to come.
        """
        of_snapshot, of_training = map(folder.size_on_disk, (variables, training))
        needed = (self._keep + 2) * (of_snapshot + of_training)
        needed += snapshots * of_snapshot
        files = (self._workdir / "checkpoints").rglob("*")  # which others will replace
        free = sum(file.stat().st_size for file in files if file.is_file())
        free += shutil.disk_usage(self._workdir).free
        text = f"up to {needed / 1e9:.2g} GB, of {free / 1e9:.3g} GB that are free"
        if self._agreed(free < needed):
            raise UserError(
                f"checkpoints and snapshots in {self._workdir} will take {text}. Make "
                "room, or set config.checkpoints_to_keep lower or "
                "config.snapshot_every_epochs higher."
            )
        return text

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
        if jax.process_index() == 0 or remote.has_own_copy(self._workdir):
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
            folder.refuse_without_room(self._workdir / "checkpoints", items)
            return self._open().save_checkpointables_async(
                step, {"record": record, **items}, metrics=metrics, force=True
            )

        def end() -> None:
            folder.sync(self._workdir / "checkpoints" / str(step))
            if self._lock is not None:
                self._lock.note_save(step)

        self._begin(begin, end)

    def save_surely(self, step: int, *state: Any) -> None:
        """Save as `save` does and wait; raise a `UserError` where it is impossible.

        A save that fails is tried again, after 1, 2 and 4 seconds.
        """
        self._quiet = True
        for pause in (0, 1, 2, 4):
            time.sleep(pause)
            self.save(step, *state)
            self.wait()
            if self._agreed(step in self._folders()):
                return
        newest = max(self._folders(), default=None)
        safe = "nothing is saved" if newest is None else f"step {newest} is safe"
        raise UserError(
            f"the state after step {step} could not be saved ({self._failure}); "
            f"{safe}. Make room, and the same command continues from there."
        )

    def save_snapshot(self, step: int, variables: Mapping[str, Any]) -> None:
        """Save the variables alone, to be kept; does nothing if they already are.

        It is complete before a checkpoint of a later step is.
        """
        self._wait_for_other_steps(step)
        path = self._workdir / "snapshots" / str(step)
        if path.exists():
            return
        variables = folder.on_host(variables)

        def write() -> None:
            folder.refuse_without_room(path.parent, variables)
            folder.save_variables(path, self._config, step, variables)
            if jax.process_index() == 0:
                folder.sync(path)

        self._begin(write)

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

    def _begin(
        self, begin: Callable[[], Any], end: Callable[[], None] | None = None
    ) -> None:
        """Let the thread call `begin()`, wait for what it returns, and call `end()`.

        With several processes only Orbax's own threads work beside the steps, for it
        begins a save with a computation of all devices: that has to come after the same
        step in every process.
        """

        def finish(begun: Any) -> None:
            if begun is not None:
                begun.result()
            if end is not None and jax.process_index() == 0:
                end()

        if jax.process_count() > 1:
            begun = self._attempt(begin)
            if begun is not None:
                self._pending.append(lambda: self._attempt(lambda: finish(begun)))
            return
        self._pending.append(
            self._thread.submit(self._attempt, lambda: finish(begin())).result
        )

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
            self._failure = folder.cause(error)
            if not self._quiet:
                warnings.warn(
                    f"a checkpoint could not be written: {self._failure}; training "
                    "goes on.",
                    stacklevel=3,
                )
            with contextlib.suppress(Exception):  # it has failed, and this is said
                self._close_manager()
            return None

    def _remove_leftovers(self) -> None:
        """Remove what saves have left that failed or were killed.

        Of a save that has just failed some files may still be written, so that its
        folder cannot be removed yet; the next save does that.
        """
        if jax.process_index() == 0:
            for path in self._workdir.glob("*/*.orbax-checkpoint-tmp*"):
                shutil.rmtree(path, ignore_errors=True)

    def restore(
        self, like: tuple[Any, Any], *, restart: bool = False
    ) -> folder.Checkpoint | None:
        """Restore the newest checkpoint that is whole; None if a run begins.

        `like`: (variables, training) as pytrees of `jax.ShapeDtypeStruct` with their
        shardings. A damaged checkpoint is named in a warning and set aside, and the one
        before it is used; if none is whole, a `UserError` lists them. So it does where
        there is none, but a run has saved some or left records, unless a `restart` is
        meant, which in turn is refused where there is one.
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
            self._begin_anew(restart)
            return None
        if restart:
            raise UserError(
                f"--restart: {self._workdir} has checkpoints. Leave it out to continue "
                "from them, or name another --workdir."
            )
        for broken, reason in damage.items():
            self._set_aside(broken, f"{reason}; using {restored.step} instead")
        return restored

    def _begin_anew(self, restart: bool) -> None:
        """Refuse where a run has lost its checkpoints, else remove what is there."""
        lines, snapshots = (
            self._workdir / name for name in ("metrics.jsonl", "snapshots")
        )
        nothing_saved = self._lock is None or self._lock.nothing_saved
        there = [path.name for path in (lines, snapshots) if path.exists()]
        if self._agreed(bool(there) and not nothing_saved and not restart):
            raise UserError(
                f"{self._workdir} holds {' and '.join(there)} of a run, but its "
                "checkpoints are missing: restore them from a copy to continue, or "
                "begin anew in their place with --restart."
            )
        self._on_process_0(lambda: shutil.rmtree(snapshots, ignore_errors=True))

    def _agreed(self, fact: bool) -> bool:
        """Return what process 0 finds, for files may look different for a moment."""
        return bool(multihost_utils.broadcast_one_to_all(np.asarray(fact)))

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
            if self._lock is not None:
                self._lock.close()

    def _close_manager(self) -> None:
        manager, self._manager = self._manager, None
        if manager is not None:
            manager.close()
