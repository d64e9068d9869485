"""The optimizer and its learning-rate schedules."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array
from ml_collections import ConfigDict


def make_optimizer(
    optimizer: ConfigDict, learning_rate: optax.ScalarOrSchedule
) -> optax.GradientTransformation:
    """SGD with momentum and coupled weight decay, as PyTorch's SGD computes it.

    g <- g + weight_decay * p, except where a parameter's name is in `decay_exclude`;
    buffer <- momentum * buffer + g; p <- p - learning_rate * buffer, with `nesterov`
    p <- p - learning_rate * (g + momentum * buffer).
    """
    excluded = set(optimizer.decay_exclude)

    def decays(params):
        return jax.tree_util.tree_map_with_path(
            lambda path, _: path[-1].key not in excluded, params
        )

    return optax.chain(
        optax.add_decayed_weights(optimizer.weight_decay, mask=decays),
        optax.trace(decay=optimizer.momentum, nesterov=optimizer.nesterov),
        optax.scale_by_learning_rate(learning_rate),
    )


def make_schedule(
    schedule: ConfigDict, learning_rate: float, num_epochs: int, steps_per_epoch: int
) -> optax.Schedule:
    """Learning rate of an update as a function of the number of updates before it.

    cosine: update k = 1, 2, ... has rate * f(k), see `warmup_cosine`.
    cosine_epochwise: as the original's code does it, one rate an epoch:
      rate * f(epoch * steps_per_epoch), where each epoch counts steps_per_epoch + 1
      steps in f. Epoch 0 therefore has rate 0.
    cosine_report: as the report's code does it, one rate an epoch, see `report_cosine`.
    multistep: divided by drop_factor at the start of each of drop_epochs.
    """
    name = schedule.name
    if name == "multistep":
        boundaries = {
            epoch * steps_per_epoch: 1 / schedule.drop_factor
            for epoch in schedule.drop_epochs
            if epoch < num_epochs  # later ones are never met, and may overflow
        }
        return optax.piecewise_constant_schedule(learning_rate, boundaries)
    if name == "cosine":
        total = num_epochs * steps_per_epoch
        warmup = schedule.warmup_epochs * steps_per_epoch
        return lambda count: learning_rate * warmup_cosine(count + 1, warmup, total)
    if name == "cosine_epochwise":
        total = num_epochs * (steps_per_epoch + 1)
        warmup = int(schedule.warmup_epochs * (steps_per_epoch + 1))

        def epochwise(count):
            first_step = count // steps_per_epoch * steps_per_epoch
            return learning_rate * warmup_cosine(first_step, warmup, total)

        return epochwise
    if name == "cosine_report":
        warmup = int(schedule.warmup_epochs)

        def of_epoch(count):
            epoch = count // steps_per_epoch + 1
            return learning_rate * report_cosine(epoch, warmup, num_epochs)

        return of_epoch
    raise ValueError(f"unknown schedule {name!r}")


def warmup_cosine(step: Any, warmup: float | int, total: float | int) -> Array:
    """f(step) = step / warmup, then half a cosine from 1 to 0 at step `total`."""
    step = jnp.asarray(step, jnp.float32)
    rising = step / max(warmup, 1)
    progress = (step - warmup) / max(total - warmup, 1)
    falling = 0.5 * (1 + jnp.cos(jnp.pi * progress))
    return jnp.where(step < warmup, rising, falling)


def report_cosine(epoch: Any, warmup: int, num_epochs: int) -> Array:
    """The report's factor of the rate in epoch 1, 2, ..., num_epochs.

    epoch / warmup before epoch `warmup`, then half a cosine from (warmup - 1) / warmup
    to 0 in epoch num_epochs - 1: what PyTorch's recursive CosineAnnealingLR comes to
    behind that warm-up.
    """
    epoch = jnp.asarray(epoch, jnp.float32)
    progress = (epoch - warmup + 1) / (num_epochs - warmup)
    falling = (warmup - 1) / warmup * 0.5 * (1 + jnp.cos(jnp.pi * progress))
    return jnp.where(epoch < warmup, epoch / warmup, falling)
