"""A config as JSON and back, and what changes the numbers of a run."""

import json
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

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
# Fields that came later, as they are in a run that was recorded without them.
_LATER_FIELDS = {"init_from": ""}


def to_json(config: ConfigDict) -> str:
    """The resolved config as indented JSON."""
    return json.dumps(config.to_dict(), indent=2, sort_keys=True)


def from_dict(fields: Mapping[str, Any]) -> ConfigDict:
    """The config, or block of one, that `to_json` wrote; JSON's lists are tuples."""

    def restored(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: restored(item) for key, item in value.items()}
        return tuple(value) if isinstance(value, list) else value

    is_whole = "model" in fields
    return ConfigDict(restored({**_LATER_FIELDS, **fields} if is_whole else fields))


def differences(old: ConfigDict, new: ConfigDict) -> list[str]:
    """Lines "field: old -> new" of what changes the numbers of a run."""
    a, b = flatten(old), flatten(new)
    return [
        f"{field}: {a.get(field, 'absent')} -> {b.get(field, 'absent')}"
        for field in sorted(a.keys() | b.keys())
        if field not in RESUMABLE and a.get(field) != b.get(field)
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
