"""Read every record of a prepared data set and check that it is whole."""

import contextlib
import hashlib
import json
import os
import pathlib
from collections.abc import Iterator

import numpy as np
import tensorflow_datasets as tfds
from absl import logging
from tensorflow_datasets.image_classification import cifar as official
from tqdm import tqdm

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.prepare_data.cifar import COUNTS, LABELS, Cifar, check_count

VERIFIED = "verified.json"  # beside the records: the sha256 of each file, once verified
CHUNK = 1_000  # records that are read at once

Counts = dict[str, dict[str, np.ndarray]]  # split -> kind of label -> records per class


def builder_class(dataset: str) -> type[tfds.core.GeneratorBasedBuilder]:
    """Return the official builder of cifar10 or cifar100."""
    return {"cifar10": official.Cifar10, "cifar100": official.Cifar100}[dataset]


def default_data_dir() -> pathlib.Path:
    """Return where TFDS looks by itself: $TFDS_DATA_DIR or ~/tensorflow_datasets."""
    default = os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")
    return pathlib.Path(default).expanduser()


def prepared_dir(dataset: str, data_dir: pathlib.Path) -> pathlib.Path:
    """Return the folder of a data set's records under `data_dir`."""
    return data_dir / dataset / str(builder_class(dataset).VERSION)


def record_id(split: str, index: int) -> str:
    """Return the id of a record by its place in the official order: train_00000, ..."""
    return f"{split}_{index:05d}"


def is_prepared(dataset: str, data_dir: pathlib.Path, *, allow_partial: bool) -> bool:
    """Return True if `data_dir` holds the whole data set already.

    A data set that this command has verified is known by its files' digests; one that
    TFDS wrote is read through. Raises a `UserError` if it is damaged or incomplete.
    """
    target = prepared_dir(dataset, data_dir)
    if not target.exists():
        return False
    if any(target.glob("*.tfrecord-*")):
        raise UserError(
            f"{target} holds TFRecords, which only TensorFlow reads at random.\nRun "
            f"this with --source={target} and another --data_dir to convert them."
        )
    try:
        signed = json.loads((target / VERIFIED).read_text())
    except (OSError, ValueError):
        signed = None
    try:
        if signed is None:
            read_back(dataset, data_dir, allow_partial=allow_partial)
        elif signed != _digests(target):
            raise UserError("its files are not those that were verified.")
        else:
            _check_counts(dataset, data_dir, allow_partial)
    except UserError as error:
        raise UserError(
            f"{target} is there but cannot be used: {error}\nRemove it, or choose "
            "another --data_dir, and run this again."
        ) from error
    return True


def sign(folder: pathlib.Path) -> None:
    """Record the digests of verified files, by which `is_prepared` knows them."""
    (folder / VERIFIED).write_text(json.dumps(_digests(folder), indent=2) + "\n")


def _digests(folder: pathlib.Path) -> dict[str, str]:
    digests = {}
    for path in sorted(folder.iterdir()):
        if path.name != VERIFIED:
            with path.open("rb") as file:
                digests[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


def _check_counts(dataset: str, data_dir: pathlib.Path, allow_partial: bool) -> None:
    splits = tfds.builder(dataset, data_dir=data_dir).info.splits
    for name, count in COUNTS.items():
        check_count(splits[name].num_examples, count, name, allow_partial)


def read_back(
    dataset: str,
    data_dir: pathlib.Path,
    *,
    allow_partial: bool,
    against: Cifar | None = None,
) -> Counts:
    """Decode every record once and return how many each class has.

    Shapes, labels, ids and counts are checked, and with `against` every pixel and
    label. Raises a `UserError` at the first thing that is wrong.
    """
    counts: Counts = {}
    with _without_warnings():
        for name, official_count in COUNTS.items():
            try:
                builder = tfds.builder(dataset, data_dir=data_dir)
                source = builder.as_data_source(name)  # pyright: ignore[reportCallIssue]
            except Exception as error:  # what a damaged folder raises is many things
                raise UserError(f"{name} cannot be opened: {error}.") from error
            check_count(len(source), official_count, name, allow_partial)
            counts[name] = _read_split(dataset, name, source, against)
    return counts


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Keep TFDS from recommending OpenCV, which is not worth its size here."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


def _read_split(dataset: str, name: str, source, against: Cifar | None):
    """Check each record of a split and return how many each class has."""
    counts = {kind: np.zeros(n, np.int64) for kind, n in LABELS[dataset].items()}
    seen = np.zeros(len(source), bool)
    with tqdm(
        total=len(source), desc=f"verify {name}", unit=" images", disable=None
    ) as bar:
        for start in range(0, len(source), CHUNK):
            keys = list(range(start, min(start + CHUNK, len(source))))
            try:
                records = source.__getitems__(keys)
            except Exception as error:  # decoders raise whatever they like
                raise UserError(
                    f"{name} records from {start} on cannot be read: {error}."
                ) from error
            for record in records:
                index = _check_record(dataset, name, record, seen)
                for kind in counts:
                    counts[kind][record[kind]] += 1
                if against is not None:
                    _compare(record, against, name, index)
            bar.update(len(records))
    return counts


def _check_record(dataset: str, name: str, record: dict, seen: np.ndarray) -> int:
    """Check the fields of a record and return its place in the official order."""
    identity = record["id"].decode("ascii", "replace")
    index = -1
    with contextlib.suppress(ValueError):
        index = int(identity.removeprefix(f"{name}_"))
    if not 0 <= index < len(seen) or seen[index]:
        raise UserError(f"a record of {name} has the unexpected id {identity!r}.")
    seen[index] = True
    image = record["image"]
    if image.shape != (32, 32, 3) or image.dtype != np.uint8:
        raise UserError(f"{identity} is {image.dtype} {list(image.shape)}, no image.")
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
