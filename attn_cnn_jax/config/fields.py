"""The names of fields that are missing, unknown or wrong."""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from attn_cnn_jax.errors import UserError, one_line


def require(holds: bool, field: str, value: Any, wanted: str) -> None:
    """Raise a `UserError` that names the field unless it `holds`."""
    if not holds:
        if isinstance(value, ConfigDict):
            shown = "a block of fields"
        else:
            shown = one_line(repr(value) if isinstance(value, str) else value)
        raise UserError(f"config.{field} is {shown}; it must be {wanted}.")


def check_schema(
    config: ConfigDict,
    schema: ConfigDict,
    prefix: str = "",
    or_types: Mapping[str, type] | None = None,
) -> None:
    """Raise unless `config` has the fields and types of `schema`.

    The fields in `or_types` may be of that type instead. The optimizer, the model and
    its attention have schemas of their own.
    """
    others = or_types or {}
    for key in config:
        if key not in schema:
            block = prefix[:-1].rpartition(".")[2]
            owner = f"the {block} {config.name}" if "name" in config else "a config"
            raise UserError(f"config.{prefix}{key} is not a field of {owner}.")
    for key, example in schema.items():
        if key not in config:
            raise UserError(f"config.{prefix}{key} is missing.")
        value = config[key]
        if isinstance(example, ConfigDict):
            is_block = isinstance(value, ConfigDict)
            require(is_block, prefix + key, value, "a block of fields")
            if key not in ("optimizer", "model", "attention"):
                check_schema(value, example, f"{prefix}{key}.")
        else:
            right = type(value) in (type(example), others.get(key)) or (
                isinstance(example, float) and type(value) is int
            )
            wanted = f"of type {type(example).__name__}"
            if key in others:
                wanted += f" or {others[key].__name__}"
            require(right, prefix + key, value, wanted)
