"""The devices and versions that a run was computed with."""

import importlib.metadata
import json
import pathlib
import platform
import subprocess
import time
from collections.abc import Mapping
from typing import Any

from jax.sharding import Mesh

from attn_cnn_jax import __version__

_PACKAGES = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "tensorflow-datasets",
    "numpy",
)


def describe(mesh: Mesh) -> dict[str, Any]:
    """Return devices, versions and git commit (None outside a checkout)."""
    devices = mesh.devices.ravel()
    return {
        "device_kind": devices[0].device_kind,
        "platform": devices[0].platform,
        "devices": len(devices),
        "attn_cnn_jax": __version__,
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in _PACKAGES},
        "git_commit": _git_commit(),
    }


def record(workdir: pathlib.Path, mesh: Mesh, start: Mapping[str, Any]) -> None:
    """Add a line about this start of a run to its `environment.jsonl`.

    `start` says in which arithmetic, and what the run begins with where it does not
    draw its variables.
    """
    line = {"started": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **describe(mesh)}
    line.update(start)
    with (workdir / "environment.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _git_commit() -> str | None:
    root = pathlib.Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None
