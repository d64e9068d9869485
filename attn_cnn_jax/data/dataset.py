"""A dataset in memory, and the check of one that was loaded."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from attn_cnn_jax.errors import UserError

_HOLD_OUT_SEED = 20  # of the rows held out for validation; not the run's seed


@dataclasses.dataclass(frozen=True)
class Split:
    """Images uint8 [N, H, W, C] and labels int32 [N], in the dataset's order.

    `ids` are the names of the records [N] where the dataset has any: CIFAR's say the
    official place, which is not the place here ("test_00016").
    """

    images: np.ndarray
    labels: np.ndarray
    ids: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: np.ndarray) -> "Split":
        """Return the images, labels and names of the given rows."""
        ids = None if self.ids is None else self.ids[rows]
        return Split(self.images[rows], self.labels[rows], ids)


@dataclasses.dataclass(frozen=True)
class Dataset:
    """The splits of a dataset, the names of its classes, the statistics of its pixels.

    `mean` and `std` are per channel, of pixels in [0, 1]. `validation` is what
    `config.dataset.validation_fraction` takes from the training images, else None.
    """

    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    train: Split
    test: Split
    validation: Split | None = None

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """The height, width and channels of an image."""
        height, width, channels = self.train.images.shape[1:]
        return height, width, channels


def channel_statistics(
    images: np.ndarray,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel of uint8 images [N, H, W, C].

    Both are of pixels scaled to [0, 1]; a constant channel has a deviation of 1.
    """
    found = _described(images)
    if not found.startswith("uint8 [") or images.ndim != 4:
        raise UserError(f"images are {found}, not uint8 [N, H, W, C].")
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


def hold_out(dataset: Dataset, fraction: float) -> Dataset:
    """Return the dataset with that fraction of its training images for validation."""
    count = len(dataset.train)
    order = np.random.Generator(np.random.Philox(_HOLD_OUT_SEED)).permutation(count)
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


def refuse_unsound(
    dataset: Any, name: str, image_shape: tuple[int, int, int], num_classes: int
) -> None:
    """Raise a `UserError` unless the loaded `dataset` is a whole one, as declared.

    Images have to be uint8 [N, *image_shape] and labels int32 [N] in 0, ...,
    num_classes - 1; mean and std finite numbers for each channel, std above 0.
    """
    complaint = next(_complaints(dataset, image_shape, num_classes), None)
    if complaint is not None:
        raise UserError(f"dataset {name}: {complaint}.")


def _complaints(
    dataset: Any, image_shape: tuple[int, int, int], num_classes: int
) -> Iterator[str]:
    if not isinstance(dataset, Dataset):
        yield f"its loader returned {_described(dataset)}, not a Dataset"
    names = len(dataset.class_names)
    if names != num_classes:
        yield f"it names {names} classes, not {num_classes}"
    if dataset.validation is not None:
        yield "its loader held out validation images, as validation_fraction does"
    for kind, split in (("train", dataset.train), ("test", dataset.test)):
        for complaint in _complaints_of_split(split, image_shape, num_classes):
            yield f"{kind} {complaint}"
    for kind, low in (("mean", -np.inf), ("std", 0)):
        values = np.asarray(getattr(dataset, kind))
        fits = values.shape == image_shape[-1:] and np.isfinite(values).all()
        if not fits or (values <= low).any():
            wanted = f"{image_shape[-1]} finite numbers{' above 0' * (low == 0)}"
            yield f"{kind} is {values.tolist()}, not {wanted}"


def _complaints_of_split(
    split: Any, image_shape: tuple[int, int, int], num_classes: int
) -> Iterator[str]:
    if not isinstance(split, Split):
        yield f"is {_described(split)}, not a Split"
    images, labels = split.images, split.labels
    found, wanted = _described(images), ", ".join(map(str, image_shape))
    if not found.startswith("uint8 [") or images.shape[1:] != image_shape:
        yield f"images are {found}, not uint8 [N, {wanted}]"
    if not len(images):
        yield "has no images"
    found, wanted = _described(labels), f"int32 [{len(images)}]"
    if found != wanted:
        yield f"labels are {found}, not {wanted}"
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if wrong.size:
        label = f"the label {labels[wrong[0]]} of {num_classes} classes"
        yield f"image {wrong[0]} has {label}"
    if split.ids is not None and np.shape(split.ids) != labels.shape:
        yield f"ids are {_described(split.ids)}, not a name for each image"


def _described(value: Any) -> str:
    """Return type and shape of an array as "uint8 [100, 8, 8, 1]"."""
    if not isinstance(value, np.ndarray):
        return f"a value of type {type(value).__name__}"
    return f"{value.dtype} {list(value.shape)}"
