"""Attention of every layer of a run: the arrays that the layers sow.

maps = attention_maps("runs/demo", images)  # uint8 [B, H, W, C]
maps.probs[0]  # those of the first layer
"""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import UInt8
from tqdm import tqdm

from attn_cnn_jax.analysis.images import ChosenImages
from attn_cnn_jax.covered_offsets import tokens_to_grid
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.run import Run

_MAX_BYTES = 256 * 2**20  # that the maps of a batch take, unless its size is given


@dataclasses.dataclass(frozen=True)
class AttentionMaps:
    """The attention of every layer of one checkpoint, for some images.

    `kind` "grid" (attention between the pixels or patches of a grid): `probs` are
    [B or 1, N, Hq, Wq, Hk, Wk], query pixel, then key pixel, each (row, column); a
    leading 1 says that they do not depend on the image. `class_mass`, [B, N, Hq, Wq],
    is what each query gives to a ViT's class token (else None); the token is dropped
    from `probs`, whose rows then sum to 1 less it.

    `kind` "taps" (SAN): `probs` are [B, H, W, T, G], the weight of tap t of a k x k
    window around the pixel (offset (t // k, t % k) - (k - 1) / 2) in G planes.
    """

    kind: str
    layers: tuple[str, ...]  # names, in the order of computation
    probs: tuple[np.ndarray, ...]  # float32, one a layer
    class_mass: tuple[np.ndarray, ...] | None
    images: np.ndarray  # uint8 [B, H, W, C], before normalisation
    names: tuple[str, ...]  # of the images
    run: str
    step: int  # of the checkpoint
    epoch: float
    softmaxed: bool = True  # but of SAN patchwise, whose weights may be negative
    title: str = ""  # that of the run: its name, model and checkpoint


