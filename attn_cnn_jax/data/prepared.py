"""Datasets that TFDS has prepared, read without TensorFlow."""

import functools
import io
import pathlib
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
from tqdm import tqdm

from attn_cnn_jax.data import decoded, folders, verified
from attn_cnn_jax.data.dataset import Dataset, Split, channel_statistics
from attn_cnn_jax.errors import UserError, first_line

_MODES = {1: "L", 3: "RGB"}  # what Pillow calls images of so many channels
_FORMATS = ("PNG", "JPEG", "BMP")


def load(
    name: str,
    data_dir: str,
    *,
    statistics: tuple[tuple[float, ...], tuple[float, ...]] | None = None,
    counts: Mapping[str, int] | None = None,
    remedy: str = "A dataset of your own needs --variant=FILE.py; for others, have "
    "TFDS prepare it with file_format='array_record'",
) -> Dataset:
    """Return an image-classification dataset that TFDS prepared, of one image size.

    `statistics` are the mean and std of each channel, by default those of the training
    images; `counts` are the records that each split should have, if known. A warning
    says that the files were never verified, or that records were left out on purpose.
    Raises a `UserError` where the files are not those that were verified, cannot be
    read, or are of another kind; and one with the `remedy` where there are none.
    """
    folder = folders.find(name, data_dir, remedy)
    verification = verified.check(folder)
    files = verification.files if verification else verified.digests(folder)
    judge = functools.partial(
        _judge, f"{name} in {folder}", folder, verification, counts or {}
    )
    kept = decoded.read(folder, files)
    if kept is not None:
        judge({split: len(content) for split, content in kept.splits.items()})
    else:
        kept = _decode(name, folder, judge)
        decoded.write(folder, files, kept)
    train, test = kept.splits["train"], kept.splits[_test_name(kept.splits)]
    mean, std = statistics or channel_statistics(train.images)
    return Dataset(kept.class_names, mean, std, train, test)


def _decode(
    name: str, folder: pathlib.Path, judge: Callable[[dict[str, int]], None]
) -> decoded.Decoded:
    """Return the splits to train and test on, once `judge` accepts their sizes."""
    info, sources = open_folder(folder)
    fields = _record_fields(name, info)
    wanted = ("train", _test_name(sources))
    if not set(wanted) <= sources.keys():
        raise UserError(
            f"dataset {name} has the splits {', '.join(sources) or '(none)'}; training "
            "needs train and one of test and validation."
        )
    judge({split: len(sources[split]) for split in wanted})
    splits = {
        split: materialise(
            sources[split], fields.decode, fields.shape, f"reading {name}"
        )
        for split in wanted
    }
    return decoded.Decoded(fields.class_names, splits)


def _test_name(splits: Mapping[str, Any]) -> str:
    return "test" if "test" in splits else "validation"


def open_folder(folder: pathlib.Path) -> tuple[Any, dict[str, Any]]:
    """Return TFDS's info of a prepared folder, and the records of each split.

    Nothing in the folder is run, and each of its files has the records it should; else
    a `UserError` says what is wrong. A record is a serialised `tf.train.Example`; they
    are sequences of bytes, of which any may turn out to be damaged.
    """
    import tensorflow_datasets as tfds

    folders.refuse_what_is_not_plain(folder)
    try:
        builder: Any = tfds.builder_from_directory(folder)
        splits = builder.info.splits
        for split in splits.values():
            _check_shards(split)
        raw = tfds.decode.DeserializeMethod.RAW_BYTES
        return builder.info, {
            split: builder.as_data_source(split, deserialize_method=raw)
            for split in splits
        }
    except UserError:
        raise
    except Exception as error:  # TFDS and array_record raise whatever they like
        raise UserError(f"{folder} cannot be read: {first_line(error)}") from error


def _check_shards(split: Any) -> None:
    from array_record.python.array_record_module import ArrayRecordReader

    for path, expected in zip(split.filepaths, split.shard_lengths, strict=True):
        if not path.is_file():
            raise UserError(f"{path} is missing. Prepare the dataset again.")
        reader = ArrayRecordReader(str(path))
        found = reader.num_records()
        reader.close()
        if found != expected:
            raise UserError(
                f"{path} has {found:,} records, not {expected:,}. Prepare the dataset "
                "again."
            )


