"""Training: the state, the step that changes it, and the loop until the end."""

import dataclasses
import functools
import os
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import struct
from jax.sharding import Mesh
from ml_collections import ConfigDict

from attn_cnn_jax import checkpoint, data, environment, models, optim, parallel, remote
from attn_cnn_jax import config as config_lib
from attn_cnn_jax.covered_offsets import make_coverage
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.evaluate import make_evaluation
from attn_cnn_jax.goodput import Goodput
from attn_cnn_jax.log import TrainLog
from attn_cnn_jax.metrics import Sums
from attn_cnn_jax.models.dropout import images_from
from attn_cnn_jax.signals import Stopped, StopSignals
from attn_cnn_jax.timetable import Timetable


class TrainState(struct.PyTreeNode):
    """All that a training step changes; pytrees of arrays."""

    step: Any  # updates so far
    variables: Any  # {"params": ..., and "batch_stats" where the model has them}
    opt_state: Any


@dataclasses.dataclass
class Progress:
    """The progress of a training, as a checkpoint keeps it beside the config."""

    step: int
    state: TrainState
    best: tuple[float, int]  # the highest accuracy of an evaluation, and its step
    interval: Sums  # of the steps since the last record of the log
    mark: dict[str, Any] | None = None  # of the records, as the checkpoint knows them
    spent: dict[str, Any] | None = None  # what goodput knows of the time up to it


def train(
    config: ConfigDict,
    workdir: str | os.PathLike,
    *,
    mesh: Mesh | None = None,
    restart: bool = False,
) -> dict[str, int | float]:
    """Train `config` in `workdir`, or continue there, and return the last evaluation.

    With `restart` a run whose checkpoints are gone begins anew over its records. Raises
    `Stopped` (the state is saved) or a `UserError` that says what to change.
    """
    config_lib.check(config)
    started = time.time()
    workdir, mesh = pathlib.Path(workdir), mesh or parallel.make_mesh()
    _refuse_other_config(config, workdir)
    dataset, keep = data.load(config.dataset), config.checkpoints_to_keep
    due = Timetable(config, len(dataset.train))
    model = models.build(config.model, dataset.num_classes)
    optimizer = optim.make_optimizer(config.optimizer, due.schedule)
    draw = functools.partial(initial_state, config, model, optimizer, dataset)
    with StopSignals() as stop, checkpoint.Checkpoints(workdir, config, keep) as saved:
        run = _continue_or_begin(config, workdir, saved, due, draw, mesh, restart)
        train_step = make_train_step(config, model, optimizer, dataset, mesh)
        feed = parallel.Feed(dataset.train, mesh, config.dataset.placement)
        train_block = parallel.compile_blocks(train_step, feed, due.longest_block)
        evaluate = make_evaluation(config, model, dataset, mesh)
        heads = None
        if config.log_heads_every_epochs:
            heads = make_coverage(config, model, dataset, mesh)
        spent = Goodput(run.spent, _last_sign(workdir), started)
        start = (run.step, run.interval, run.mark, spent)
        with TrainLog(workdir, config, due, *start) as log:
            room = saved.check_room(
                run.state.variables, run.state.opt_state, due.snapshots_after(run.step)
            )
            log.begin(run.state.variables, mesh, room)
            result = {}
            while run.step < due.num_steps:
                rows = due.next_rows(run.step)
                run.state, sums = train_block(run.state, rows)
                run.step += len(rows)
                log.add(sums, len(rows))
                stop_signal, accuracy = stop.received(), None
                if due.evaluation(run.step):
                    with log.paused("evaluating"):
                        result = log.evaluated(run.step, evaluate(run.state.variables))
                    accuracy = result["accuracy"]
                    run.best = max(run.best, (accuracy, run.step))
                if heads is not None and due.heads(run.step):
                    with log.paused("evaluating"):
                        log.heads(run.step, heads(run.state.variables))
                is_best = run.best[1] == run.step
                if due.snapshot(run.step):
                    saved.save_snapshot(run.step, run.state.variables)
                is_last = stop_signal or run.step == due.num_steps
                if is_last or is_best or due.checkpoint(run.step):
                    with log.paused("saving"):
                        save = saved.save_surely if is_last else saved.save
                        save(*_state_to_save(run, log, due.num_images, accuracy))
                if stop_signal:
                    raise Stopped(stop_signal, run.step)
            result = result or log.evaluated(run.step, evaluate(run.state.variables))
            log.end(run.best)
            return result


