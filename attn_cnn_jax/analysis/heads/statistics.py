"""The numbers of a head: their definitions, and their sums over batches of images."""

import dataclasses
from collections.abc import Iterable, Iterator

import numpy as np
from jaxtyping import Float

from attn_cnn_jax.analysis.attention_maps import AttentionMaps
from attn_cnn_jax.analysis.learned_positions import UNIFORM, is_uniform
from attn_cnn_jax.covered_offsets import COVERING_MASS, Coverage, Interior, shares
from attn_cnn_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class HeadStatistics:
    """The numbers of one head; each is a mean over interior queries and images.

    With a(k | q) what query q gives key k, R = floor(min(H, W) / 3), and offsets k - q
    in (row, column) order, in pixels of the grid. Interior queries are at least R from
    every border. SAN: the keys are the taps of its window, the heads its planes.

    - `expected_offset`: sum_k a(k | q) (k - q), over all keys;
    - `mean_distance`: sum_k a(k | q) |k - q|;
    - `entropy`: -sum_k a(k | q) log a(k | q), nats (0 log 0 = 0);
    - `best_offset`, `best_mass`: the offset d, max(|row|, |column|) <= R, of the
      largest mean a(q + d | q), and that mean; of equal ones the shortest;
    - `covers`: whether `best_mass` is at least the threshold of the table;
    - `content_dependence`: 1/2 sum_k |a(k | q) - mean over images of a(k | q)|, from 0
      (by position alone) to 1;
    - `degenerate`: "uniform" where `entropy` is that of a head that looks at 95 % of
      all keys or more, "strip" where a quadratic head looks along a line (both are
      those of `learned_positions`, and so what `prune` removes), else "";
    - `class_mass`: what a ViT's query gives the class token, else None. All else is of
      its row renormalised over the patches.

    Where there is one interior query (a grid of 3 x 3), a head that looks at one fixed
    pixel is not told from one that looks at one offset.
    """

    layer: str
    head: int  # from 1
    expected_offset: tuple[float, float]
    mean_distance: float
    entropy: float
    best_offset: tuple[int, int]
    best_mass: float
    covers: bool
    content_dependence: float
    class_mass: float | None
    degenerate: str = ""


@dataclasses.dataclass(frozen=True)
class LayerSummary:
    """The offsets that the heads of a layer cover together.

    `num_keys`: keys of a query. `uniform_distance`: the `mean_distance` of a head that
    looks at all of them alike. `covered`: the distinct offsets that its heads cover.
    `kernel_size`: the largest odd K such that all of the centred K x K grid of offsets
    are covered, 0 if none.
    """

    layer: str
    grid: tuple[int, int]
    radius: int  # R
    num_queries: int  # interior ones
    num_keys: int
    uniform_distance: float
    num_heads: int
    covered: tuple[tuple[int, int], ...]
    kernel_size: int


@dataclasses.dataclass(frozen=True)
class HeadTable:
    """The numbers of all heads of one checkpoint, over some images.

    `shares`: the weights of the layers are no probabilities and were turned into shares
    |w| / sum |w|. `left_out`: layers whose grid is too small for an interior.
    """

    run: str
    step: int
    epoch: float
    num_images: int
    threshold: float
    shares: bool
    heads: tuple[HeadStatistics, ...]
    layers: tuple[LayerSummary, ...]
    left_out: tuple[str, ...] = ()


def head_statistics(
    batches: AttentionMaps | Iterable[AttentionMaps], threshold: float = COVERING_MASS
) -> HeadTable:
    """Return the numbers of every head over all images of the batches.

    One batch at a time is in memory and, for a layer that looks at the image, one mean
    map. For such layers the batches are gone through twice (the mean map first), so
    that a generator does not do. Raises a `UserError` where no layer has an interior.
    """
    if isinstance(batches, AttentionMaps):
        batches = [batches]
    if isinstance(batches, Iterator):
        raise TypeError("the batches are needed twice: give what can be iterated again")
    _check_threshold(threshold)
    sums: list[_Sums | None] = []
    first: AttentionMaps | None = None
    num_images, varies = 0, False
    for maps in batches:
        first = first or dataclasses.replace(maps, probs=(), class_mass=None)
        sums = sums or _start(maps)
        num_images += len(maps.images)
        varies = varies or any(len(p) == len(maps.images) for p in maps.probs)
        for layer, layer_sums in enumerate(sums):
            if layer_sums is not None:
                layer_sums.add(maps, layer, num_images)
    if first is None:
        raise UserError("no images were chosen: the numbers need one or more.")
    if varies and num_images > 1:
        for maps in batches:
            for layer, layer_sums in enumerate(sums):
                if layer_sums is not None:
                    layer_sums.add_differences(maps, layer)
    heads: list[HeadStatistics] = []
    layers: list[LayerSummary] = []
    for name, layer_sums in zip(first.layers, sums, strict=True):
        if layer_sums is not None:
            of_layer = layer_sums.statistics(name, num_images, threshold)
            heads += of_layer
            layers.append(_summary(name, layer_sums.interior, of_layer))
    small = [n for n, s in zip(first.layers, sums, strict=True) if s is None]
    return HeadTable(
        run=first.run,
        step=first.step,
        epoch=first.epoch,
        num_images=num_images,
        threshold=threshold,
        shares=not first.softmaxed,
        heads=tuple(heads),
        layers=tuple(layers),
        left_out=tuple(small),
    )


