"""The folder of a run that names none."""

import hashlib
import pathlib
import re
from collections.abc import Mapping
from typing import Any

_LONGEST_OVERRIDES = 100  # characters


def default_workdir(
    named: str,
    changes: Mapping[str, tuple[Any, Any]],
    seed: int,
    init_from: str | None = None,
) -> str:
    """Return runs/<name>[_<options>][_<field>=<value>]_seed<n>[_init_<other run>].

    `named` is what stands behind --config=, and `changes` are those of a run from it.
    """
    path, _, options = named.partition(":")
    parts = [pathlib.Path(path).stem, *filter(None, options.split(","))]
    overrides = [
        re.sub(r"[^\w.=-]+", "-", f"{field}={value}")
        for field, (_, value) in changes.items()
        if field != "seed"
    ]
    text = "_".join(overrides)
    if len(text) > _LONGEST_OVERRIDES:
        digest = hashlib.sha256(text.encode()).hexdigest()
        overrides = [text[: _LONGEST_OVERRIDES - 9], digest[:8]]
    origin = f"_init_{pathlib.Path(init_from).name}" if init_from else ""
    return f"runs/{'_'.join([*parts, *overrides])}_seed{seed}{origin}"
