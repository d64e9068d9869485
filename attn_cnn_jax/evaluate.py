"""Exact evaluation: every image once, sums divided once."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
from flax import linen as nn
from jax.sharding import Mesh

from attn_cnn_jax import checkpoint as checkpoint_lib
from attn_cnn_jax import data, models, parallel
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.metrics import Sums


def make_eval_step(
    model: nn.Module,
    dataset: data.Dataset,
    mesh: Mesh,
    seed: int,
    *,
    in_training_mode: bool = False,
) -> Callable[..., Sums]:
    """Compile `eval_step(variables, source, rows, weights) -> Sums` of a batch.

    `rows` [B] are the images' indices in the split: what a published network draws at
    evaluation comes from them and `seed`. `in_training_mode`, as the report's code
    evaluated: BatchNorm goes by the statistics of the batch, and dropout is on.
    """

    def eval_step(variables, source, rows, weights) -> Sums:
        images, labels = parallel.gather(source, mesh)
        images = data.normalize(images, dataset.mean, dataset.std)
        rng, channels = jax.random.key(seed), images.shape[-1]
        draws: Any = models.evaluation_draws(model, rng, rows, channels)
        if in_training_mode:
            draws["rngs"] = {"dropout": jax.random.fold_in(rng, rows[0])}
            draws["mutable"] = ["batch_stats"]
        result: Any = model.apply(variables, images, train=in_training_mode, **draws)
        logits = result[0] if in_training_mode else result
        return Sums.of(logits, labels, weights)

    return parallel.compile_step(eval_step, mesh)


def evaluate(
    eval_step: Callable[..., Sums],
    variables: Mapping[str, Any],
    feed: parallel.Feed,
    batch_size: int,
) -> dict[str, int | float]:
    """Mean loss, accuracy and number of images of the split behind `feed`."""
    rows, weights = data.eval_rows(feed.num_images, batch_size)
    batches = [
        eval_step(variables, feed(r), r, w) for r, w in zip(rows, weights, strict=True)
    ]
    total = sum((s.on_host() for s in jax.device_get(batches)), Sums.zero())
    return {**total.means(), "images": int(total.count)}


def evaluate_run(
    workdir: str | os.PathLike,
    checkpoint: str | int = "last",
    data_dir: str | None = None,
) -> dict[str, int | float]:
    """Score a run on the test set again, from its checkpoint alone.

    Returns the step of the checkpoint, the mean loss, the accuracy and the number of
    images. `data_dir` replaces the one of the run's config.
    """
    run = checkpoint_lib.load(workdir, checkpoint)
    config = run.config
    if data_dir is not None:
        config.dataset.data_dir = data_dir
    dataset = data.load(config.dataset)
    mesh = parallel.make_mesh()
    model = models.build(config.model, dataset.num_classes)
    wanted = jax.eval_shape(
        lambda: models.initial_variables(model, jax.random.key(0), dataset.image_shape)
    )
    complaint = "the checkpoint does not fit its config and data"
    refuse_other_shapes(wanted, run.variables, complaint)
    result = evaluate(
        make_eval_step(
            model,
            dataset,
            mesh,
            config.seed,
            in_training_mode=config.evaluate_in_training_mode,
        ),
        parallel.replicate(run.variables, mesh),
        parallel.Feed(dataset.test, mesh, config.dataset.placement),
        config.eval_batch_size,
    )
    return {"step": run.step, **result}


def refuse_other_shapes(
    wanted: Mapping[str, Any], found: Mapping[str, Any], complaint: str
) -> None:
    """Raise a `UserError`, the complaint and the first array that does not fit.

    Both are variables, as arrays or as shapes.
    """
    wanted, found = (
        {
            jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        }
        for tree in (wanted, found)
    )
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise UserError(
                f"{complaint}: {name} has shape {found.get(name)}, not "
                f"{wanted.get(name)}."
            )
