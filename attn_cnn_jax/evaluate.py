"""Exact evaluation: every image once, sums divided once."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
from flax import linen as nn
from jax.sharding import Mesh
from jaxtyping import Array, Int, UInt8
from ml_collections import ConfigDict

from attn_cnn_jax import data, models, parallel
from attn_cnn_jax.metrics import Sums
from attn_cnn_jax.models.layers import sown_layers


def forward(
    model: nn.Module,
    dataset: data.Dataset,
    seed: int,
    variables: Mapping[str, Any],
    images: UInt8[Array, "B H W C"],
    rows: Int[Array, "B"],
    *,
    in_training_mode: bool = False,
    **options: Any,
) -> Any:
    """Return what `model.apply` does on images of a split, as they are evaluated.

    What a published network draws at evaluation comes from `seed` and the images'
    indices in the split, `rows`. `in_training_mode`, as the report's code evaluated:
    BatchNorm goes by the statistics of the batch, and dropout is on. `options` are
    arguments of `apply`, such as the method or the collections that are returned too.
    """
    pixels = data.normalize(images, dataset.mean, dataset.std)
    rng, channels = jax.random.key(seed), images.shape[-1]
    draws: Any = models.evaluation_draws(model, rng, rows, channels)
    if in_training_mode:
        draws["rngs"] = {"dropout": jax.random.fold_in(rng, rows[0])}
    return model.apply(variables, pixels, train=in_training_mode, **draws, **options)


def sown_by_layers(
    config: ConfigDict,
    model: nn.Module,
    dataset: data.Dataset,
    variables: Mapping[str, Any],
    images: UInt8[Array, "B H W C"],
    rows: Int[Array, "B"],
    collection: str = "intermediates",
) -> list[tuple[str, Any]]:
    """Return (name, what it sows) of every attention layer, in evaluation mode.

    In "intermediates" the layers sow their probabilities.
    """
    _, sown = forward(
        model, dataset, config.seed, variables, images, rows, mutable=[collection]
    )
    fields = config.model
    return sown_layers(
        sown.get(collection, {}), fields.name, fields.get("num_sweeps", 1)
    )


def make_eval_step(
    config: ConfigDict, model: nn.Module, dataset: data.Dataset, mesh: Mesh
) -> Callable[..., Sums]:
    """Compile `eval_step(variables, fed, rows, weights) -> Sums` of a batch.

    `rows` [B] are the images' indices in the split, and `fed` is what its
    `parallel.Feed` hands over for them.
    """
    options: dict[str, Any] = {"in_training_mode": config.evaluate_in_training_mode}
    if config.evaluate_in_training_mode:
        options["mutable"] = ["batch_stats"]

    def eval_step(variables, fed, rows, weights) -> Sums:
        images, labels = parallel.gather(fed, mesh)
        with parallel.matmul_precision(config):
            result = forward(
                model, dataset, config.seed, variables, images, rows, **options
            )
        logits = result[0] if config.evaluate_in_training_mode else result
        return Sums.of(logits, labels, weights)

    return parallel.compile_step(eval_step, mesh)


def evaluate(
    eval_step: Callable[..., Sums],
    variables: Mapping[str, Any],
    feed: parallel.Feed,
    batch_size: int,
) -> dict[str, int | float]:
    """Return mean loss, accuracy and number of images of the split behind `feed`."""
    rows, weights = data.eval_rows(feed.num_images, batch_size)
    batches = [
        eval_step(variables, feed(r), r, w) for r, w in zip(rows, weights, strict=True)
    ]
    total = sum((s.on_host() for s in jax.device_get(batches)), Sums.zero())
    return {**total.means(), "images": int(total.count)}


def make_evaluation(
    config: ConfigDict, model: nn.Module, dataset: data.Dataset, mesh: Mesh
) -> Callable[[Mapping[str, Any]], dict[str, dict[str, int | float]]]:
    """Return `variables -> {split: result}` of the test images and the validation's."""
    eval_step = make_eval_step(config, model, dataset, mesh)
    splits = {"test": dataset.test, "validation": dataset.validation}
    feeds = {
        name: parallel.Feed(split, mesh, config.dataset.placement)
        for name, split in splits.items()
        if split is not None
    }
    return lambda variables: {
        name: evaluate(eval_step, variables, feed, config.eval_batch_size)
        for name, feed in feeds.items()
    }
