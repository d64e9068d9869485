"""Datasets that TFDS has prepared, read without TensorFlow."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
from tqdm import tqdm

from attn_cnn_jax.data.dataset import Dataset, Split, channel_statistics
from attn_cnn_jax.errors import UserError


def load(
    name: str,
    data_dir: str,
    *,
    statistics: tuple[tuple[float, ...], tuple[float, ...]] | None = None,
    remedy: str = "Have TFDS prepare it with file_format='array_record'",
) -> Dataset:
    """Return an image-classification dataset that TFDS prepared, of one image size.

    `statistics` are the mean and std of each channel, by default those of the training
    images. Raises a `UserError` where the dataset is damaged, of another kind, or not
    prepared, which names the `remedy`.
    """
    import tensorflow_datasets as tfds
    from google.protobuf import json_format

    try:
        builder: Any = tfds.builder(name, data_dir=data_dir or None)
        splits = builder.info.splits
        features: Any = builder.info.features
        if not splits:
            raise UserError(_missing(name, builder.data_dir, remedy))
        fields = _record_fields(name, builder.info)
        test_name = "test" if "test" in splits else "validation"
        if "train" not in splits or test_name not in splits:
            raise UserError(
                f"dataset {name} has the splits {', '.join(splits)}; training needs "
                "train and one of test and validation."
            )
        sources = [builder.as_data_source(split) for split in ("train", test_name)]
    except tfds.core.DatasetNotFoundError as error:
        raise UserError(
            f"TFDS knows no dataset {name!r}; --variant=FILE.py adds one of your own."
        ) from error
    except AssertionError as error:
        raise UserError(_missing(name, builder.data_dir, remedy)) from error
    except NotImplementedError as error:
        raise UserError(
            f"{name} in {builder.data_dir} is stored as TFRecord, which needs "
            "TensorFlow; convert it with python -m attn_cnn_jax.prepare_data "
            f"--source={builder.data_dir} --data_dir=NEW_DIR."
        ) from error
    except (ImportError, OSError, ValueError, json_format.Error) as error:
        raise UserError(f"dataset {name} cannot be read: {_first_line(error)}") from (
            error
        )
    label = features[fields.label]
    train, test = (
        materialise(source, fields, label.num_classes, f"reading {name}")
        for source in sources
    )
    mean, std = statistics or channel_statistics(train.images)
    return Dataset(tuple(label.names), mean, std, train, test)


def _missing(name: str, data_dir: Any, remedy: str) -> str:
    return (
        f"{name} is not prepared in {data_dir}. {remedy}, name the folder with "
        "--data_dir, or train on data that ships: --config=...:digits."
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class RecordFields(NamedTuple):
    """The fields of a record that hold its image, its label and, if any, its name."""

    image: str
    label: str
    id: str | None = None


def _record_fields(name: str, info: Any) -> RecordFields:
    import tensorflow_datasets as tfds

    features = info.features

    def only(kind: Any) -> str:
        keys = [key for key, feature in features.items() if isinstance(feature, kind)]
        supervised = set(info.supervised_keys or ()) & set(keys)
        if len(supervised) == 1:
            return supervised.pop()
        if len(keys) != 1:
            raise UserError(
                f"dataset {name} is not image classification with one image and one "
                f"label: its features are {', '.join(features)}."
            )
        return keys[0]

    image_key, label_key = only(tfds.features.Image), only(tfds.features.ClassLabel)
    if None in features[image_key].shape:
        raise UserError(f"the images of {name} differ in size; training needs one.")
    has_id = "id" in features and isinstance(features["id"], tfds.features.Text)
    return RecordFields(image_key, label_key, "id" if has_id else None)


def materialise(
    source: Any, fields: RecordFields, num_classes: int, title: str
) -> Split:
    """Decode every record once; raise a `UserError` that names a damaged one."""
    count = len(source)
    first = _record(source, 0)[fields.image]
    images = np.empty((count, *first.shape), np.uint8)
    labels = np.empty((count,), np.int32)
    ids = [""] * count

    def read(row: int) -> None:
        record = _record(source, row)
        image, label = record[fields.image], int(record[fields.label])
        if image.shape != first.shape or image.dtype != np.uint8:
            raise UserError(
                f"record {row} is {image.dtype} {image.shape}, not uint8 {first.shape}."
            )
        if not 0 <= label < num_classes:
            raise UserError(f"record {row} has label {label} of {num_classes} classes.")
        images[row], labels[row] = image, label
        if fields.id:
            ids[row] = _text(record[fields.id])

    with ThreadPoolExecutor() as pool:  # PNG decoding releases the interpreter lock
        hidden = None if jax.process_index() == 0 else True  # None: off a terminal
        progress = tqdm(total=count, desc=title, unit="images", disable=hidden, delay=2)
        with progress:
            for _ in pool.map(read, range(count), chunksize=256):
                progress.update()
    return Split(images, labels, np.array(ids) if fields.id else None)


def _text(value: Any) -> str:
    """Return a text that TFDS gives as bytes, or as str in its mocked data."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _record(source: Any, row: int) -> dict[str, Any]:
    try:
        return source[row]
    except Exception as error:
        raise UserError(
            f"record {row} of the dataset is damaged ({_first_line(error)}); remove "
            "its folder and prepare it again with python -m attn_cnn_jax.prepare_data."
        ) from error