def _judge(
    name: str,
    folder: pathlib.Path,
    verification: verified.Verification | None,
    counts: Mapping[str, int],
    found: Mapping[str, int],
) -> None:
    """Refuse, or warn of, what is less than a whole dataset that was verified."""
    few = ", ".join(
        f"{found.get(split, 0):,} of {count:,} {split} records"
        for split, count in counts.items()
        if found.get(split, 0) != count
    )
    check = "python -m attn_cnn_jax.prepare_data"
    check += f" --source={folder} --data_dir={folder.parent.parent}"
    line = ""
    if few and not (verification and verification.partial):
        raise UserError(
            f"{name} is not whole: {few}. Prepare it again from a complete copy; if "
            f"records are left out on purpose, say so once: {check} --allow_partial"
        )
    if few:
        line = f"{name} is not whole, as it was prepared on purpose: {few}."
    elif verification is None:
        line = f"{name} was never verified" + (
            f"; to do it: {check}" if counts else "."
        )
    if line and jax.process_index() == 0:
        warnings.warn(line, stacklevel=4)


class Record(NamedTuple):
    """An image [H, W, C], its label and, where records have names, its name."""

    image: np.ndarray
    label: int
    id: str | None = None


class RecordFields(NamedTuple):
    """The fields of a record that hold its image, its label and, if any, its name.

    The image has to be of `shape`, the label the place of one of `class_names`.
    """

    image: str
    label: str
    id: str | None
    shape: tuple[int, int, int]
    class_names: tuple[str, ...]

    def decode(self, payload: bytes) -> Record:
        """Return the record of a serialised `tf.train.Example`."""
        feature = parse_example(payload)
        label = feature[self.label].int64_list.value[0]
        if not 0 <= label < len(self.class_names):
            raise ValueError(f"label {label} of {len(self.class_names)} classes")
        image = decode_image(feature[self.image].bytes_list.value[0], self.shape)
        if self.id is None:
            return Record(image, label)
        text = feature[self.id].bytes_list.value[0].decode(errors="replace")
        return Record(image, label, text)


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

    image, label = only(tfds.features.Image), only(tfds.features.ClassLabel)
    shape, dtype = tuple(features[image].shape), features[image].np_dtype
    if None in shape:
        raise UserError(f"the images of {name} differ in size; training needs one.")
    if dtype != np.uint8 or len(shape) != 3 or shape[-1] not in _MODES:
        raise UserError(
            f"the images of {name} are {np.dtype(dtype)} {list(shape)}; training needs "
            "uint8 [height, width, 1 or 3]."
        )
    if not features[label].num_classes:
        raise UserError(f"dataset {name} does not say how many classes it has.")
    has_id = "id" in features and isinstance(features["id"], tfds.features.Text)
    class_names = tuple(features[label].names)
    return RecordFields(image, label, "id" if has_id else None, shape, class_names)


def parse_example(payload: bytes) -> Any:
    """Return the features of a serialised `tf.train.Example` by name."""
    from tensorflow_datasets.proto import tf_example_pb2

    example = vars(tf_example_pb2)["Example"]  # made at run time: no checker knows it
    return example.FromString(payload).features.feature


def decode_image(data: bytes, shape: tuple[int, int, int]) -> np.ndarray:
    """Return the uint8 image of `shape` (height, width, channels) in a PNG or JPEG.

    Raises a `ValueError` for another size, before memory is taken for the pixels.
    """
    from PIL import Image

    height, width, channels = shape
    with Image.open(io.BytesIO(data), formats=_FORMATS) as file:
        if file.size != (width, height):
            raise ValueError(
                f"an image of {file.height} x {file.width} pixels, not {height} x "
                f"{width}"
            )
        if file.mode.startswith(("I", "F")):
            raise ValueError("an image of more than 8 bits a channel")
        mode = _MODES[channels]
        image = file if file.mode == mode else file.convert(mode)
        return np.asarray(image).reshape(shape)


def materialise(
    source: Any,
    decode: Callable[[bytes], Record],
    shape: tuple[int, int, int],
    title: str,
) -> Split:
    """Decode every record once; raise a `UserError` that names a damaged one."""
    count = len(source)
    try:
        images = np.empty((count, *shape), np.uint8)
    except (MemoryError, ValueError) as error:
        raise UserError(
            f"{count:,} images of {list(shape)} do not fit in memory."
        ) from error
    labels = np.empty((count,), np.int32)
    ids: list[str | None] = [None] * count

    def read(row: int) -> None:
        try:
            images[row], labels[row], ids[row] = decode(source[row])
        except Exception as error:  # protobuf and Pillow raise whatever they like
            raise UserError(
                f"record {row} of the dataset is damaged ({first_line(error)}); "
                "remove its folder and prepare it again with python -m "
                "attn_cnn_jax.prepare_data."
            ) from error

    with ThreadPoolExecutor() as pool:  # PNG decoding releases the interpreter lock
        hidden = None if jax.process_index() == 0 else True  # None: off a terminal
        progress = tqdm(total=count, desc=title, unit="images", disable=hidden, delay=2)
        with progress:
            for _ in pool.map(read, range(count), chunksize=256):
                progress.update()
    return Split(images, labels, None if None in ids else np.array(ids))
