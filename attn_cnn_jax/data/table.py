"""The datasets by name: the one place that knows their shapes, loaders and crops."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from attn_cnn_jax.data import prepared
from attn_cnn_jax.data.dataset import (
    Dataset,
    Split,
    channel_statistics,
    hold_out,
    refuse_unsound,
)

CIFAR_COUNTS = {"train": 50_000, "test": 10_000}


@dataclasses.dataclass(frozen=True)
class DatasetEntry:
    """A dataset that a config can name, and what is known of it before it is loaded.

    `load` takes `config.dataset.data_dir` ("" if not given) and returns a `Dataset` of
    images [N, *image_shape] and `num_classes` classes. `crop_padding` (pixels of zeros
    around an image before the random crop) and `flip` are the augmentation that an
    option of a config sets. `bundled` data come with the requirements.
    """

    image_shape: tuple[int, int, int]  # height, width, channels
    num_classes: int
    load: Callable[[str], Dataset]
    crop_padding: int = 0
    flip: bool = False
    bundled: bool = False


def _load_digits(data_dir: str, *, enlarge: bool = False) -> Dataset:
    """Return the 1,797 digits of 8 x 8 pixels, 1,437 to train on and 360 to test.

    With `enlarge` each pixel is a block of 4 x 4, in three equal channels: 32 x 32 x 3.
    Nothing is read from `data_dir`.
    """
    del data_dir
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
    mean, std = channel_statistics(train.images)
    return Dataset(tuple("0123456789"), mean, std, train, test)


def _cifar(name: str, num_classes: int) -> DatasetEntry:
    """Return the entry of a CIFAR, augmented as published.

    Mean and standard deviation are those published for CIFAR-10, for both.
    """
    load = functools.partial(
        prepared.load,
        name,
        statistics=((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
        counts=CIFAR_COUNTS,
        remedy="Import a local copy with python -m attn_cnn_jax.prepare_data "
        "--source=PATH, fetch it with --download",
    )
    return DatasetEntry((32, 32, 3), num_classes, load, crop_padding=4, flip=True)


# A name that is not here is that of a TFDS image-classification dataset.
DATASETS: dict[str, DatasetEntry] = {
    "cifar10": _cifar("cifar10", 10),
    "cifar100": _cifar("cifar100", 100),
    "digits": DatasetEntry(
        (32, 32, 3), 10, functools.partial(_load_digits, enlarge=True), bundled=True
    ),
    "digits_8x8": DatasetEntry(
        (8, 8, 1), 10, _load_digits, crop_padding=1, bundled=True
    ),
}


def load(dataset: ConfigDict) -> Dataset:
    """Return the dataset that `config.dataset` names, read into memory and checked.

    Raises a `UserError` that says what is wrong with it, or how to get it.
    """
    name, data_dir = dataset.name, dataset.data_dir
    entry = DATASETS.get(name)
    loaded = entry.load(data_dir) if entry else prepared.load(name, data_dir)
    declared = entry or loaded
    refuse_unsound(loaded, name, declared.image_shape, declared.num_classes)
    fraction = dataset.validation_fraction
    return hold_out(loaded, fraction) if fraction else loaded
