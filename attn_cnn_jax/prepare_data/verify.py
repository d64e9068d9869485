"""Read every record of a prepared data set and check that it is whole."""

import contextlib
import pathlib
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from tensorflow_datasets.image_classification import cifar as official
from tqdm import tqdm

from attn_cnn_jax.data import CIFAR_COUNTS, verified
from attn_cnn_jax.data.prepared import decode_image, open_folder, parse_example
from attn_cnn_jax.errors import UserError, first_line
from attn_cnn_jax.prepare_data.cifar import LABELS, Cifar, check_count

Counts = dict[str, dict[str, np.ndarray]]  # split -> kind of label -> records per class


def builder_class(dataset: str) -> type[tfds.core.GeneratorBasedBuilder]:
    """Return the official builder of cifar10 or cifar100."""
    return {"cifar10": official.Cifar10, "cifar100": official.Cifar100}[dataset]


def prepared_dir(dataset: str, data_dir: pathlib.Path) -> pathlib.Path:
    """Return the folder of a data set's records under `data_dir`."""
    return data_dir / dataset / str(builder_class(dataset).VERSION)


def record_id(split: str, index: int) -> str:
    """Return the id of a record by its place in the official order: train_00000, ..."""
    return f"{split}_{index:05d}"


def is_prepared(dataset: str, data_dir: pathlib.Path, *, allow_partial: bool) -> bool:
    """Return True if `data_dir` holds the whole data set already.

    A data set that this command has verified is known by its files' digests; one that
    TFDS wrote is read through, and its digests are recorded. So is that `allow_partial`
    left records out on purpose. Raises a `UserError` if it is damaged or incomplete.
    """
    target = prepared_dir(dataset, data_dir)
    if not target.exists():
        return False
    if any(target.glob("*.tfrecord-*")):
        raise UserError(
            f"{target} holds TFRecords, which only TensorFlow reads at random. Run "
            f"this with --source={target} and another --data_dir to convert them."
        )
    try:
        signed = verified.check(target)
        if signed is None:
            read_back(dataset, target, allow_partial=allow_partial)
        else:
            _, sources = open_folder(target)
            _check_counts(sources, allow_partial)
    except UserError as error:
        raise UserError(
            f"{target} is there but cannot be used ({error}); remove it, or choose "
            "another --data_dir, and run this again."
        ) from error
    if signed is None or (allow_partial and not signed.partial):
        try:
            sign(target)
        except OSError as error:  # of a folder of others, which can only be read
            warnings.warn(
                f"{target} was verified, but not marked: {error}", stacklevel=2
            )
    return True


def sign(folder: pathlib.Path) -> None:
    """Record the digests of verified files, and whether they are all the records."""
    _, sources = open_folder(folder)
    partial = any(len(sources[name]) < count for name, count in CIFAR_COUNTS.items())
    verified.sign(folder, partial=partial)


def _check_counts(sources: Mapping[str, Any], allow_partial: bool) -> None:
    for name, count in CIFAR_COUNTS.items():
        check_count(len(sources.get(name, ())), count, name, allow_partial)


def read_back(
    dataset: str,
    folder: pathlib.Path,
    *,
    allow_partial: bool,
    against: Cifar | None = None,
) -> Counts:
    """Decode every record once and return how many each class has.

    Shapes, labels, ids and counts are checked, and with `against` every pixel and
    label. Raises a `UserError` at the first thing that is wrong.
    """
    _, sources = open_folder(folder)
    _check_counts(sources, allow_partial)
    return {
        name: _read_split(dataset, name, sources[name], against)
        for name in CIFAR_COUNTS
    }


def _read_split(
    dataset: str, name: str, source: Any, against: Cifar | None
) -> dict[str, np.ndarray]:
    """Check each record of a split and return how many each class has."""
    counts = {kind: np.zeros(n, np.int64) for kind, n in LABELS[dataset].items()}
    seen = np.zeros(len(source), bool)
    bar = tqdm(range(len(source)), f"verify {name}", unit=" images", disable=None)
    for row in bar:
        try:
            record = _record(source[row], LABELS[dataset])
        except Exception as error:  # decoders raise whatever they like
            raise UserError(
                f"{name} record {row} cannot be read: {first_line(error)}."
            ) from error
        index = _check_record(dataset, name, record, seen)
        for kind in counts:
            counts[kind][record[kind]] += 1
        if against is not None:
            _compare(record, against, name, index)
    return counts


def _record(payload: bytes, kinds: Mapping[str, int]) -> dict[str, Any]:
    feature = parse_example(payload)
    return {
        "id": feature["id"].bytes_list.value[0],
        "image": decode_image(feature["image"].bytes_list.value[0], (32, 32, 3)),
        **{kind: feature[kind].int64_list.value[0] for kind in kinds},
    }


def _check_record(dataset: str, name: str, record: dict, seen: np.ndarray) -> int:
    """Check the fields of a record and return its place in the official order."""
    identity = record["id"].decode("ascii", "replace")
    index = -1
    with contextlib.suppress(ValueError):
        index = int(identity.removeprefix(f"{name}_"))
    if not 0 <= index < len(seen) or seen[index]:
        raise UserError(f"a record of {name} has the unexpected id {identity!r:.90}.")
    seen[index] = True
    for kind, classes in LABELS[dataset].items():
        if not 0 <= record[kind] < classes:
            raise UserError(f"{identity} has the {kind} {record[kind]}.")
    return index


def _compare(record: dict, cifar: Cifar, name: str, index: int) -> None:
    split = cifar.splits[name]
    same = np.array_equal(record["image"], split.images[index]) and all(
        record[kind] == labels[index] for kind, labels in split.labels.items()
    )
    if not same:
        raise UserError(f"record {index} of {name} reads differently than written.")