def _last_sign(workdir: pathlib.Path) -> float:
    """Return the time at which a run wrote its last record, 0 if never."""
    path = workdir / "metrics.jsonl"
    return path.stat().st_mtime if path.exists() else 0.0


def initial_state(
    config: ConfigDict,
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    dataset: data.Dataset,
    variables: Mapping[str, Any] | None = None,
) -> TrainState:
    """Return the state before the first step, drawn from `config.seed` alone.

    With `variables` it has these, and an optimizer that starts afresh.
    """
    if variables is None:
        rng = jax.random.fold_in(_rngs(config.seed)[0], 0)
        variables = models.initial_variables(model, rng, dataset.image_shape)
    opt_state = optimizer.init(variables["params"])
    return TrainState(jnp.zeros((), jnp.int32), variables, opt_state)


def make_train_step(
    config: ConfigDict,
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    dataset: data.Dataset,
    mesh: Mesh,
) -> Callable[[TrainState, Any], tuple[TrainState, Sums]]:
    """Return the step `(state, fed) -> (state, Sums of the batch before it)`.

    It is a pure function to be compiled; `fed` is what a `parallel.Feed` hands over.
    What is random in it comes from the seed and `state.step`.
    """
    run_rng, fields = _rngs(config.seed)[1], config.dataset

    def train_step(state: TrainState, fed: Any) -> tuple[TrainState, Sums]:
        augment_rng, model_rng = jax.random.split(
            jax.random.fold_in(run_rng, state.step)
        )
        images, labels = parallel.gather(fed, mesh)
        images = data.augment(
            images, augment_rng, crop_padding=fields.crop_padding, flip=fields.flip
        )
        images = data.normalize(images, dataset.mean, dataset.std)
        params = state.variables["params"]
        others = {k: v for k, v in state.variables.items() if k != "params"}

        def share_of_loss(params: Any, images: Any, labels: Any, first: Any):
            images = parallel.split_batch(images, mesh)
            with images_from(first), parallel.matmul_precision(config):
                logits, others_after = model.apply(
                    {"params": params, **others},
                    images,
                    train=True,
                    rngs={"dropout": model_rng, "class_token": model_rng},
                    mutable=list(others),
                )
            sums = Sums.of(logits, labels, label_smoothing=config.label_smoothing)
            return sums.loss / config.batch_size, (sums, others_after)

        gradients = jax.grad(share_of_loss, has_aux=True)
        if 0 < config.micro_batch_size < config.batch_size:
            add_up = functools.partial(gradients, params)
            grads, (sums, others) = parallel.sum_over_parts(
                add_up, images, labels, config.micro_batch_size
            )
        else:
            grads, (sums, others) = gradients(params, images, labels, 0)
        updates, opt_state = optimizer.update(grads, state.opt_state, params)
        params = optax.apply_updates(params, updates)
        variables = {"params": params, **others}
        return TrainState(state.step + 1, variables, opt_state), sums

    return train_step


def _rngs(seed: int) -> jax.Array:
    """Return the keys of the initialisation and of the steps."""
    return jax.random.split(jax.random.key(seed))


