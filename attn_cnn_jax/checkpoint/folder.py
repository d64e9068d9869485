"""One checkpoint on disk: its arrays, its record, and whether they are whole."""

import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict
from orbax.checkpoint import v1 as ocp

from attn_cnn_jax import config as config_lib
from attn_cnn_jax import remote
from attn_cnn_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint; `training` is None if only variables were saved."""

    step: int
    config: ConfigDict
    variables: dict[str, Any]
    training: Any = None
    progress: dict[str, Any] = dataclasses.field(default_factory=dict)


_STEP = re.compile("0|[1-9][0-9]{0,8}")  # as Orbax writes it; more is no training


class DamagedError(Exception):
    """A checkpoint that cannot be read back as it was written."""


def find(
    workdir: pathlib.Path, kinds: tuple[str, ...] = ("snapshots", "checkpoints")
) -> dict[int, pathlib.Path]:
    """Return complete checkpoints by step; one to resume from hides a snapshot."""
    found = {}
    for kind in kinds:
        for path in (workdir / kind).glob("*"):
            if _STEP.fullmatch(path.name) and path.is_dir():
                found[int(path.name)] = path
    return found


def unreadable_json(path: pathlib.Path) -> list[pathlib.Path]:
    """Return the damaged JSON files that Orbax's manager would read at its start."""
    damaged = []
    for file in (path / "_CHECKPOINT_METADATA", path / "metrics/metrics"):
        try:
            if file.exists():
                json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            damaged.append(file)
    return damaged


def context() -> ocp.Context:
    """Return an Orbax context that keeps the item `record` as plain JSON."""
    registry = ocp.handlers.local_registry()
    registry.add(ocp.handlers.JsonHandler, checkpointable_name="record")
    context = ocp.Context()
    context.checkpointables.registry = registry
    return context


def on_host(tree: Any) -> Any:
    """Return the arrays as NumPy arrays that nobody else writes to."""
    # On a CPU those of `device_get` may be the very buffers that a step is donated.
    return jax.tree.map(np.array, jax.device_get(tree))


def save_variables(
    path: pathlib.Path, config: ConfigDict, step: int, variables: Mapping[str, Any]
) -> None:
    """Write a checkpoint without training state, whole or not at all."""
    items = {"variables": variables}
    with context():
        ocp.save_checkpointables(
            str(path), {"record": make_record(config, step, items), **items}
        )


def make_record(
    config: ConfigDict,
    step: int,
    items: Mapping[str, Any],
    progress: Mapping[str, Any] | None = None,
    accuracy: float | None = None,
) -> dict[str, Any]:
    """Return the record beside the arrays, with digests of them and of itself."""
    _refuse_values_that_are_not_finite(step, items)
    content = {
        "step": step,
        "config": config.to_dict(),
        "digests": _digests(items),
        "progress": dict(progress or {}),
        "accuracy": accuracy,
    }
    return {"content": json.dumps(content), "digest": _digest_of_content(content)}


def _named_arrays(items: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(items):
        name = "/".join(str(getattr(k, "key", getattr(k, "name", k))) for k in path)
        yield name, np.ascontiguousarray(leaf)


def _refuse_values_that_are_not_finite(step: int, items: Mapping[str, Any]) -> None:
    for name, array in _named_arrays(items):
        if array.dtype.kind not in "iub" and not np.isfinite(array).all():
            raise UserError(
                f"after step {step} {name} has values that are not finite; such a "
                "state is never saved. Lower config.optimizer.learning_rate."
            )


def _digest_of_content(content: Any) -> str:
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=16).hexdigest()


def _digests(items: Mapping[str, Any]) -> dict[str, str]:
    """Return a digest of every array, by its path."""
    digests = {}
    for name, array in _named_arrays(items):
        header = f"{array.dtype} {array.shape}".encode()
        digest = hashlib.blake2b(header, digest_size=16)
        digest.update(array.reshape(-1).view(np.uint8).data)
        digests[name] = digest.hexdigest()
    return digests