class MapBatches:
    """The maps of many images: an iterable of `AttentionMaps`, one for each batch.

    Every iteration computes them again, so that one batch at a time is in memory.
    `indices` are those of the images in the test set. Without `batch_size` a batch has
    as many images as fit into 256 MiB of maps, but no more than the run's evaluation
    takes at once. `position_only` tells for each layer whether its maps are the same
    for all images.
    """

    def __init__(
        self,
        run: Run,
        images: UInt8[np.ndarray, "B H W C"],
        names: Sequence[str] = (),
        indices: Sequence[int] | None = None,
        batch_size: int | None = None,
    ) -> None:
        _check_images(run, images)
        self.run, self.images = run, images
        numbers = range(1, len(images) + 1)
        self.names = tuple(names or (f"image {n}" for n in numbers))
        self.indices = np.asarray(range(len(images)) if indices is None else indices)
        if not len(self.names) == len(self.indices) == len(images):
            raise UserError("give as many names and indices as there are images.")
        layers = run.layers
        if not layers:
            raise UserError(
                f"{run.name} is a {run.config.model.name}, a network without "
                "attention: it has no maps or heads to show."
            )
        self.layers = tuple(name for name, _ in layers)
        self.position_only = tuple(shape.shape[0] == 1 for _, shape in layers)
        if batch_size is None:
            per_image = sum(4 * shape.size // shape.shape[0] for _, shape in layers)
            fits = max(1, _MAX_BYTES // max(1, per_image))
            batch_size = min(fits, run.config.eval_batch_size)
        if batch_size < 1:
            raise UserError(f"a batch of {batch_size} images is none; take 1 or more.")
        self.batch_size = min(batch_size, len(images))

    def __len__(self) -> int:
        return -(-len(self.images) // self.batch_size)

    def __iter__(self) -> Iterator[AttentionMaps]:
        variables = jax.device_put(self.run.variables)
        arrays: list[np.ndarray] = []
        title = f"attention of {self.run.name}"
        total = len(self.images)
        with tqdm(total=total, desc=title, unit="images", disable=None, delay=2) as bar:
            for start in range(0, total, self.batch_size):
                rows = np.arange(start, min(start + self.batch_size, total))
                if not (arrays and all(self.position_only)):
                    arrays = self._arrays(variables, rows)
                yield self._maps(rows, arrays)
                bar.update(len(rows))

    def _arrays(self, variables: Any, rows: np.ndarray) -> list[np.ndarray]:
        """Return what the layers sow for some of the images.

        The last batch is filled up, so that one compiled program serves all of them.
        """
        padded = np.resize(rows, 1 if all(self.position_only) else self.batch_size)
        sown = self.run.capture(
            variables, self.images[padded], self.indices[padded].astype(np.int32)
        )
        return [
            np.asarray(probs, np.float32)[: 1 if alone else len(rows)]
            for probs, alone in zip(sown, self.position_only, strict=True)
        ]

    def _maps(self, rows: np.ndarray, arrays: list[np.ndarray]) -> AttentionMaps:
        run, class_mass = self.run, []
        if arrays[0].ndim == 4:
            grid = tuple(
                length // run.config.model.patch_size
                for length in self.images.shape[1:3]
            )
            pairs = [tokens_to_grid(array, grid) for array in arrays]
            arrays = [probs for probs, _ in pairs]
            class_mass = [mass for _, mass in pairs if mass is not None]
        return AttentionMaps(
            kind="taps" if arrays[0].ndim == 5 else "grid",
            layers=self.layers,
            probs=tuple(arrays),
            class_mass=tuple(class_mass) or None,
            images=self.images[rows],
            names=tuple(self.names[row] for row in rows),
            run=run.name,
            step=run.step,
            epoch=run.epoch,
            softmaxed=run.config.model.get("attention") != "patchwise",
            title=run.title,
        )


def attention_maps(
    workdir: str | os.PathLike | Run,
    images: UInt8[np.ndarray, "B H W C"],
    *,
    checkpoint: str | int = "last",
    data_dir: str | None = None,
    names: Sequence[str] = (),
    indices: Sequence[int] | None = None,
    batch_size: int | None = None,
) -> AttentionMaps:
    """Return what every layer of a run attends to, for images as its data set has them.

    `workdir` is the run's folder (`checkpoint`: last, best or a step; `data_dir` in
    place of the config's) or a `Run`, to which those two do not apply. `indices` of the
    images in the test set decide what a network draws at evaluation. Raises a
    `UserError` for images of another shape and for a model without attention.
    """
    run = workdir if isinstance(workdir, Run) else Run(workdir, checkpoint, data_dir)
    return _join(MapBatches(run, images, names, indices, batch_size))


def _join(batches: MapBatches) -> AttentionMaps:
    """Return all batches in one, with two copies of no more than a batch."""
    if len(batches) == 1:
        return next(iter(batches))
    total, start = len(batches.images), 0
    whole: list[np.ndarray] = []
    for part in batches:
        arrays = [*part.probs, *(part.class_mass or ())]
        whole = whole or [
            np.empty((1 if alone else total, *array.shape[1:]), np.float32)
            for array, alone in zip(arrays, batches.position_only * 2, strict=False)
        ]
        for room, array in zip(whole, arrays, strict=True):
            first = 0 if len(room) == 1 else start
            room[first : first + len(array)] = array
        start += len(part.images)
    num_layers = len(batches.layers)
    return dataclasses.replace(
        part,
        probs=tuple(whole[:num_layers]),
        class_mass=tuple(whole[num_layers:]) or None,
        images=batches.images,
        names=batches.names,
    )


def _check_images(run: Run, images: np.ndarray) -> None:
    """Raise unless the images are what the run was trained on: one or more, uint8."""
    wanted = run.dataset.image_shape
    if images.shape[1:] != wanted or not len(images) or images.dtype != np.uint8:
        raise UserError(
            f"the images are {images.dtype} {list(images.shape)}; {run.name} takes "
            f"uint8 [B, {', '.join(map(str, wanted))}] with B at least 1."
        )


class LazyMaps(Sequence[AttentionMaps]):
    """The maps of a run at several checkpoints, of which one is in memory at a time."""

    def __init__(self, runs: Sequence[Run], chosen: ChosenImages) -> None:
        self._runs, self._chosen = runs, chosen
        self._kept: tuple[int, AttentionMaps] | None = None

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, index):
        index = range(len(self._runs))[index]
        if self._kept is None or self._kept[0] != index:
            chosen = self._chosen
            maps = attention_maps(
                self._runs[index],
                chosen.images,
                names=chosen.names,
                indices=chosen.indices,
            )
            self._kept = index, maps
        return self._kept[1]

    def __iter__(self) -> Iterator[AttentionMaps]:
        return (self[index] for index in range(len(self)))
