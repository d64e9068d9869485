"""The decoded images of a prepared dataset, kept beside it for the next start.

They lie in a hidden folder whose name has the digest of the files that they came from:
other files are never taken for them. A start then needs neither TFDS nor any decoding.
"""

import hashlib
import json
import os
import pathlib
import shutil
import tempfile
import time
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from attn_cnn_jax.data.dataset import Split
from attn_cnn_jax.data.verified import digest, read_json

_PREFIX = ".decoded_"
_FORMAT = 1  # to be raised when what is kept changes
_INDEX = "index.json"  # the names of the classes, and the digest of each array
_MAX_BYTES = 2**24  # of the index
_SECONDS_TO_WRITE = 3600.0  # a folder without a name of its own is left behind after


class Decoded(NamedTuple):
    """The names of the classes and the splits of a dataset, in its own order."""

    class_names: tuple[str, ...]
    splits: dict[str, Split]


def read(folder: pathlib.Path, files: Mapping[str, str]) -> Decoded | None:
    """Return what was kept of the dataset in `folder`, images mapped into memory.

    `files` are its files' digests by name. What is damaged counts as not kept.
    """
    kept = folder / _name(files)
    try:
        index = read_json(kept / _INDEX, _MAX_BYTES)
        arrays: dict[str, dict[str, np.ndarray]] = {}
        for name, expected in index["arrays"].items():
            split, _, field = name.partition(".")
            path = kept / f"{name}.npy"
            if path.parent != kept or digest(path) != expected:
                return None
            array = np.load(path, mmap_mode="r", allow_pickle=False)
            arrays.setdefault(split, {})[field] = array
        splits = {name: Split(**fields) for name, fields in arrays.items()}
        if not {"train"} < splits.keys() <= {"train", "test", "validation"}:
            return None
        return Decoded(tuple(map(str, index["class_names"])), splits)
    except Exception:  # its files may hold anything; decoding again is always right
        return None


def write(folder: pathlib.Path, files: Mapping[str, str], decoded: Decoded) -> None:
    """Keep `decoded` beside the dataset in `folder`, where there is room and leave.

    Other processes see all of it or nothing.
    """
    _remove_unfinished(folder)
    try:
        new = pathlib.Path(tempfile.mkdtemp(prefix=f"{_PREFIX}new_", dir=folder))
    except OSError:  # a folder that others may only read
        return
    try:
        digests = {}
        for split, content in decoded.splits.items():
            for field in ("images", "labels", "ids"):
                array = getattr(content, field)
                if array is not None:
                    name = f"{split}.{field}"
                    np.save(new / f"{name}.npy", array, allow_pickle=False)
                    digests[name] = digest(new / f"{name}.npy")
        index = {"class_names": decoded.class_names, "arrays": digests}
        (new / _INDEX).write_text(json.dumps(index), encoding="utf-8")
        new.chmod(0o755 & folder.stat().st_mode)
        kept = folder / _name(files)
        shutil.rmtree(kept, ignore_errors=True)  # it was damaged
        new.rename(kept)
    except OSError:  # no room, or another process was first
        shutil.rmtree(new, ignore_errors=True)


def _name(files: Mapping[str, str]) -> str:
    content = json.dumps([_FORMAT, sorted(files.items())])
    return _PREFIX + hashlib.sha256(content.encode()).hexdigest()[:32]


def _remove_unfinished(folder: pathlib.Path) -> None:
    """Remove what processes left that were killed while they wrote."""
    for path in folder.glob(f"{_PREFIX}new_*"):
        try:
            age = time.time() - path.lstat().st_mtime
        except OSError:
            continue
        if age > _SECONDS_TO_WRITE and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
