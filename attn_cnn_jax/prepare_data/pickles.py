"""The python layout: pickled batches, read without letting a pickle call anything.

A pickle is a program. The unpickler here knows the few instructions and names that a
batch of CIFAR needs, each name replaced by something harmless, and refuses all others.
"""

import io
import pickle
from typing import Any

import numpy as np

from attn_cnn_jax.errors import UserError, first_line
from attn_cnn_jax.prepare_data.archives import MAX_FILE, Files
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
        kind: [text(label) for label in _field(meta, key, list, files, NAMES[name])]
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
        return {
            text(key): value.pixels if isinstance(value, _Array) else value
            for key, value in content.items()
        }
    except Exception as error:  # a doctored pickle can raise whatever it likes
        raise UserError(
            f"{name} in {files.where} is not a batch of CIFAR: {first_line(error)}. "
            "Nothing of it was run; get an undamaged copy from a source you trust."
        ) from error


class _Array:
    """The pixels of a batch: what a pickle calls an array of numpy's."""

    pixels: np.ndarray

    def __setstate__(self, state: tuple) -> None:
        _, shape, dtype, by_columns, data = state
        if type(dtype) is not _Dtype or by_columns is not False:
            raise pickle.UnpicklingError("its array is not one of bytes, by rows")
        data = data.encode("latin1") if isinstance(data, str) else data
        self.pixels = np.frombuffer(data, np.uint8).reshape(shape)


class _Dtype:
    """The type of the pixels, uint8."""

    def __init__(self, name: object, *unused: object) -> None:
        if name not in ("u1", "|u1"):
            raise pickle.UnpicklingError(f"its array is of {name!r:.20}, not uint8")

    def __setstate__(self, state: object) -> None:
        """Forget about byte order and alignment, which bytes do not have."""


class _ArrayType:
    """A stand-in for numpy.ndarray, which a batch only names and never calls."""


def _reconstruct(subtype: object, shape: object, dtype: object) -> _Array:
    """Return the array that a pickle then fills, as numpy's function does."""
    del shape, dtype  # the state that follows says them
    if subtype is not _ArrayType:
        raise pickle.UnpicklingError("it builds an array of an unknown type")
    return _Array()


_ALLOWED = {
    ("numpy", "ndarray"): _ArrayType,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
}


_InPython: Any = pickle._Unpickler


class _Opcodes(dict):
    """What a batch of CIFAR is written with, in protocol 2 or 4."""

    def __missing__(self, code: int) -> Any:
        raise pickle.UnpicklingError(f"it uses the instruction {chr(code)!r}")


class _Unpickler(_InPython):
    """A reader of pickles that builds texts, numbers, lists, dicts and arrays alone.

    It is the one that is written in Python: that in C ends the process over a tuple of
    a million levels as a key, and takes any memory that a pickle asks for.
    """

    dispatch = _Opcodes(
        {
            code[0]: _InPython.dispatch[code[0]]
            for code in (
                *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.NONE),
                *(pickle.NEWTRUE, pickle.NEWFALSE, pickle.BININT, pickle.BININT1),
                *(pickle.BININT2, pickle.LONG1, pickle.BINFLOAT, pickle.BINSTRING),
                *(pickle.SHORT_BINSTRING, pickle.BINUNICODE, pickle.SHORT_BINUNICODE),
                *(pickle.BINBYTES, pickle.SHORT_BINBYTES, pickle.BINBYTES8),
                *(pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS, pickle.EMPTY_DICT),
                *(pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2),
                *(pickle.TUPLE3, pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE),
                *(pickle.BINGET, pickle.LONG_BINGET, pickle.GLOBAL),
                *(pickle.STACK_GLOBAL, pickle.REDUCE),
            )
        }
    )
    _encoded = 0

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return self._encode
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}") from None

    def _encode(self, text: str, encoding: str = "latin1") -> bytes:
        """Encode text, which is how Python 3 pickles bytes in protocol 2."""
        self._encoded += len(text)
        if encoding != "latin1" or self._encoded > MAX_FILE:
            raise pickle.UnpicklingError(f"it asks for {encoding!r:.20} too often")
        return text.encode("latin1")

    def _set_items(self, items: list) -> None:
        keys = items[::2]
        if type(self.stack[-1]) is not dict or {type(k) for k in keys} - {str, bytes}:
            raise pickle.UnpicklingError("its keys are not names")
        self.stack[-1].update(zip(keys, items[1::2], strict=True))

    def _load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set_items([key, value])

    def _load_setitems(self) -> None:
        self._set_items(self.pop_mark())

    def _load_build(self) -> None:
        state = self.stack.pop()
        if type(self.stack[-1]) not in (_Array, _Dtype):
            raise pickle.UnpicklingError("it alters what is no array")
        self.stack[-1].__setstate__(state)

    dispatch[pickle.SETITEM[0]] = _load_setitem
    dispatch[pickle.SETITEMS[0]] = _load_setitems
    dispatch[pickle.BUILD[0]] = _load_build


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


def text(value: object) -> str:
    """Return a name in a batch, which is text or bytes; else raise a `UserError`."""
    if not isinstance(value, str | bytes):  # a text of nested lists may have no end
        kind = type(value).__name__
        raise UserError(f"a name in it is of type {kind}: get an undamaged copy.")
    return value.decode("latin1") if isinstance(value, bytes) else value