def load_record(path: pathlib.Path) -> dict[str, Any]:
    """Load what `make_record` wrote beside the arrays, checked by its digest."""
    remote.fetch(path, "record")
    try:
        with context():
            record = ocp.load_checkpointables(str(path), {"record": None})["record"]
        content = json.loads(record["content"])
        intact = record["digest"] == _digest_of_content(content)
    except Exception as error:
        raise DamagedError(f"its record cannot be read ({cause(error)})") from (error)
    if not intact:
        raise DamagedError("its record does not match its digest")
    if not _is_record(content, path.name):
        raise DamagedError("its record is not that of a checkpoint of this step")
    return content


def _is_record(content: Any, step: str) -> bool:
    """Tell whether whoever wrote the record, and its digest, kept to its form."""
    if not isinstance(content, dict) or str(content.get("step")) != step:
        return False
    blocks = (content.get(name) for name in ("config", "digests", "progress"))
    accuracy = content.get("accuracy", "")
    known = accuracy is None or type(accuracy) in (int, float) and 0 <= accuracy <= 1
    return known and all(isinstance(block, dict) for block in blocks)


def load_folder(path: pathlib.Path, like: Mapping[str, Any] | None) -> Checkpoint:
    """Load and verify one checkpoint; without `like` its variables as NumPy arrays."""
    record = load_record(path)
    remote.fetch(path)
    try:
        config = config_lib.from_dict(record["config"])
    except Exception as error:  # it may hold whatever JSON can say
        raise DamagedError(f"its config cannot be read ({error})") from error
    if like is not None and not (path / "training").exists():
        raise DamagedError("it holds variables only and cannot be trained on")
    try:
        with context():
            if like is None:
                saved = ocp.checkpointables_metadata(str(path)).metadata["variables"]
                like = {
                    "variables": jax.tree.map(
                        lambda leaf: np.empty(leaf.shape, leaf.dtype), saved
                    )
                }
            items = ocp.load_checkpointables(str(path), dict(like))
    except Exception as error:
        raise DamagedError(cause(error)) from error
    for name, digest in _digests(items).items():
        if record["digests"].get(name) != digest:
            raise DamagedError(f"{name} does not match its digest")
    return Checkpoint(
        step=int(path.name),
        config=config,
        variables=items["variables"],
        training=items.get("training"),
        progress=record["progress"],
    )


def refuse_other_shapes(
    wanted: Mapping[str, Any], found: Mapping[str, Any], complaint: str
) -> None:
    """Raise a `UserError` with the complaint and the first array that does not fit.

    `wanted` and `found` are variables, as arrays or as shapes.
    """
    wanted, found = (
        {
            jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        }
        for tree in (wanted, found)
    )
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise UserError(
                f"{complaint}: {name} has shape {found.get(name)}, not "
                f"{wanted.get(name)}."
            )


def cause(error: BaseException) -> str:
    """Return in a line the error that Orbax's errors wrap, which may be pages."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if len(text) <= 200 else f"{text[:200]}..."


def size_on_disk(items: Any) -> int:
    """Return the bytes that a checkpoint of these arrays may take."""
    return int(1.1 * sum(leaf.nbytes for leaf in jax.tree.leaves(items))) + 2**18


def refuse_without_room(parent: pathlib.Path, items: Any) -> None:
    """Raise an `OSError` where a checkpoint of the arrays cannot be written.

    Of a save that fails in its midst Orbax leaves files, and threads that wait for
    minutes.
    """
    parent.mkdir(parents=True, exist_ok=True)
    needed, free = size_on_disk(items), shutil.disk_usage(parent).free
    if free < needed:
        raise OSError(f"{needed / 1e6:.1f} MB are needed and {free / 1e6:.1f} MB free")
    pathlib.Path(tempfile.mkdtemp(dir=parent)).rmdir()


def sync(path: pathlib.Path) -> None:
    """Bring a complete checkpoint to the disk: its files, its folders, its name.

    Orbax writes some files without waiting for the disk, and renames the folder. A loss
    of power before this may leave a damaged checkpoint; after it the checkpoint is
    whole. The ones before are only removed by a later save, which begins after this.
    """
    folders = [path, *(inner for inner in path.rglob("*") if inner.is_dir())]
    files = [file for folder in folders for file in folder.iterdir() if file.is_file()]
    for one in (*files, *reversed(folders), path.parent, path.parent.parent):
        descriptor = os.open(one, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
