"""A dataset in memory."""

import dataclasses

import numpy as np


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
        """The images, labels and names of the given rows."""
        ids = None if self.ids is None else self.ids[rows]
        return Split(self.images[rows], self.labels[rows], ids)


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


def channel_statistics(
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
