"""The python layout: pickled batches, read without letting a pickle call anything.

A pickle is a program. The unpickler here knows the few names that a batch of CIFAR
needs, each replaced by something harmless, and refuses every other by name.
"""

import codecs
import io
import pickle
from typing import Any

import numpy as np

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.prepare_data.archives import Files
from attn_cnn_jax.prepare_data.binary import PIXELS, images_of
from attn_cnn_jax.prepare_data.cifar import Cifar, Split

RECORDS = {
    "cifar10": {
        "train": [f"data_batch_{i}" for i in range(1, 6)],
        "test": ["test_batch"],
    },
    "cifar100": {"train": ["train"], "test": ["test"]},
}
NAMES = {"cifar10": "batches.meta", "cifar100": "meta"}
_LABEL_KEYS = {
    "cifar10": {"label": "labels"},
    "cifar100": {"coarse_label": "coarse_labels", "label": "fine_labels"},
}
_NAME_KEYS = {
    "cifar10": {"label": "label_names"},
    "cifar100": {"coarse_label": "coarse_label_names", "label": "fine_label_names"},
}


def read(files: Files, name: str) -> Cifar:
    """Read the data set `name` from the files of the python layout."""
    splits = {
        split: _read_split(files, name, records)
        for split, records in RECORDS[name].items()
    }
    meta = load(files, NAMES[name])
    label_names = {
        kind: [_text(label) for label in _field(meta, key, list, files, NAMES[name])]
        for kind, key in _NAME_KEYS[name].items()
    }
    return Cifar(name, splits, label_names)


def load(files: Files, name: str) -> dict[str, Any]:
    """Return the dictionary in a pickled file; raise `UserError` at anything else."""
    data = files.read(name)
    try:
        content = _Unpickler(io.BytesIO(data), encoding="latin1").load()
        if not isinstance(content, dict):
            raise pickle.UnpicklingError("it holds no dictionary")
        return {_text(key): value for key, value in content.items()}
    except Exception as error:  # a doctored pickle can raise whatever it likes
        raise UserError(
            f"{name} in {files.where} is not a batch of CIFAR: {error}. Nothing of it "
            "was run; get an undamaged copy from a source you trust."
        ) from error


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}") from None


class _ArrayType:
    """A stand-in for numpy.ndarray, which a batch only names and never calls."""


def _reconstruct(subtype: object, shape: object, dtype: object) -> np.ndarray:
    """Return the empty array that a pickle then fills, as numpy's function does."""
    del shape, dtype  # the state that follows says them
    if subtype is not _ArrayType:
        raise pickle.UnpicklingError("it builds an array of an unknown type")
    return np.empty(0, np.uint8)


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """Encode text, which is how Python 3 pickles bytes in an old protocol."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding!r}")
    return codecs.encode(text, "latin1")


_ALLOWED = {
    ("numpy", "ndarray"): _ArrayType,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("_codecs", "encode"): _encode,
}


def _read_split(files: Files, name: str, records: list[str]) -> Split:
    kinds = _LABEL_KEYS[name]
    pixels: list[np.ndarray] = []
    labels: dict[str, list[int]] = {kind: [] for kind in kinds}
    for record in records:
        batch = load(files, record)
        data = _field(batch, "data", np.ndarray, files, record)
        if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != PIXELS:
            raise UserError(
                f"{record} in {files.where} holds {data.dtype} {list(data.shape)}, not "
                f"uint8 [N, {PIXELS}] pixels. Get an undamaged copy."
            )
        pixels.append(data)
        for kind, key in kinds.items():
            values = _field(batch, key, list, files, record)
            if len(values) != len(data) or {type(value) for value in values} - {int}:
                raise UserError(
                    f"{record} in {files.where}: {key} are not a number for each of "
                    f"the {len(data)} images. Get an undamaged copy."
                )
            labels[kind] += [min(max(value, -1), 1000) for value in values]
    return Split(
        images_of(np.concatenate(pixels)),
        {kind: np.array(values, np.int64) for kind, values in labels.items()},
    )


def _field(content: dict, key: str, kind: type, files: Files, name: str) -> Any:
    value = content.get(key)
    if not isinstance(value, kind):
        raise UserError(
            f"{name} in {files.where} has no {key!r}. Get an undamaged copy."
        )
    return value


def _text(value: object) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)
