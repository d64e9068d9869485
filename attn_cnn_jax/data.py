"""Images in memory, and batches of them as a pure function of (seed, step)."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt8
from ml_collections import ConfigDict
from tqdm import tqdm

from attn_cnn_jax.errors import UserError

# As published for CIFAR-10 (spec of the original: also used for CIFAR-100), in [0, 1].
_CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
_CIFAR_STD = (0.2023, 0.1994, 0.2010)
_CIFAR = ("cifar10", "cifar100")
_SPLIT_SEED = 20  # of what is held out for validation; not the run's seed


@dataclasses.dataclass(frozen=True)
class Split:
    """Images uint8 [N, H, W, C] and labels int32 [N], in the dataset's order."""

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: np.ndarray) -> "Split":
        """The images and labels of the given rows."""
        return Split(self.images[rows], self.labels[rows])


@dataclasses.dataclass(frozen=True)
class Dataset:
    """The splits of a dataset and what a model has to know of it.

    `mean` and `std` are per channel, of pixels in [0, 1]. `validation` is what
    `validation_fraction` takes from the training images, else None.
    """

    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    train: Split
    test: Split
    validation: Split | None = None

    @property
    def num_classes(self) -> int:
        """Number of labels."""
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width, channels."""
        height, width, channels = self.train.images.shape[1:]
        return height, width, channels


def load(dataset: ConfigDict) -> Dataset:
    """The dataset that `config.dataset` names, read into memory and checked."""
    if dataset.name in ("digits", "digits_8x8"):
        loaded = _load_digits(enlarge=dataset.name == "digits")
    else:
        loaded = _load_tfds(dataset.name, dataset.data_dir)
    if dataset.validation_fraction:
        loaded = _hold_out(loaded, dataset.validation_fraction)
    return loaded


def _load_digits(*, enlarge: bool) -> Dataset:
    """scikit-learn's 8x8 digits, 1,437 / 360; enlarged: 32x32 with 3 channels."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits: Any = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)[..., None]
    if enlarge:
        images = np.tile(images.repeat(4, axis=1).repeat(4, axis=2), (1, 1, 1, 3))
    labels = digits.target.astype(np.int32)
    train, test = train_test_split(
        np.arange(len(labels)), test_size=360, stratify=labels, random_state=0
    )
    everything = Split(images, labels)
    train, test = everything.take(np.sort(train)), everything.take(np.sort(test))
    mean, std = _channel_statistics(train.images)
    return Dataset(tuple("0123456789"), mean, std, train, test)


def _load_tfds(name: str, data_dir: str) -> Dataset:
    """A prepared TFDS image-classification dataset of one image size."""
    import tensorflow_datasets as tfds
    from google.protobuf import json_format

    try:
        builder: Any = tfds.builder(name, data_dir=data_dir or None)
        splits = builder.info.splits
        features: Any = builder.info.features
        if not splits:
            raise UserError(_missing(name, builder.data_dir))
        image_key, label_key = _keys(name, builder.info)
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
    num_classes = features[label_key].num_classes
    train, test = (
        _materialise(source, image_key, label_key, num_classes, f"reading {name}")
        for source in sources
    )
    if name in _CIFAR:
        mean, std = _CIFAR_MEAN, _CIFAR_STD
    else:
        mean, std = _channel_statistics(train.images)
    return Dataset(tuple(features[label_key].names), mean, std, train, test)


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


def _keys(name: str, info: Any) -> tuple[str, str]:
    """The names of the image and of the label in a record."""
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
    return image_key, label_key


def _materialise(
    source: Any, image_key: str, label_key: str, num_classes: int, title: str
) -> Split:
    """Decode every record once; raises a `UserError` that names a damaged one."""
    count = len(source)
    first = _record(source, 0)[image_key]
    images = np.empty((count, *first.shape), np.uint8)
    labels = np.empty((count,), np.int32)

    def read(row: int) -> None:
        record = _record(source, row)
        image, label = record[image_key], int(record[label_key])
        if image.shape != first.shape or image.dtype != np.uint8:
            raise UserError(
                f"record {row} is {image.dtype} {image.shape}, not uint8 {first.shape}."
            )
        if not 0 <= label < num_classes:
            raise UserError(f"record {row} has label {label} of {num_classes} classes.")
        images[row], labels[row] = image, label

    with ThreadPoolExecutor() as pool:  # PNG decoding releases the interpreter lock
        hidden = None if jax.process_index() == 0 else True  # None: off a terminal
        progress = tqdm(total=count, desc=title, unit="images", disable=hidden, delay=2)
        with progress:
            for _ in pool.map(read, range(count), chunksize=256):
                progress.update()
    return Split(images, labels)