def covered_offsets(
    batches: Iterable[AttentionMaps], threshold: float = COVERING_MASS
) -> dict[str, Coverage]:
    """Return what each layer covers over all images of the batches, by its name.

    It is what `head_statistics` says of the layers, without the other numbers of
    their heads. A layer whose grid has no interior is left out.
    """
    _check_threshold(threshold)
    means: dict[str, tuple[Interior, np.ndarray]] = {}
    num_images = 0
    for maps in batches:
        num_images += len(maps.images)
        for layer, (name, probs) in enumerate(
            zip(maps.layers, maps.probs, strict=True)
        ):
            interior = Interior.of_shape(probs.shape)
            if interior is None:
                continue
            mean = _weights(interior, maps, layer).mean(axis=0)
            old = means[name][1] if name in means else mean
            share = len(maps.images) / num_images
            means[name] = interior, old + (mean - old) * share
    return {
        name: Coverage.of(name, interior.covered(mean, threshold))
        for name, (interior, mean) in means.items()
    }


def _check_threshold(threshold: float) -> None:
    if not 0 < threshold <= 1:
        raise UserError(f"the threshold of a mass is {threshold}: take one of 0 to 1.")


def _start(maps: AttentionMaps) -> "list[_Sums | None]":
    interiors = [Interior.of_shape(probs.shape) for probs in maps.probs]
    if not any(interiors):
        grids = [
            p.shape[2:4] if maps.kind == "grid" else p.shape[1:3] for p in maps.probs
        ]
        height, width = max(grids)
        raise UserError(
            f"{maps.run}: no query is far enough from the border for the numbers of a "
            f"head; its largest grid has {height} x {width} pixels."
        )
    return [interior and _Sums(interior) for interior in interiors]


def _summary(
    name: str, interior: Interior, heads: list[HeadStatistics]
) -> LayerSummary:
    coverage = Coverage.of(name, (head.best_offset for head in heads if head.covers))
    return LayerSummary(
        layer=name,
        grid=interior.grid,
        radius=interior.radius,
        num_queries=interior.num_queries,
        num_keys=interior.num_keys,
        uniform_distance=float(interior.distances().mean()),
        num_heads=len(heads),
        covered=coverage.covered,
        kernel_size=coverage.kernel_size,
    )


class _Sums:
    """Sums over images of what a layer's heads do, and the mean of their maps."""

    def __init__(self, interior: Interior) -> None:
        self.interior = interior
        self._distances = interior.distances()
        self._mean: np.ndarray | float = 0.0  # [N, Hq, Wq, A, C]
        self._entropy: np.ndarray | float = 0.0
        self._differences: np.ndarray | float = 0.0
        self._class_mass: np.ndarray | None = None

    def add(self, maps: AttentionMaps, layer: int, num_images: int) -> None:
        """Add the images of a batch, with which there are `num_images`."""
        weights = _weights(self.interior, maps, layer)
        here = len(maps.images)
        repeats = here / len(weights)  # a leading 1 stands for all images
        # A mean that moves, and not a sum, stays exactly itself where maps are equal.
        self._mean += (weights.mean(axis=0) - self._mean) * (here / num_images)
        logs = np.log(weights, where=weights > 0, out=np.zeros_like(weights))
        self._entropy -= repeats * np.einsum("bnijac,bnijac->n", weights, logs)
        if maps.class_mass is not None:
            mass = maps.class_mass[layer][
                :, :, self.interior.rows, self.interior.columns
            ]
            mass = repeats * mass.sum(axis=(0, 2, 3), dtype=np.float64)
            self._class_mass = mass + (
                0 if self._class_mass is None else self._class_mass
            )

    def add_differences(self, maps: AttentionMaps, layer: int) -> None:
        """Add half the L1 distances of a batch's maps from the mean of all.

        A map that stands for all images is at distance 0, however many there are.
        """
        weights = _weights(self.interior, maps, layer)
        self._differences += np.abs(weights - self._mean).sum(axis=(0, 2, 3, 4, 5)) / 2

    def statistics(
        self, name: str, num_images: int, threshold: float
    ) -> list[HeadStatistics]:
        """Return the numbers of each head."""
        mean = np.asarray(self._mean)
        num_heads = len(mean)
        queries = self.interior.num_queries
        samples = queries * num_images
        rows = np.einsum("nijac,ia->n", mean, self.interior.row_offsets) / queries
        columns = np.einsum("nijac,jc->n", mean, self.interior.column_offsets) / queries
        distances = np.einsum("nijac,ijac->n", mean, self._distances) / queries
        entropies = np.asarray(self._entropy) / samples
        differences = np.broadcast_to(self._differences / samples, num_heads)
        statistics = []
        for head, (offset, mass) in enumerate(self.interior.best_offsets(mean)):
            uniform = is_uniform(float(entropies[head]), self.interior.num_keys)
            in_class = None
            if self._class_mass is not None:
                in_class = float(self._class_mass[head] / samples)
            statistics.append(
                HeadStatistics(
                    layer=name,
                    head=head + 1,
                    expected_offset=(float(rows[head]), float(columns[head])),
                    mean_distance=float(distances[head]),
                    entropy=float(entropies[head]),
                    best_offset=offset,
                    best_mass=mass,
                    covers=mass >= threshold,
                    content_dependence=float(differences[head]),
                    class_mass=in_class,
                    degenerate=UNIFORM if uniform else "",
                )
            )
        return statistics


def _weights(
    interior: Interior, maps: AttentionMaps, layer: int
) -> Float[np.ndarray, "B N Hq Wq A C"]:
    """Return what the interior queries give every key: float64, a query's sum is 1.

    A ViT's rows are renormalised over the patches; weights that are no probabilities
    become shares |w| / sum |w|.
    """
    weights = interior.cut(maps.probs[layer]).astype(np.float64)
    plain = maps.softmaxed and maps.class_mass is None
    return weights if plain else shares(weights)
