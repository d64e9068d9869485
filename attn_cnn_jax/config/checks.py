"""The check of a config, before JAX starts."""

from typing import Any

from ml_collections import ConfigDict

from attn_cnn_jax.config.fields import check_schema, require
from attn_cnn_jax.config.files import refuse_uncomputable
from attn_cnn_jax.config.model_blocks import RESNETS
from attn_cnn_jax.config.model_checks import check_model
from attn_cnn_jax.config.schema import base_config, optimizer
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.optim import OPTIMIZERS

SCHEDULES = ("cosine", "cosine_epochwise", "cosine_report", "multistep")
PLACEMENTS = ("auto", "device", "host")
MATMUL_PRECISIONS = ("float32", "tf32")

# Bounds far above any training: beyond them NumPy or JAX would overflow, or memory.
_MOST_EPOCHS, _LARGEST_BATCH, _LARGEST_PADDING = 2**24, 2**20, 2**10
_LARGEST_INT, _LARGEST_RATE = 2**31, 1e38  # a float32


def check(config: ConfigDict) -> None:
    """Raise a `UserError` that names the first field out of its type or range."""
    refuse_uncomputable(config)
    check_schema(config, base_config())
    _check_optimizer(config.optimizer)
    _check_ranges(config)
    check_model(config.model)
    _check_micro_batches(config)
    every, name = config.log_heads_every_epochs, config.model.name
    wanted = f"0 for {name}, a network without attention"
    require(not every or name not in RESNETS, "log_heads_every_epochs", every, wanted)


def _check_optimizer(block: ConfigDict) -> None:
    name = block.get("name", "")
    choices = f"one of {', '.join(OPTIMIZERS)}"
    known = isinstance(name, str) and name in OPTIMIZERS
    require(known, "optimizer.name", name, choices)
    schema = optimizer(name)
    try:
        check_schema(block, schema, "optimizer.")
    except UserError as error:
        if set(block) == set(schema):
            raise
        advice = f"--config=FILE.py:{name} sets this optimizer with all of its fields."
        raise UserError(f"{error} {advice}") from error
    for field, value in block.items():
        if field == "decay_exclude":
            names = all(isinstance(kind, str) for kind in value)
            require(names, f"optimizer.{field}", value, "a tuple of parameter names")
        elif not isinstance(value, str | bool):
            above = field in ("learning_rate", "eps")
            high = _LARGEST_RATE if field in ("learning_rate", "weight_decay") else 1
            wanted = f"{'above' if above else 'at least'} 0 and below {high}"
            in_range = 0 < value < high or (value == 0 and not above)
            require(in_range, f"optimizer.{field}", value, wanted)


def _check_micro_batches(config: ConfigDict) -> None:
    """Refuse micro-batches that do not divide the batch, or change what is computed."""
    size, model = config.micro_batch_size, config.model
    wanted = f"0 or a divisor of config.batch_size ({config.batch_size})"
    divides = size == 0 or (size > 0 and config.batch_size % size == 0)
    require(divides, "micro_batch_size", size, wanted)
    by_image = model.name == "self_attention" or (
        model.get("stem_width") == 0 and model.get("class_token") != "random"
    )
    wanted = f"0 for {model.name}, which normalises or draws by the batch"
    require(
        by_image or size in (0, config.batch_size), "micro_batch_size", size, wanted
    )


def _check_ranges(config: ConfigDict) -> None:
    def whole(field: str, low: int, high: int | float = _LARGEST_INT) -> None:
        value: Any = config
        for part in field.split("."):
            value = value[part]
        bound = f"at least {low} and below {high}"
        require(low <= value < high, field, value, bound)

    for field in ("batch_size", "steps_per_dispatch", "log_every_steps"):
        whole(field, 1)
    whole("num_epochs", 1, _MOST_EPOCHS)
    whole("eval_batch_size", 1, _LARGEST_BATCH)
    for field in ("eval_every_epochs", "checkpoint_every_steps"):
        whole(field, 0)
    whole("snapshot_every_epochs", 0)
    whole("log_heads_every_epochs", 0)
    whole("checkpoints_to_keep", 1)
    whole("seed", 0, 2**32)
    whole("dataset.crop_padding", 0, _LARGEST_PADDING)
    whole("dataset.validation_fraction", 0, 1)
    whole("label_smoothing", 0, 1)
    placement = config.dataset.placement
    choices = f"one of {', '.join(PLACEMENTS)}"
    require(placement in PLACEMENTS, "dataset.placement", placement, choices)
    precision = config.matmul_precision
    choices = f"one of {', '.join(MATMUL_PRECISIONS)}"
    require(precision in MATMUL_PRECISIONS, "matmul_precision", precision, choices)
    schedule = config.schedule
    choices = f"one of {', '.join(SCHEDULES)}"
    require(schedule.name in SCHEDULES, "schedule.name", schedule.name, choices)
    if schedule.name == "multistep":
        drops = schedule.drop_epochs
        rising = all(isinstance(e, int) and e > 0 for e in drops)
        rising = rising and list(drops) == sorted(set(drops))
        require(rising, "schedule.drop_epochs", drops, "rising whole epochs")
        factor = schedule.drop_factor
        require(factor > 0, "schedule.drop_factor", factor, "above 0")
    elif schedule.name == "cosine_report":  # its peak is (warmup - 1) / warmup
        warmup = schedule.warmup_epochs
        fits = 2 <= warmup < config.num_epochs and warmup == int(warmup)
        wanted = f"whole, at least 2 and below {config.num_epochs} for cosine_report"
        require(fits, "schedule.warmup_epochs", warmup, wanted)
    else:
        warmup, epochs = schedule.warmup_epochs, config.num_epochs
        bound = f"at least 0 and below {epochs} epochs; {0.05 * epochs:g} is usual"
        require(0 <= warmup < epochs, "schedule.warmup_epochs", warmup, bound)