def _continue_or_begin(
    config: ConfigDict,
    workdir: pathlib.Path,
    saved: checkpoint.Checkpoints,
    due: Timetable,
    draw: Callable[..., TrainState],
    mesh: Mesh,
    restart: bool,
) -> Progress:
    """Return the progress in the newest checkpoint, or that of a run that begins.

    A new run starts from the last variables of `config.init_from` if that is not empty,
    with an optimizer and a step of its own. `draw` is `initial_state`.
    """
    shapes = jax.eval_shape(draw)  # what cannot be built writes nothing
    origin = None if checkpoint.is_resumable(workdir) else _origin(config, shapes)
    saved.lock()
    if jax.process_index() == 0:
        checkpoint.write_config(workdir, config)
        start: dict[str, Any] = {"arithmetic": parallel.arithmetic(config, mesh)}
        if origin is not None:
            start.update(init_from=config.init_from, init_step=origin.step)
        environment.record(workdir, mesh, start)
    placed = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=parallel.replicated(mesh)
        ),
        shapes,
    )
    found = saved.restore(
        (placed.variables, {"step": placed.step, "opt_state": placed.opt_state}),
        restart=restart,
    )
    if found is None:
        given = () if origin is None else (origin.variables,)
        state = parallel.replicate(jax.jit(draw)(*given), mesh)
        run = Progress(0, state, (-1.0, 0), Sums.zero())
    else:
        run = _continued(found, config, workdir, due.num_images)
    if due.snapshot(run.step):  # a kill may have come before it
        saved.save_snapshot(run.step, run.state.variables)
    return run


def _continued(
    found: checkpoint.Checkpoint,
    config: ConfigDict,
    workdir: pathlib.Path,
    num_images: int,
) -> Progress:
    """Return the progress that a checkpoint of this same run holds."""
    changed = config_lib.differences(found.config, config)
    images = found.progress["train_images"]
    if images != num_images:
        changed.append(f"images: {images} -> {num_images}")
    if changed:
        raise _other_run(workdir, changed)
    training, best = found.training, found.progress["best"]
    return Progress(
        found.step,
        TrainState(training["step"], found.variables, training["opt_state"]),
        (best["accuracy"], best["step"]),
        Sums(*found.progress["interval"]),
        found.progress.get("records"),
        found.progress.get("goodput"),
    )


def _origin(config: ConfigDict, shapes: TrainState) -> checkpoint.Checkpoint | None:
    """Return the checkpoint of `init_from`, its variables as `shapes`, if it is set."""
    if not config.init_from:
        return None
    origin = checkpoint.load(remote.local(config.init_from))
    checkpoint.refuse_other_shapes(
        shapes.variables,
        origin.variables,
        f"config.init_from: the variables of {config.init_from} do not fit this config "
        "and data",
    )
    variables = jax.tree.map(
        lambda leaf, like: leaf.astype(like.dtype), origin.variables, shapes.variables
    )
    return dataclasses.replace(origin, variables=variables)


def _state_to_save(
    run: Progress, log: TrainLog, num_images: int, accuracy: float | None
) -> tuple[Any, ...]:
    """Return what `Checkpoints.save` takes, after the records of its steps are safe.

    `accuracy` is that of the state, where it has just been evaluated.
    """
    progress = {
        "train_images": num_images,
        "best": {"accuracy": run.best[0], "step": run.best[1]},
        "interval": [log.interval.loss, log.interval.correct, log.interval.count],
        "records": log.sync(),
        "goodput": log.goodput.state(),
    }
    training = {"step": run.state.step, "opt_state": run.state.opt_state}
    return run.step, run.state.variables, training, progress, accuracy


def _refuse_other_config(config: ConfigDict, workdir: pathlib.Path) -> None:
    """Refuse to go on with a run of another config; one without a save is replaced."""
    old = checkpoint.read_config(workdir)
    changed = [] if old is None else config_lib.differences(old, config)
    if changed and checkpoint.is_resumable(workdir):
        raise _other_run(workdir, changed)


def _other_run(workdir: pathlib.Path, changed: list[str]) -> UserError:
    return UserError(
        f"{workdir} holds a run of another config ({'; '.join(changed)}); continue it "
        "with its own values or name another --workdir."
    )
