"""The optimizers by name, and their learning-rate schedules."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array
from ml_collections import ConfigDict


class Optimizer(NamedTuple):
    """A named optimizer: how it is built, and its fields with their defaults.

    `build(fields, weight_decay)` returns the transformations of a gradient that come
    before the rate, with `weight_decay`, which adds weight_decay * p, in its place
    among them. Numbers but the rate and the decay are at least 0 and below 1. Every
    block has the fields `name` and `decay_exclude` besides.
    """

    build: Callable[..., Sequence[optax.GradientTransformation]]
    fields: Mapping[str, float | bool]


def make_optimizer(
    fields: ConfigDict, learning_rate: optax.ScalarOrSchedule
) -> optax.GradientTransformation:
    """Build the optimizer that the block `config.optimizer` names.

    A parameter whose name, the last of its path, is in `decay_exclude` does not decay.
    """
    excluded = set(fields.decay_exclude)

    def decays(params):
        return jax.tree_util.tree_map_with_path(
            lambda path, _: path[-1].key not in excluded, params
        )

    weight_decay = optax.add_decayed_weights(fields.weight_decay, mask=decays)
    return optax.chain(
        *OPTIMIZERS[fields.name].build(fields, weight_decay),
        optax.scale_by_learning_rate(learning_rate),
    )


def _sgd(fields: ConfigDict, weight_decay: optax.GradientTransformation):
    """Return SGD with momentum and coupled weight decay, as PyTorch's SGD computes it.

    g <- g + weight_decay * p; buffer <- momentum * buffer + g;
    p <- p - learning_rate * buffer, with `nesterov`
    p <- p - learning_rate * (g + momentum * buffer).
    """
    momentum = optax.trace(decay=fields.momentum, nesterov=fields.nesterov)
    return weight_decay, momentum


def _adamw(fields: ConfigDict, weight_decay: optax.GradientTransformation):
    """Return Adam with decoupled weight decay (Loshchilov and Hutter, 2019).

    With Adam's direction u: p <- p - learning_rate * (u + weight_decay * p). Defaults
    are PyTorch's.
    """
    return optax.scale_by_adam(fields.b1, fields.b2, fields.eps), weight_decay


def _muon(fields: ConfigDict, weight_decay: optax.GradientTransformation):
    """Return Muon for kernels and Adam for all else, with decoupled weight decay.

    Muon's direction of a kernel is its momentum with all singular values near 1 (five
    Newton-Schulz iterations), times 0.2 sqrt(max(inputs, outputs)): its entries are
    then of the size of Adam's, and one rate and one decay serve both (Liu et al., 2025,
    arXiv:2502.16982). A kernel is a parameter of two or more axes whose name ends in
    "kernel": those of the embedding and the classifier are, positions, biases, norms,
    centers and spreads are not. With `nesterov` Adam is NAdam.
    """
    direction = optax.contrib.muon(
        learning_rate=-1.0,  # up the gradient, as Adam's; the rate comes last
        beta=fields.momentum,
        nesterov=fields.nesterov,
        adam_b1=fields.b1,
        adam_b2=fields.b2,
        eps=fields.eps,
        consistent_rms=0.2,
        muon_weight_dimension_numbers=_matrices,
    )
    return direction, weight_decay


_SGD = dict(learning_rate=0.1, momentum=0.9, nesterov=False, weight_decay=1e-4)
_ADAMW = dict(learning_rate=1e-3, b1=0.9, b2=0.999, eps=1e-8, weight_decay=1e-2)
OPTIMIZERS = {
    "sgd": Optimizer(_sgd, _SGD),
    "adamw": Optimizer(_adamw, _ADAMW),
    "muon": Optimizer(_muon, {**_ADAMW, "momentum": 0.95, "nesterov": True}),
}


def _matrices(params: Any) -> Any:
    """Return the axes of each kernel, and None for a parameter that Adam takes."""

    def axes(path, param):
        is_kernel = path[-1].key.endswith("kernel") and param.ndim > 1
        return _matrix_axes(param.shape) if is_kernel else None

    return jax.tree_util.tree_map_with_path(axes, params)


def _matrix_axes(shape: Sequence[int]) -> optax.contrib.MuonDimensionNumbers:
    """Split a kernel's axes into inputs, which come first, and outputs.

    The split is the one whose matrix is nearest to a square, which puts heads where
    they belong: values [N, D, D] map N D inputs to D outputs, queries and keys
    [D, N, D] map D to N D, a convolution [3, 3, C, E] maps 9 C to E.
    """

    def perimeter(split: int) -> int:  # least for a square, of a given area
        return math.prod(shape[:split]) + math.prod(shape[split:])

    split = min(range(1, len(shape)), key=perimeter)
    axes = tuple(range(len(shape)))
    return optax.contrib.MuonDimensionNumbers(axes[:split], axes[split:])


def make_schedule(
    schedule: ConfigDict, learning_rate: float, num_epochs: int, steps_per_epoch: int
) -> optax.Schedule:
    """Return the learning rate as a function of the number of updates before.

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
    """Return f(step) = step / warmup, then half a cosine from 1 to 0 at `total`."""
    step = jnp.asarray(step, jnp.float32)
    rising = step / max(warmup, 1)
    progress = (step - warmup) / max(total - warmup, 1)
    falling = 0.5 * (1 + jnp.cos(jnp.pi * progress))
    return jnp.where(step < warmup, rising, falling)


def report_cosine(epoch: Any, warmup: int, num_epochs: int) -> Array:
    """Return the report's factor of the rate in epoch 1, 2, ..., num_epochs.

    epoch / warmup before epoch `warmup`, then half a cosine from (warmup - 1) / warmup
    to 0 in epoch num_epochs - 1: what PyTorch's recursive CosineAnnealingLR comes to
    behind that warm-up.
    """
    epoch = jnp.asarray(epoch, jnp.float32)
    progress = (epoch - warmup + 1) / (num_epochs - warmup)
    falling = (warmup - 1) / warmup * 0.5 * (1 + jnp.cos(jnp.pi * progress))
    return jnp.where(epoch < warmup, epoch / warmup, falling)
