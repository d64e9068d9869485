"""Images in memory, and batches of them as a pure function of (seed, step)."""

import dataclasses
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from attn_cnn_jax.data import prepared
from attn_cnn_jax.data.batches import augment, epoch_rows, eval_rows, normalize
from attn_cnn_jax.data.dataset import Dataset, Split, channel_statistics
from attn_cnn_jax.errors import UserError

__all__ = [
    "SHAPES",
    "Dataset",
    "Split",
    "augment",
    "epoch_rows",
    "eval_rows",
    "load",
    "normalize",
]

# Image shape and number of classes, for what is told of a model without its data.
SHAPES = {
    "cifar10": ((32, 32, 3), 10),
    "cifar100": ((32, 32, 3), 100),
    "digits": ((32, 32, 3), 10),
    "digits_8x8": ((8, 8, 1), 10),
}
_SPLIT_SEED = 20  # of what is held out for validation; not the run's seed


def load(dataset: ConfigDict) -> Dataset:
    """The dataset that `config.dataset` names, read into memory and checked."""
    if dataset.name in ("digits", "digits_8x8"):
        loaded = _load_digits(enlarge=dataset.name == "digits")
    else:
        loaded = prepared.load(dataset.name, dataset.data_dir)
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
    mean, std = channel_statistics(train.images)
    return Dataset(tuple("0123456789"), mean, std, train, test)


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
