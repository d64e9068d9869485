"""The interior queries of a layer: their weights and the offsets of their keys."""

import dataclasses
import math

import numpy as np
from jaxtyping import Float, Int

from attn_cnn_jax.analysis.attention_maps import AttentionMaps


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
    def of(cls, kind: str, shape: tuple[int, ...]) -> "Interior | None":
        """Return the interior of maps of this shape, or None where no query counts."""
        grid = (shape[2], shape[3]) if kind == "grid" else (shape[1], shape[2])
        radius = min(grid) // 3
        size = math.isqrt(shape[3]) if kind == "taps" else 0
        if size**2 != shape[3] and kind == "taps":
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

    def candidates(self) -> tuple[np.ndarray, np.ndarray]:
        """Return [Hq, d, A], [Wq, d, C]: 1 where a key has row (column) d - R."""
        wanted = np.arange(-self.radius, self.radius + 1)[None, :, None]
        rows, columns = self.row_offsets[:, None], self.column_offsets[:, None]
        return (rows == wanted).astype(float), (columns == wanted).astype(float)

    def weights(
        self, maps: AttentionMaps, layer: int
    ) -> Float[np.ndarray, "B N Hq Wq A C"]:
        """Return what the interior queries give every key: float64, a query's sum is 1.

        A ViT's rows are renormalised over the patches; weights that are no
        probabilities become shares |w| / sum |w| (all 0: equal shares).
        """
        if maps.kind == "taps":
            window = maps.probs[layer][:, self.rows, self.columns]
            size = self.row_offsets.shape[1]
            window = np.moveaxis(window, -1, 1)  # [B, G, Hq, Wq, T]
            weights = window.reshape(*window.shape[:-1], size, size)
        else:
            weights = maps.probs[layer][:, :, self.rows, self.columns]
        weights = weights.astype(np.float64)
        if maps.softmaxed and maps.class_mass is None:
            return weights
        weights = np.abs(weights)
        total = weights.sum(axis=(-2, -1), keepdims=True)
        num_keys = weights.shape[-1] * weights.shape[-2]
        equal = np.full_like(weights, 1 / num_keys)
        return np.divide(weights, total, where=total > 0, out=equal)
