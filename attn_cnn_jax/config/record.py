"""A config as JSON and back, and what changes the numbers of a run."""

import json
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

# What may differ between a run and its continuation: none of it changes the numbers
# (`eval_batch_size` does where evaluation is in training mode).
RESUMABLE = frozenset(
    {
        "dataset.data_dir",
        "dataset.placement",
        "eval_every_epochs",
        "eval_batch_size",
        "steps_per_dispatch",
        "log_every_steps",
        "checkpoint_every_steps",
        "checkpoints_to_keep",
        "snapshot_every_epochs",
    }
)
# Fields that came later, as they are in a run that was recorded without them.
_LATER_FIELDS: dict[str, Any] = {
    "init_from": "",
    "label_smoothing": 0.0,
    "evaluate_in_training_mode": False,
    "steps_per_dispatch": 1,
    "optimizer": {"nesterov": False},
}
_LATER_MODEL_FIELDS: dict[str, dict[str, Any]] = {
    "self_attention": {"attention_dense": True, "share_weights": False},
}


def to_json(config: ConfigDict) -> str:
    """The resolved config as indented JSON."""
    return json.dumps(config.to_dict(), indent=2, sort_keys=True)


def from_dict(fields: Mapping[str, Any]) -> ConfigDict:
    """The config, or its model block, that `to_json` wrote; JSON's lists are tuples.

    What an earlier version did not record yet has the value that it worked with.
    """

    def restored(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: restored(item) for key, item in value.items()}
        return tuple(value) if isinstance(value, list) else value

    def completed(block: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
        inner = {
            key: completed(block[key], value)
            for key, value in later.items()
            if isinstance(value, Mapping) and isinstance(block.get(key), Mapping)
        }
        return {**later, **block, **inner}

    def completed_model(model: Any) -> Any:
        if not isinstance(model, Mapping):
            return model
        return completed(model, _LATER_MODEL_FIELDS.get(str(model.get("name")), {}))

    if "model" not in fields:
        return ConfigDict(restored(completed_model(fields)))
    whole = completed(fields, _LATER_FIELDS)
    return ConfigDict(restored({**whole, "model": completed_model(fields["model"])}))


def differences(old: ConfigDict, new: ConfigDict) -> list[str]:
    """Lines "field: old -> new" of what changes the numbers of a run."""
    a, b = flatten(old), flatten(new)
    by_batch = new.get(
        "evaluate_in_training_mode"
    )  # images are scored with their batch
    resumable = RESUMABLE - ({"eval_batch_size"} if by_batch else set())
    return [
        f"{field}: {a.get(field, 'absent')} -> {b.get(field, 'absent')}"
        for field in sorted(a.keys() | b.keys())
        if field not in resumable and a.get(field) != b.get(field)
    ]


def flatten(config: ConfigDict, prefix: str = "") -> dict[str, Any]:
    """Values by dotted field, each behind `prefix`."""
    flat = {}
    for key, value in config.items():
        if isinstance(value, ConfigDict):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat
