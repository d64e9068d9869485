"""The binary layout: records of label bytes and 3,072 bytes of pixels."""

import numpy as np
from jaxtyping import UInt8

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.prepare_data.archives import Files
from attn_cnn_jax.prepare_data.cifar import LABELS, Cifar, Split, check_labels

RECORDS = {
    "cifar10": {
        "train": [f"data_batch_{i}.bin" for i in range(1, 6)],
        "test": ["test_batch.bin"],
    },
    "cifar100": {"train": ["train.bin"], "test": ["test.bin"]},
}
NAMES = {
    "cifar10": {"label": "batches.meta.txt"},
    "cifar100": {
        "coarse_label": "coarse_label_names.txt",
        "label": "fine_label_names.txt",
    },
}
PIXELS = 3 * 32 * 32


def read(files: Files, name: str) -> Cifar:
    """Read the data set `name` from the files of the binary layout."""
    splits = {
        split: _read_split(files, name, records)
        for split, records in RECORDS[name].items()
    }
    label_names = {kind: _read_names(files, file) for kind, file in NAMES[name].items()}
    return Cifar(name, splits, label_names)


def images_of(pixels: UInt8[np.ndarray, "N 3072"]) -> UInt8[np.ndarray, "N 32 32 3"]:
    """Return the images of records that hold a red, a green and a blue plane each."""
    return pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def _read_split(files: Files, name: str, records: list[str]) -> Split:
    kinds = LABELS[name]
    size = len(kinds) + PIXELS
    parts = []
    for record in records:
        data = np.frombuffer(files.read(record), np.uint8)
        if data.size % size or not data.size:
            raise UserError(
                f"{record} in {files.where} is truncated or of another kind: "
                f"{data.size} bytes are not a multiple of {size}. Get it again."
            )
        part = data.reshape(-1, size)
        for column, (kind, classes) in enumerate(kinds.items()):
            check_labels(part[:, column], classes, f"{record} in {files.where}: {kind}")
        parts.append(part)
    rows = np.concatenate(parts)
    labels = {kind: rows[:, column] for column, kind in enumerate(kinds)}
    return Split(images_of(rows[:, len(kinds) :]), labels)


def _read_names(files: Files, file: str) -> list[str]:
    try:
        lines = files.read(file).decode("ascii").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{file} in {files.where} is no text. Get it again.") from error
    return [line.strip() for line in lines if line.strip()]
