"""The offsets that the heads of a layer cover together, and the largest kernel of them.

A head looks at its best offset: the one of the largest probability in the mean over
images and interior queries. It covers it if that is at least `COVERING_MASS`.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int
from ml_collections import ConfigDict

from attn_cnn_jax import data, models, parallel
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.evaluate import sown_by_layers

COVERING_MASS = 0.5
_NUM_IMAGES = 50  # of the test set, over which a training takes its means


@dataclasses.dataclass(frozen=True)
class Coverage:
    """The distinct offsets that the heads of a layer cover, in reading order.

    `kernel_size`: the largest odd K of which the centred K x K grid of offsets is
    covered, 0 if none.
    """

    layer: str
    covered: tuple[tuple[int, int], ...]
    kernel_size: int

    @classmethod
    def of(cls, layer: str, offsets: Iterable[tuple[int, int]]) -> "Coverage":
        """Return the coverage of a layer whose heads cover these offsets."""
        covered = tuple(sorted(set(offsets)))
        return cls(layer, covered, largest_kernel(covered))


def make_coverage(
    config: ConfigDict, model: nn.Module, dataset: data.Dataset, mesh: Mesh
) -> Callable[[Mapping[str, Any]], list[Coverage]]:
    """Return `variables -> [Coverage of each layer]`, over the first 50 test images.

    What depends on the image is averaged over them on the devices; attention by
    position alone is computed without them. Layers whose grid has no interior are left
    out. Raises a `UserError` where no layer is left.
    """
    first = dataset.test.images[:_NUM_IMAGES]
    images = parallel.replicate(first, mesh)

    def layers(variables: Any, images: Any) -> list[tuple[str, Array]]:
        rows = jnp.arange(len(images))
        images = parallel.split_batch(images, mesh)
        with parallel.matmul_precision(config):
            sown = sown_by_layers(config, model, dataset, variables, images, rows)
        return [(name, _on_grid(probs, config, dataset)) for name, probs in sown]

    names: list[str] = []

    def sizes(variables: Any) -> list[Array]:
        found = layers(variables, first)
        names.extend(name for name, _ in found)
        return [probs for _, probs in found]

    rng, shape = jax.random.key(0), dataset.image_shape
    shapes = jax.eval_shape(lambda: sizes(models.initial_variables(model, rng, shape)))
    interiors = [Interior.of_shape(probs.shape) for probs in shapes]
    if not any(interiors):
        raise UserError(
            "config.log_heads_every_epochs: no layer has a query far enough from the "
            "border; set it to 0."
        )

    def mean_shares(variables: Any, images: Any) -> list[Array | None]:
        return [
            None if interior is None else shares(interior.cut(probs)).mean(axis=0)
            for (_, probs), interior in zip(
                layers(variables, images), interiors, strict=True
            )
        ]

    compiled = parallel.compile_step(mean_shares, mesh)

    def coverage(variables: Mapping[str, Any]) -> list[Coverage]:
        means = jax.device_get(compiled(variables, images))
        found = []
        for name, interior, mean in zip(names, interiors, means, strict=True):
            if interior is None:
                continue
            offsets = interior.covered(np.asarray(mean, np.float64))
            found.append(Coverage.of(name, offsets))
        return found

    return coverage


def largest_kernel(covered: Collection[tuple[int, int]]) -> int:
    """Return the largest odd K whose centred K x K offsets are covered, 0 if none."""
    size = 1
    while all(
        (row, column) in covered
        for row in range(-(size // 2), size // 2 + 1)
        for column in range(-(size // 2), size // 2 + 1)
    ):
        size += 2
    return max(size - 2, 0)


@dataclasses.dataclass(frozen=True)
class Interior:
    """The queries of a layer that count, and how far every key is from each of them.

    They are at least max(R, p) from every border, with R = floor(min(H, W) / 3) and p
    the reach of SAN's window (else 0): what it reflects at the border is never seen.
    The keys of a query are the A x C pixels of the grid, or of the window.
    """

    grid: tuple[int, int]
    radius: int  # R
    rows: slice  # of the queries
    columns: slice
    row_offsets: Int[np.ndarray, "Hq A"]  # key minus query, pixels
    column_offsets: Int[np.ndarray, "Wq C"]

    @classmethod
    def of_shape(cls, shape: tuple[int, ...]) -> "Interior | None":
        """Return the interior of maps of this shape, or None where no query counts.

        The maps are [B, N, Hq, Wq, Hk, Wk], or SAN's taps [B, H, W, T, G].
        """
        taps = len(shape) == 5
        grid = (shape[1], shape[2]) if taps else (shape[2], shape[3])
        radius = min(grid) // 3
        size = math.isqrt(shape[3]) if taps else 0
        if taps and size**2 != shape[3]:
            raise ValueError(f"{shape[3]} taps are no square window")
        margin = max(radius, size // 2)
        if not radius or min(grid) <= 2 * margin:
            return None
        rows, columns = (slice(margin, length - margin) for length in grid)

        def offsets(length: int) -> np.ndarray:
            queries = np.arange(margin, length - margin)
            if size:
                window = np.arange(size) - size // 2
                return np.broadcast_to(window, (len(queries), size))
            return np.arange(length)[None] - queries[:, None]

        return cls(grid, radius, rows, columns, offsets(grid[0]), offsets(grid[1]))

    @property
    def num_queries(self) -> int:
        """The number of interior queries."""
        return self.row_offsets.shape[0] * self.column_offsets.shape[0]

    @property
    def num_keys(self) -> int:
        """The number of keys of a query."""
        return self.row_offsets.shape[1] * self.column_offsets.shape[1]

    def distances(self) -> Float[np.ndarray, "Hq Wq A C"]:
        """Return the Euclidean length of every offset, pixels."""
        rows = self.row_offsets[:, None, :, None]
        return np.hypot(rows, self.column_offsets[None, :, None, :])

    def cut(self, maps: Any) -> Any:
        """Return what the interior queries give every key, [B, N, Hq, Wq, A, C]."""
        if maps.ndim == 6:
            return maps[:, :, self.rows, self.columns]
        window = maps[:, self.rows, self.columns].transpose(0, 4, 1, 2, 3)
        size = self.row_offsets.shape[1]
        return window.reshape(*window.shape[:-1], size, size)

    def best_offsets(
        self, mean: Float[np.ndarray, "N Hq Wq A C"]
    ) -> list[tuple[tuple[int, int], float]]:
        """Return each head's offset of the largest probability, and that probability.

        `mean` are the maps of interior queries, a mean over images. Candidates have at
        most R rows and columns; of equal ones the shortest counts.
        """
        span = range(-self.radius, self.radius + 1)
        wanted = np.array(span)[None, :, None]
        rows, columns = (
            (offsets[:, None] == wanted).astype(float)  # [queries, candidates, keys]
            for offsets in (self.row_offsets, self.column_offsets)
        )
        by_row = np.einsum("nijac,ida->nijdc", mean, rows, optimize=True)
        masses = np.einsum("nijdc,jec->nde", by_row, columns, optimize=True)
        masses = masses / self.num_queries
        candidates = sorted(
            ((row, column) for row in span for column in span),
            key=lambda d: np.hypot(*d),
        )
        best = []
        for of_head in masses:
            values = [of_head[r + self.radius, c + self.radius] for r, c in candidates]
            index = int(np.argmax(values))
            best.append((candidates[index], float(values[index])))
        return best

    def covered(
        self, mean: Float[np.ndarray, "N Hq Wq A C"], threshold: float = COVERING_MASS
    ) -> list[tuple[int, int]]:
        """Return the best offset of each head that gives it at least the threshold."""
        best = self.best_offsets(mean)
        return [offset for offset, mass in best if mass >= threshold]


def shares(weights: Any) -> Any:
    """Return |w| / sum |w| over the keys of each query [..., A, C]; of zeros, equal."""
    weights = abs(weights)
    total = weights.sum(axis=(-2, -1), keepdims=True)
    equal = 1 / (weights.shape[-2] * weights.shape[-1])
    return weights / (total + (total == 0)) + equal * (total == 0)


def tokens_to_grid(probs: Any, grid: tuple[int, int]) -> tuple[Any, Any]:
    """Return attention between patches on their grid, and the class token's mass.

    From [B, N, T, T] to [B, N, Hq, Wq, Hk, Wk] and [B, N, Hq, Wq]. Token 0 is the class
    token if there is one more than the grid has patches: it is dropped as a query and
    as a key, and rows are not renormalised (they sum to 1 less the mass). The mass is
    None where there is no such token.
    """
    height, width = grid
    batch, num_heads, tokens, _ = probs.shape
    extra = tokens - height * width
    if extra not in (0, 1):
        raise ValueError(f"{tokens} tokens are not a grid of {height} x {width}")
    on_grid = probs[:, :, extra:, extra:].reshape(batch, num_heads, *grid, *grid)
    if not extra:
        return on_grid, None
    return on_grid, probs[:, :, 1:, 0].reshape(batch, num_heads, *grid)


def _on_grid(probs: Array, config: ConfigDict, dataset: data.Dataset) -> Array:
    """Return a ViT's probabilities on the grid of its patches, others as they are."""
    if probs.ndim != 4:
        return probs
    height, width, _ = dataset.image_shape
    size = config.model.patch_size
    return tokens_to_grid(probs, (height // size, width // size))[0]
