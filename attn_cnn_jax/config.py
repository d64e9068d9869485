"""The one schema of a run: what a row of a table sets, with its type and its range."""

import json
import math
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from attn_cnn_jax.errors import UserError

SCHEDULES = ("cosine", "cosine_epochwise", "multistep")
COMPUTE_DTYPES = ("float32", "bfloat16", "float64")
ACTIVATIONS = ("gelu", "relu", "swish")
PLACEMENTS = ("auto", "device", "host")

_QUADRATIC = {"center_std": 2.0, "spread_std": 0.01}
_ATTENTION_FIELDS: dict[str, dict[str, Any]] = {
    "quadratic_isotropic": _QUADRATIC,
    "quadratic_nonisotropic": _QUADRATIC,
    "learned_wo_content": {"max_position": 16, "position_dim": 400},
    "learned_w_content": {"max_position": 16},
    "learned_query_position": {"max_position": 16},
    "learned_w_content_v1": {"max_position": 16, "position_dim": 400},
    "multi_head": {},
}
_RESNETS = ("resnet10", "resnet18", "resnet34", "resnet50", "resnet101", "resnet152")

_DATASETS: dict[str, dict[str, Any]] = {
    "cifar10": {"name": "cifar10", "crop_padding": 4, "flip": True},
    "cifar100": {"name": "cifar100", "crop_padding": 4, "flip": True},
    "digits": {"name": "digits", "crop_padding": 0, "flip": False},
}

# What may differ between a run and its continuation: none of it changes the numbers.
RESUMABLE = frozenset(
    {
        "dataset.data_dir",
        "dataset.placement",
        "eval_every_epochs",
        "eval_batch_size",
        "log_every_steps",
        "checkpoint_every_steps",
        "checkpoints_to_keep",
        "snapshot_every_epochs",
    }
)


def base_config() -> ConfigDict:
    """Training as published for the attention networks of Table 1; no model yet.

    A row's file sets `model` to one of the blocks below and changes what differs.
    Lengths are in epochs, steps or images: the unit is in the name. `_every_` fields
    of 0 mean never.
    """
    return ConfigDict(
        {
            "seed": 42,
            "model": {},
            "dataset": {
                **_DATASETS["cifar10"],
                "data_dir": "",  # empty: TFDS_DATA_DIR or ~/tensorflow_datasets
                "validation_fraction": 0.0,  # 0 as published: best on the test set
                "placement": "auto",  # images in device memory where they fit
            },
            "batch_size": 100,
            "num_epochs": 300,
            "optimizer": {
                "learning_rate": 0.1,
                "momentum": 0.9,
                "weight_decay": 1e-4,
                "decay_exclude": ("centers", "spreads"),
            },
            "schedule": {
                "name": "cosine",
                "warmup_epochs": 15.0,
                "drop_epochs": (80, 150, 250),  # multistep only
                "drop_factor": 10.0,  # multistep only
            },
            "eval_every_epochs": 1,
            "eval_batch_size": 100,
            "log_every_steps": 10,
            "checkpoint_every_steps": 500,
            "checkpoints_to_keep": 2,  # the newest ones; the best is kept besides
            "snapshot_every_epochs": 50,  # variables for the figures, all kept
        }
    )


def self_attention(attention: str) -> ConfigDict:
    """The paper's network at full size, with the named attention in every layer."""
    model = ConfigDict(
        {
            "name": "self_attention",
            "patch_size": 2,
            "width": 400,
            "num_layers": 6,
            "num_heads": 9,
            "mlp_dim": 512,
            "activation": "gelu",
            "dropout_rate": 0.1,
            "norm_epsilon": 1e-12,
            "compute_dtype": "float32",
            "attention": {
                "name": attention,
                "dropout_rate": 0.1,
                **_ATTENTION_FIELDS[attention],
            },
        }
    )
    if "position_dim" in model.attention:
        model.attention.position_dim = model.get_oneway_ref("width")
    return model


def resnet(name: str) -> ConfigDict:
    """The ResNet of the named depth for 32 x 32 images."""
    return ConfigDict({"name": name, "width": 64, "compute_dtype": "float32"})


def with_options(
    config: ConfigDict, options: str, own: Mapping[str, Mapping[str, Any]] | None = None
) -> ConfigDict:
    """`config` under the comma-separated options of `--config=FILE.py:options`.

    An option is a dataset (cifar10, cifar100, digits) or one of the row's `own`, which
    maps its name to the fields that it changes.
    """
    datasets = {name: {"dataset": fields} for name, fields in _DATASETS.items()}
    known: dict[str, Mapping[str, Any]] = {**datasets, **(own or {})}
    for option in filter(None, options.split(",")):
        if option not in known:
            raise UserError(
                f"{option!r} is not an option of this config; "
                f"choose from {', '.join(known)}."
            )
        config.update(known[option])
    return config


def to_json(config: ConfigDict) -> str:
    """The resolved config as indented JSON."""
    return json.dumps(config.to_dict(), indent=2, sort_keys=True)


def from_dict(fields: Mapping[str, Any]) -> ConfigDict:
    """The config that `to_json` wrote, tuples restored from JSON's lists."""

    def restored(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: restored(item) for key, item in value.items()}
        return tuple(value) if isinstance(value, list) else value

    return ConfigDict(restored(fields))


def differences(old: ConfigDict, new: ConfigDict) -> list[str]:
    """Lines "field: old -> new" of what changes the numbers of a run."""
    a, b = _flatten(old), _flatten(new)
    return [
        f"{field}: {a.get(field, 'absent')} -> {b.get(field, 'absent')}"
        for field in sorted(a.keys() | b.keys())
        if field not in RESUMABLE and a.get(field) != b.get(field)
    ]


