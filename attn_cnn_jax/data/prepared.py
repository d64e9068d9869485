"""Datasets that TFDS has prepared, read without TensorFlow."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
from tqdm import tqdm

from attn_cnn_jax.data.dataset import Dataset, Split, channel_statistics
from attn_cnn_jax.errors import UserError

# As published for CIFAR-10 (spec of the original: also used for CIFAR-100), in [0, 1].
_CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
_CIFAR_STD = (0.2023, 0.1994, 0.2010)
_CIFAR = ("cifar10", "cifar100")


def load(name: str, data_dir: str) -> Dataset:
    """A prepared TFDS image-classification dataset of one image size."""
    import tensorflow_datasets as tfds
    from google.protobuf import json_format

    try:
        builder: Any = tfds.builder(name, data_dir=data_dir or None)
        splits = builder.info.splits
        features: Any = builder.info.features
        if not splits:
            raise UserError(_missing(name, builder.data_dir))
        keys = _keys(name, builder.info)
        test_name = "test" if "test" in splits else "validation"
        if "train" not in splits or test_name not in splits:
            raise UserError(
                f"dataset {name} has the splits {', '.join(splits)}; training needs "
                "train and one of test and validation."
            )
        sources = [builder.as_data_source(split) for split in ("train", test_name)]
    except tfds.core.DatasetNotFoundError as error:
        raise UserError(f"TFDS knows no dataset {name!r}.") from error
    except AssertionError as error:
        raise UserError(_missing(name, builder.data_dir)) from error
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
    train, test = (
        materialise(source, keys, features[keys.label].num_classes, f"reading {name}")
        for source in sources
    )
    if name in _CIFAR:
        mean, std = _CIFAR_MEAN, _CIFAR_STD
    else:
        mean, std = channel_statistics(train.images)
    return Dataset(tuple(features[keys.label].names), mean, std, train, test)


def _missing(name: str, data_dir: Any) -> str:
    if name in _CIFAR:
        how = (
            "Import a local copy with python -m attn_cnn_jax.prepare_data "
            "--source=PATH, fetch it with --download"
        )
    else:
        how = "Have TFDS prepare it with file_format='array_record'"
    return (
        f"{name} is not prepared in {data_dir}. {how}, name the folder with "
        "--data_dir, or train on data that ships: --config=...:digits."
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class Keys(NamedTuple):
    """Where a record has its image, its label and, if it has one, its name."""

    image: str
    label: str
    id: str | None = None


def _keys(name: str, info: Any) -> Keys:
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
    return Keys(image_key, label_key, "id" if has_id else None)


def materialise(source: Any, keys: Keys, num_classes: int, title: str) -> Split:
    """Decode every record once; raises a `UserError` that names a damaged one."""
    count = len(source)
    first = _record(source, 0)[keys.image]
    images = np.empty((count, *first.shape), np.uint8)
    labels = np.empty((count,), np.int32)
    ids = [""] * count

    def read(row: int) -> None:
        record = _record(source, row)
        image, label = record[keys.image], int(record[keys.label])
        if image.shape != first.shape or image.dtype != np.uint8:
            raise UserError(
                f"record {row} is {image.dtype} {image.shape}, not uint8 {first.shape}."
            )
        if not 0 <= label < num_classes:
            raise UserError(f"record {row} has label {label} of {num_classes} classes.")
        images[row], labels[row] = image, label
        if keys.id:
            ids[row] = _text(record[keys.id])

    with ThreadPoolExecutor() as pool:  # PNG decoding releases the interpreter lock
        hidden = None if jax.process_index() == 0 else True  # None: off a terminal
        progress = tqdm(total=count, desc=title, unit="images", disable=hidden, delay=2)
        with progress:
            for _ in pool.map(read, range(count), chunksize=256):
                progress.update()
    return Split(images, labels, np.array(ids) if keys.id else None)


def _text(value: Any) -> str:
    """What TFDS gives as bytes; as str in its mocked data."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _record(source: Any, row: int) -> dict[str, Any]:
    try:
        return source[row]
    except Exception as error:
        raise UserError(
            f"record {row} of the dataset is damaged ({_first_line(error)}); remove "
            "its folder and prepare it again with python -m attn_cnn_jax.prepare_data."
        ) from error
