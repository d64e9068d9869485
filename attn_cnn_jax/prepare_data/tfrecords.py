"""A data set that TFDS prepared as TFRecords, read without TensorFlow."""

import json
import pathlib
import re
import struct
from typing import Any

import numpy as np
from tqdm import tqdm

from attn_cnn_jax.data import CIFAR_COUNTS
from attn_cnn_jax.data.prepared import decode_image, parse_example
from attn_cnn_jax.errors import UserError, first_line
from attn_cnn_jax.prepare_data.archives import read_file
from attn_cnn_jax.prepare_data.cifar import LABELS, Cifar, Split

INFO = "dataset_info.json"
MAX_RECORD = 2**14  # bytes; a PNG of 32 x 32 pixels has less than 4,000
MAX_ID = 64  # bytes: train_00000 has 11
CHUNK = 4_096  # records whose checksums are computed together


def dataset_of(folder: pathlib.Path) -> str | None:
    """Return the data set that dataset_info.json of a TFDS folder names, or None."""
    name = _info(folder).get("name")
    return name if isinstance(name, str) and name in LABELS else None


def read(folder: pathlib.Path, name: str) -> Cifar:
    """Read the data set `name` from a TFDS folder of TFRecords, in official order."""
    if _info(folder).get("fileFormat", "tfrecord") != "tfrecord":
        raise UserError(
            f"{folder} needs no preparation: use it with --data_dir="
            f"{folder.absolute().parent.parent}."
        )
    splits = {split: _read_split(folder, name, split) for split in CIFAR_COUNTS}
    label_names = {
        kind: read_file(folder / f"{kind}.labels.txt")
        .decode("ascii", "replace")
        .split()
        for kind in LABELS[name]
    }
    return Cifar(name, splits, label_names)


def _info(folder: pathlib.Path) -> dict[str, Any]:
    try:
        info = json.loads(read_file(folder / INFO))
    except (RecursionError, ValueError):
        return {}
    return info if isinstance(info, dict) else {}


def _read_split(folder: pathlib.Path, name: str, split: str) -> Split:
    payloads: list[bytes] = []
    for path in _shards(folder, name, split):
        payloads += records(path)
        if len(payloads) > CIFAR_COUNTS[split]:
            raise UserError(f"{folder} has too many records of {split} to be {name}.")
    images = np.empty((len(payloads), 32, 32, 3), np.uint8)
    labels = {kind: np.empty(len(payloads), np.int64) for kind in LABELS[name]}
    ids = []
    bar = tqdm(payloads, f"read {split}", unit=" images", disable=None)
    for row, payload in enumerate(bar):
        try:
            feature = parse_example(payload)
            png = feature["image"].bytes_list.value[0]
            images[row] = decode_image(png, (32, 32, 3))
            for kind in labels:
                labels[kind][row] = feature[kind].int64_list.value[0]
            ids.append(b"".join(feature["id"].bytes_list.value[:1])[:MAX_ID])
        except Exception as error:  # protobuf and PIL raise whatever they like
            raise UserError(
                f"record {row} of {split} in {folder} is no image of CIFAR: "
                f"{first_line(error)}."
            ) from error
    named = [name for name in ids if name]  # early versions of TFDS wrote none
    if len(set(named)) != len(named):
        raise UserError(f"{folder} holds records of {split} twice. Copy it again.")
    # TFDS shuffles what it writes; the ids say the order it read.
    order = np.argsort(ids, kind="stable")
    return Split(images[order], {kind: labels[kind][order] for kind in labels})


def _shards(folder: pathlib.Path, name: str, split: str) -> list[pathlib.Path]:
    pattern = re.compile(rf"{name}-{split}\.tfrecord-(\d{{5}})-of-(\d{{5}})")
    found = sorted(path for path in folder.iterdir() if pattern.fullmatch(path.name))
    totals = {int(path.name[-5:]) for path in found}
    if totals != {len(found)}:
        raise UserError(
            f"{folder} is incomplete: it holds {len(found)} TFRecord files of {split}, "
            f"whose names promise {max(totals, default=1)}. Copy it again."
        )
    return found


def records(path: pathlib.Path) -> list[bytes]:
    """Return the payloads of a TFRecord file, whose checksums are verified.

    A record is the length (8 bytes), its checksum (4), the payload and its checksum.
    """
    data = read_file(path)
    heads, payloads, sums = [], [], []
    at = 0
    while at < len(data):
        if at + 12 > len(data):
            raise UserError(f"{path} is truncated. Copy it again.")
        length, head_sum = struct.unpack_from("<QI", data, at)
        if length > MAX_RECORD:
            raise UserError(f"{path} is damaged: a record of {length} bytes.")
        end = at + 12 + length + 4
        if end > len(data):
            raise UserError(f"{path} is truncated. Copy it again.")
        if len(payloads) > max(CIFAR_COUNTS.values()):
            raise UserError(f"{path} has too many records to be of CIFAR.")
        heads.append(data[at : at + 8])
        payloads.append(data[at + 12 : end - 4])
        sums += [head_sum, struct.unpack_from("<I", data, end - 4)[0]]
        at = end
    for parts, expected in ((heads, sums[::2]), (payloads, sums[1::2])):
        for start in range(0, len(parts), CHUNK):
            found = masked_crc32c(parts[start : start + CHUNK])
            if not np.array_equal(found, expected[start : start + CHUNK]):
                raise UserError(
                    f"{path} is damaged: a checksum differs. Copy it again."
                )
    return payloads


def _table() -> np.ndarray:
    """Return the CRC-32C of each byte: the Castagnoli polynomial, reflected."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1)
    return table


def masked_crc32c(parts: list[bytes]) -> np.ndarray:
    """Return the TFRecord checksum of each part, uint32 [N].

    All parts advance together, byte by byte: numpy does in 0.3 s what a loop over the
    bytes does in a minute. Sorted by length, those that have not ended are a prefix.
    """
    table = _table()
    lengths = np.array([len(part) for part in parts])
    order = np.argsort(-lengths, kind="stable")
    columns = np.zeros((lengths.max(initial=0), len(parts)), np.uint8)
    for column, row in enumerate(order):
        columns[: lengths[row], column] = np.frombuffer(parts[row], np.uint8)
    alive = np.searchsorted(-lengths[order], -np.arange(len(columns)), side="left")
    crc = np.full(len(parts), 0xFFFFFFFF, np.uint32)
    for values, n in zip(columns, alive, strict=True):
        crc[:n] = table[(crc[:n] ^ values[:n]) & 0xFF] ^ (crc[:n] >> 8)
    crc ^= np.uint32(0xFFFFFFFF)
    masked = ((crc >> 15) | (crc << np.uint32(17))) + np.uint32(0xA282EAD8)
    result = np.empty_like(masked)
    result[order] = masked
    return result