def _record(source: Any, row: int) -> dict[str, Any]:
    try:
        return source[row]
    except Exception as error:
        raise UserError(
            f"record {row} of the dataset is damaged ({_first_line(error)}); remove "
            "its folder and prepare it again with python -m attn_cnn_jax.prepare_data."
        ) from error


def _channel_statistics(
    images: np.ndarray,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, of pixels scaled to [0, 1]."""
    counts = np.stack(
        [
            np.bincount(images[..., channel].ravel(), minlength=256)
            for channel in range(images.shape[-1])
        ]
    )
    values = np.arange(256) / 255
    total = counts.sum(axis=1)
    mean = counts @ values / total
    std = np.sqrt(np.maximum(counts @ values**2 / total - mean**2, 0))
    std = np.where(std > 0, std, 1.0)
    return tuple(mean.tolist()), tuple(std.tolist())


def _hold_out(dataset: Dataset, fraction: float) -> Dataset:
    count = len(dataset.train)
    order = np.random.Generator(np.random.Philox(_SPLIT_SEED)).permutation(count)
    held_out = round(count * fraction)
    if not 0 < held_out < count:
        raise UserError(
            f"config.dataset.validation_fraction={fraction} of {count} images leaves "
            "none for one of training and validation."
        )
    return dataclasses.replace(
        dataset,
        train=dataset.train.take(np.sort(order[held_out:])),
        validation=dataset.train.take(np.sort(order[:held_out])),
    )


def epoch_rows(
    seed: int, epoch: int, num_images: int, batch_size: int
) -> Int[np.ndarray, "steps B"]:
    """Rows of every batch of an epoch: a fresh permutation, full batches only."""
    generator = np.random.Generator(np.random.Philox(key=[seed, epoch]))
    steps = num_images // batch_size
    rows = generator.permutation(num_images)[: steps * batch_size]
    return rows.reshape(steps, batch_size).astype(np.int32)


def eval_rows(
    num_images: int, batch_size: int
) -> tuple[Int[np.ndarray, "steps B"], Float[np.ndarray, "steps B"]]:
    """Rows that visit every image once, in order; weight 0 where one is padding."""
    steps = -(-num_images // batch_size)
    rows = np.arange(steps * batch_size, dtype=np.int32)
    weights = (rows < num_images).astype(np.float32)
    rows = np.minimum(rows, num_images - 1)
    return rows.reshape(steps, batch_size), weights.reshape(steps, batch_size)


def augment(
    images: UInt8[Array, "B H W C"], rng: Array, *, crop_padding: int, flip: bool
) -> UInt8[Array, "B H W C"]:
    """Random crop out of the zero-padded image, then a random horizontal flip."""
    crop_rng, flip_rng = jax.random.split(rng)
    batch, height, width, channels = images.shape
    if crop_padding:
        pad = (crop_padding, crop_padding)
        padded = jnp.pad(images, ((0, 0), pad, pad, (0, 0)))
        corners = jax.random.randint(crop_rng, (batch, 2), 0, 2 * crop_padding + 1)

        def crop(image: Array, corner: Array) -> Array:
            start = (corner[0], corner[1], 0)
            return jax.lax.dynamic_slice(image, start, (height, width, channels))

        images = jax.vmap(crop)(padded, corners)
    if flip:
        mirrored = jax.random.bernoulli(flip_rng, 0.5, (batch, 1, 1, 1))
        images = jnp.where(mirrored, images[:, :, ::-1], images)
    return images


def normalize(
    images: UInt8[Array, "B H W C"] | UInt8[np.ndarray, "B H W C"],
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> Float[Array, "B H W C"]:
    """Pixels to [0, 1], minus the mean, over the standard deviation; float32."""
    scaled = jnp.asarray(images, jnp.float32) / 255
    shape = (1, 1, 1, -1)
    return (scaled - jnp.asarray(mean, jnp.float32).reshape(shape)) / jnp.asarray(
        std, jnp.float32
    ).reshape(shape)
