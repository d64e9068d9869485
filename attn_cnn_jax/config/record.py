"""A config as JSON and back, and the fields that change the numbers of a run."""

import json
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from attn_cnn_jax.config.model_blocks import RESNETS

# What may differ between a run and its continuation: none changes the numbers, but
# for rounding (`eval_batch_size` does where evaluation is in training mode).
RESUMABLE = frozenset(
    {
        "dataset.data_dir",
        "dataset.placement",
        "eval_every_epochs",
        "eval_batch_size",
        "micro_batch_size",
        "model.query_chunk",
        "model.remat",
        "steps_per_dispatch",
        "log_every_steps",
        "log_heads_every_epochs",
        "checkpoint_every_steps",
        "checkpoints_to_keep",
        "snapshot_every_epochs",
    }
)
_DEEPEST = 10  # blocks and lists in each other: more than in any config
# Fields that came later, as they are in a run that was recorded without them: those of
# the run, and those of a block by its name.
_LATER_FIELDS: dict[str, Any] = {
    "init_from": "",
    "label_smoothing": 0.0,
    "evaluate_in_training_mode": False,
    "steps_per_dispatch": 1,
    "micro_batch_size": 0,
    "matmul_precision": "float32",
    "log_heads_every_epochs": 0,
}
_LATER_FIELDS_OF: dict[str, dict[str, Any]] = {
    "sgd": {"nesterov": False},
    "self_attention": {
        "attention_dense": True,
        "share_weights": False,
        "query_chunk": 0,
        "remat": False,
    },
    "vit": {"remat": False},
    **dict.fromkeys(RESNETS, {"initialization": "torch"}),
}


def to_json(config: ConfigDict) -> str:
    """Return the resolved config as indented JSON."""
    return json.dumps(config.to_dict(), indent=2, sort_keys=True)


def from_dict(fields: Mapping[str, Any]) -> ConfigDict:
    """Return the config, or its model block, that `to_json` wrote.

    JSON's lists become tuples. A field that an earlier version did not record has the
    value that it worked with. What is no config at all raises some exception.
    """

    def restored(value: Any, depth: int = 0) -> Any:
        if depth > _DEEPEST:
            raise ValueError("its blocks lie too deep in each other")
        if isinstance(value, Mapping):
            later = _LATER_FIELDS_OF.get(str(value.get("name")), {})
            items = {**later, **value}.items()
            return {key: restored(item, depth + 1) for key, item in items}
        if isinstance(value, list):
            return tuple(restored(item, depth + 1) for item in value)
        return value

    if not isinstance(fields, Mapping):
        raise TypeError("it holds no fields")
    whole = {**_LATER_FIELDS, **fields} if "model" in fields else dict(fields)
    optimizer = whole.get("optimizer")
    if isinstance(optimizer, Mapping):  # the first ones had no name
        whole["optimizer"] = {"name": "sgd", **optimizer}
    return ConfigDict(restored(whole))


def changes(old: ConfigDict, new: ConfigDict) -> dict[str, tuple[Any, Any]]:
    """Return (old, new) of every dotted field that changes the numbers of a run.

    A value that a config does not have is "absent".
    """
    a, b = flatten(old), flatten(new)
    by_batch = new.get(
        "evaluate_in_training_mode"
    )  # images are scored with their batch
    resumable = RESUMABLE - ({"eval_batch_size"} if by_batch else set())
    return {
        field: (a.get(field, "absent"), b.get(field, "absent"))
        for field in sorted(a.keys() | b.keys())
        if field not in resumable and a.get(field) != b.get(field)
    }


def differences(old: ConfigDict, new: ConfigDict) -> list[str]:
    """Return lines "field: old -> new" of what changes the numbers of a run."""
    pairs = changes(old, new).items()
    return [f"{field}: {before} -> {after}" for field, (before, after) in pairs]


def flatten(config: ConfigDict, prefix: str = "") -> dict[str, Any]:
    """Return the values by dotted field, each behind `prefix`."""
    flat = {}
    for key, value in config.items():
        if isinstance(value, ConfigDict):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat
