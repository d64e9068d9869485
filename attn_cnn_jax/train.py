"""The training loop: steps, evaluation, checkpoints and metrics until the end."""

import dataclasses
import os
import pathlib
import shutil
from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from attn_cnn_jax import (
    checkpoint,
    data,
    environment,
    metrics,
    models,
    parallel,
    progress,
)
from attn_cnn_jax import config as config_lib
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.evaluate import evaluate, make_eval_step, refuse_other_shapes
from attn_cnn_jax.metrics import Sums
from attn_cnn_jax.signals import Stopped, StopSignals
from attn_cnn_jax.task import Task, TrainState


def train(
    config: ConfigDict, workdir: str | os.PathLike, *, mesh: Mesh | None = None
) -> dict[str, int | float]:
    """Train `config` in `workdir`, or continue there, and return the last evaluation.

    A new run starts from the last variables of `config.init_from` if that is not empty,
    with an optimizer and a step of its own.
    Raises `Stopped` after a SIGTERM or Ctrl-C, with the state saved, and `UserError`
    where the config, the data or the workdir cannot be used or the loss is not finite.
    """
    workdir = pathlib.Path(workdir)
    config_lib.check(config)
    _refuse_other_run(config, workdir)
    mesh = mesh or parallel.make_mesh()
    dataset = data.load(config.dataset)
    task = Task.of(config, dataset)
    shapes = jax.eval_shape(task.initial_state)  # what cannot be built, before writing
    start = None if checkpoint.is_resumable(workdir) else _start(config, shapes)
    with (
        StopSignals() as stop,
        checkpoint.Checkpoints(workdir, config, config.checkpoints_to_keep) as saved,
    ):
        if jax.process_index() == 0:
            checkpoint.write_config(workdir, config)
            origin = start and {"init_from": config.init_from, "init_step": start.step}
            environment.record(workdir, mesh, origin)
        run = _Run(task, mesh, workdir, saved, shapes, start)
        return run.to_the_end(stop)