def _flatten(config: ConfigDict, prefix: str = "") -> dict[str, Any]:
    flat = {}
    for key, value in config.items():
        if isinstance(value, ConfigDict):
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def check(config: ConfigDict) -> None:
    """Raise a `UserError` that names the first field out of its type or range."""
    _check_schema(config, base_config())
    _check_ranges(config)
    _check_model(config.model)


def _require(holds: bool, field: str, value: Any, wanted: str) -> None:
    if not holds:
        raise UserError(f"config.{field} is {value!r}; it must be {wanted}.")


def _check_schema(config: ConfigDict, schema: ConfigDict, prefix: str = "") -> None:
    """Same fields and types as `schema`; the model has a schema of its own."""
    for key in config:
        if key not in schema:
            owner = f"a {config.name} model" if "name" in config else "a config"
            raise UserError(f"config.{prefix}{key} is not a field of {owner}.")
    for key, example in schema.items():
        if key not in config:
            raise UserError(f"config.{prefix}{key} is missing.")
        value = config[key]
        if isinstance(example, ConfigDict):
            is_block = isinstance(value, ConfigDict)
            _require(is_block, prefix + key, value, "a block of fields")
            if key not in ("model", "attention"):
                _check_schema(value, example, f"{prefix}{key}.")
        else:
            right = type(value) is type(example) or (
                isinstance(example, float) and type(value) is int
            )
            wanted = f"of type {type(example).__name__}"
            _require(right, prefix + key, value, wanted)


def _check_ranges(config: ConfigDict) -> None:
    def whole(field: str, low: int, high: int | float = math.inf) -> None:
        value: Any = config
        for part in field.split("."):
            value = value[part]
        bound = f"at least {low}" + (f" and below {high}" if high < math.inf else "")
        _require(low <= value < high, field, value, bound)

    for field in ("batch_size", "num_epochs", "eval_batch_size", "log_every_steps"):
        whole(field, 1)
    for field in ("eval_every_epochs", "checkpoint_every_steps"):
        whole(field, 0)
    whole("snapshot_every_epochs", 0)
    whole("checkpoints_to_keep", 1)
    whole("seed", 0, 2**32)
    whole("dataset.crop_padding", 0)
    whole("dataset.validation_fraction", 0, 1)
    placement = config.dataset.placement
    choices = f"one of {', '.join(PLACEMENTS)}"
    _require(placement in PLACEMENTS, "dataset.placement", placement, choices)
    optimizer, schedule = config.optimizer, config.schedule
    rate = optimizer.learning_rate
    _require(0 < rate < math.inf, "optimizer.learning_rate", rate, "above 0")
    whole("optimizer.momentum", 0, 1)
    whole("optimizer.weight_decay", 0)
    excluded = optimizer.decay_exclude
    names = all(isinstance(name, str) for name in excluded)
    _require(names, "optimizer.decay_exclude", excluded, "a tuple of parameter names")
    choices = f"one of {', '.join(SCHEDULES)}"
    _require(schedule.name in SCHEDULES, "schedule.name", schedule.name, choices)
    if schedule.name == "multistep":
        drops = schedule.drop_epochs
        rising = all(isinstance(e, int) and e > 0 for e in drops)
        rising = rising and list(drops) == sorted(set(drops))
        _require(rising, "schedule.drop_epochs", drops, "rising whole epochs")
        factor = schedule.drop_factor
        _require(factor > 0, "schedule.drop_factor", factor, "above 0")
    else:
        whole("schedule.warmup_epochs", 0, config.num_epochs)


def _check_model(model: ConfigDict) -> None:
    name = model.get("name", "")
    names = ("self_attention", *_RESNETS)
    choices = f"one of {', '.join(names)}"
    _require(name in names, "model.name", name, choices)
    if name in _RESNETS:
        _check_schema(model, resnet(name), "model.")
    else:
        block = model.get("attention", ConfigDict())
        is_block = isinstance(block, ConfigDict)
        _require(is_block, "model.attention", block, "a block of fields")
        attention = block.get("name", "")
        choices = f"one of {', '.join(_ATTENTION_FIELDS)}"
        known = attention in _ATTENTION_FIELDS
        _require(known, "model.attention.name", attention, choices)
        schema = self_attention(attention)
        _check_schema(model, schema, "model.")
        _check_schema(model.attention, schema.attention, "model.attention.")
    for field, value in _flatten(model, "model.").items():
        _check_model_field(field, value)
    if "attention" not in model:
        return
    if model.attention.name == "multi_head":
        divides = model.num_heads > 0 and model.width % model.num_heads == 0
        wanted = f"a divisor of config.model.width ({model.width}) for multi_head"
        _require(divides, "model.num_heads", model.num_heads, wanted)
    if model.attention.name in ("learned_w_content", "learned_query_position"):
        wanted = "even: half of each query meets the rows, half the columns"
        _require(model.width % 2 == 0, "model.width", model.width, wanted)


def _check_model_field(field: str, value: Any) -> None:
    kind = field.rsplit(".", 1)[-1]
    if kind == "name":
        return
    if kind == "compute_dtype":
        choices = f"one of {', '.join(COMPUTE_DTYPES)}"
        _require(value in COMPUTE_DTYPES, field, value, choices)
    elif kind == "activation":
        choices = f"one of {', '.join(ACTIVATIONS)}"
        _require(value in ACTIVATIONS, field, value, choices)
    elif kind == "dropout_rate":
        _require(0 <= value < 1, field, value, "at least 0 and below 1")
    elif kind in ("center_std", "spread_std"):
        _require(0 <= value < math.inf, field, value, "at least 0")
    elif kind == "norm_epsilon":
        _require(0 < value < math.inf, field, value, "above 0")
    else:
        _require(value >= 1, field, value, "at least 1")