class _Run:
    """A training in progress: the state, the sums not yet written, the files."""

    def __init__(
        self,
        task: Task,
        mesh: Mesh,
        workdir: pathlib.Path,
        saved: checkpoint.Checkpoints,
        shapes: TrainState,
        start: checkpoint.Checkpoint | None,
    ) -> None:
        self.task, self.mesh, self.saved = task, mesh, saved
        self.workdir = workdir
        self.config = config = task.config
        like = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=parallel.replicated(mesh)
            ),
            shapes,
        )
        training = {"step": like.step, "opt_state": like.opt_state}
        found = saved.restore((like.variables, training))
        self.best = {"accuracy": -1.0, "step": 0}
        self.interval = Sums.zero()
        if found is None:
            self.step = 0
            draw, given = task.initial_state, ()
            if start is not None:
                draw, given = task.start_of, (start.variables,)
            self.state = parallel.replicate(jax.jit(draw)(*given), mesh)
        else:
            self.step = found.step
            self.state = TrainState(
                found.training["step"], found.variables, found.training["opt_state"]
            )
            changed = config_lib.differences(found.config, config)
            images = found.progress["train_images"]
            if images != len(task.dataset.train):
                changed.append(f"images: {images} -> {len(task.dataset.train)}")
            if changed:
                raise _other_run(workdir, changed)
            self.best = found.progress["best"]
            self.interval = Sums(*found.progress["interval"])
        self.unread: list[tuple[int, Sums]] = []
        self._epoch_rows: Any = None
        self.is_main = jax.process_index() == 0
        self.metrics = metrics.MetricsFile(workdir, self.step, enabled=self.is_main)
        self.train_step = task.make_train_step(mesh)
        self.eval_step = make_eval_step(
            task.model,
            task.dataset,
            mesh,
            config.seed,
            in_training_mode=config.evaluate_in_training_mode,
        )
        placement = config.dataset.placement
        self.feed = parallel.Feed(task.dataset.train, mesh, placement)
        splits = {"test": task.dataset.test, "validation": task.dataset.validation}
        self.eval_feeds = {
            name: parallel.Feed(split, mesh, placement)
            for name, split in splits.items()
            if split is not None
        }
        self.bar = progress.Bar(
            self.step,
            task.num_steps,
            task.steps_per_epoch,
            config.batch_size,
            enabled=self.is_main,
        )

    def to_the_end(self, stop: "StopSignals") -> dict[str, int | float]:
        """Steps until all are done; evaluation, checkpoints and metrics on the way."""
        config, task = self.config, self.task
        result: dict[str, int | float] = {}
        try:
            self._announce()
            self._snapshot()
            first = self.step
            while self.step < task.num_steps:
                epoch, batch = divmod(self.step, task.steps_per_epoch)
                if batch == 0 or self._epoch_rows is None:
                    self._epoch_rows = data.epoch_rows(
                        config.seed, epoch, len(task.dataset.train), config.batch_size
                    )
                source = self.feed(self._epoch_rows[batch])
                if self.step == first:
                    self.bar.pause()  # compiling is not training
                self.state, sums = self.train_step(self.state, source)
                if self.step == first:
                    self.bar.resume()
                self.step += 1
                self.unread.append((self.step, sums))
                if (self.step - 1) % config.log_every_steps == 0:
                    self._read_sums(self.unread[:-1])  # while this step is computed
                signal_number = stop.received(self.step)
                result = self._evaluate_and_save(signal_number) or result
                if signal_number:
                    raise Stopped(signal_number, self.step)
            result = result or self._evaluate(record=False)  # nothing was left to do
            self._read_sums()
            self.bar.say(
                f"complete: {task.num_steps} steps; best accuracy "
                f"{self.best['accuracy']:.4f} after step {self.best['step']}; results "
                f"in {self.workdir}"
            )
            return result
        finally:
            self.bar.close()
            self.metrics.close()

    def _announce(self) -> None:
        count = models.count_parameters(self.state.variables)
        devices = self.mesh.devices.ravel()
        begun = f"continues after step {self.step}" if self.step else "begins"
        self.bar.say(
            f"{self.config.model.name} with {count:,} parameters on {len(devices)} x "
            f"{devices[0].device_kind}: {self.workdir} {begun} of {self.task.num_steps}"
        )

    def _read_sums(self, unread: list[tuple[int, Sums]] | None = None) -> None:
        """Fetch the sums since the last time; write a record where an interval ends."""
        unread = self.unread if unread is None else unread
        self.unread = self.unread[len(unread) :]
        for step, sums in jax.device_get(unread):
            sums = sums.on_host()
            if not metrics.is_finite(sums):
                raise UserError(
                    f"the loss of step {step} is {sums.loss}; the run stops. Its "
                    "checkpoints are from before; lower config.optimizer.learning_rate."
                )
            self.interval += sums
            if step % self.config.log_every_steps == 0 or step == self.task.num_steps:
                means = self.interval.means()
                self.interval = Sums.zero()
                values = {
                    "epoch": step / self.task.steps_per_epoch,
                    **means,
                    "learning_rate": self.task.learning_rate(step),
                    **self.bar.advance(step, means),
                }
                self.metrics.write(step, "train", values)

    def _evaluate_and_save(self, signal_number: int) -> dict[str, int | float] | None:
        """What is due after a step; a save comes last, when its record is written."""
        config, step, per_epoch = self.config, self.step, self.task.steps_per_epoch
        last = step == self.task.num_steps

        def due(interval: int) -> bool:
            return interval > 0 and step % interval == 0

        result, accuracy = None, None
        if last or due(config.eval_every_epochs * per_epoch):
            self._read_sums()
            self.bar.pause()
            result = self._evaluate()
            self.bar.resume()
            accuracy = float(result["accuracy"])
            if accuracy >= self.best["accuracy"]:
                self.best = {"accuracy": accuracy, "step": step}
        if result or signal_number or due(config.checkpoint_every_steps):
            self._read_sums()
            state, interval = self.state, self.interval
            self.bar.pause()
            self.saved.save(
                step,
                state.variables,
                {"step": state.step, "opt_state": state.opt_state},
                {
                    "train_images": len(self.task.dataset.train),
                    "best": self.best,
                    "interval": [interval.loss, interval.correct, interval.count],
                },
                accuracy,
            )
            self.bar.resume()
        self._snapshot()
        return result

    def _snapshot(self) -> None:
        interval = self.config.snapshot_every_epochs * self.task.steps_per_epoch
        if interval and self.step % interval == 0:
            self.saved.save_snapshot(self.step, self.state.variables)

    def _evaluate(self, *, record: bool = True) -> dict[str, int | float]:
        """Score every held-out split; the result that chooses the best checkpoint."""
        results = {}
        for name, feed in self.eval_feeds.items():
            results[name] = evaluate(
                self.eval_step, self.state.variables, feed, self.config.eval_batch_size
            )
            epoch = self.step / self.task.steps_per_epoch
            values = {"epoch": epoch, **results[name]}
            if record:
                self.metrics.write(self.step, name, values)
            self.bar.say_evaluation(self.step, name, results[name])
        return results.get("validation", results["test"])


def _start(config: ConfigDict, shapes: TrainState) -> checkpoint.Checkpoint | None:
    """What a new run starts from, its variables as `shapes`; None: drawn ones."""
    source = config.init_from
    if not source:
        return None
    start = checkpoint.load(os.path.expanduser(source))
    refuse_other_shapes(
        shapes.variables,
        start.variables,
        f"config.init_from: the variables of {source} do not fit this config and data",
    )
    variables = jax.tree.map(
        lambda leaf, like: leaf.astype(like.dtype), start.variables, shapes.variables
    )
    return dataclasses.replace(start, variables=variables)


def _refuse_other_run(config: ConfigDict, workdir: pathlib.Path) -> None:
    """A run is continued under its own config; one that saved nothing is replaced."""
    old = checkpoint.read_config(workdir)
    if old is None:
        return
    changed = config_lib.differences(old, config)
    if changed and checkpoint.is_resumable(workdir):
        raise _other_run(workdir, changed)
    if changed and jax.process_index() == 0:
        shutil.rmtree(workdir / "snapshots", ignore_errors=True)


def _other_run(workdir: pathlib.Path, changed: list[str]) -> UserError:
    return UserError(
        f"{workdir} holds a run of another config ({'; '.join(changed)}); continue it "
        "with its own values or name another --workdir."
    )
