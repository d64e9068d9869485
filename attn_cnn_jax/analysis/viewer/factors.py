"""Attention maps as products of small matrices: what content makes has low rank.

The scores of a head are queries times keys, so that the logarithm of its probabilities,
a matrix [queries, keys], has the rank of one of them and little more. Its factors as
integers take less room than the maps where those are flat and full of detail.
"""

import dataclasses

import numpy as np
from jaxtyping import Float, Int

_FLOOR = 1e-6  # shares below it are raised to it: their logarithm has no end
_MOST_RANK, _MOST_ROWS = 128, 1024  # beyond, maps as such are smaller, or this is slow
_TRUNCATION = 0.5  # of the error allowed, for the rank; the rest is for rounding


@dataclasses.dataclass(frozen=True)
class Factors:
    """Shares of each row's maximum: exp(step^2 queries keys^T)."""

    queries: Int[np.ndarray, "Q R"]
    keys: Int[np.ndarray, "K R"]
    step: float  # a float32

    @property
    def rank(self) -> int:
        """Columns of each."""
        return self.queries.shape[1]

    def shares(self) -> Float[np.ndarray, "Q K"]:
        """What they stand for."""
        products = self.queries.astype(np.float64) @ self.keys.T.astype(np.float64)
        return np.exp(self.step**2 * products)

    def to_bytes(self) -> bytes:
        """A byte plane of the low, then one of the high bytes, column by column.

        Integers are zigzag coded (0, -1, 1, -2, ...): high bytes of small ones are 0.
        """
        columns = np.concatenate([self.queries, self.keys]).T.astype(np.int16)
        zigzag = (columns << 1 ^ columns >> 15).view(np.uint16)
        return (zigzag & 255).astype(np.uint8).tobytes() + (zigzag >> 8).astype(
            np.uint8
        ).tobytes()


def factorize(shares: Float[np.ndarray, "Q K"], tolerance: float) -> Factors | None:
    """Factors of the lowest rank that are nowhere more than `tolerance` off.

    None where there are none of a rank that is worth it.
    """
    shares = shares.astype(np.float64)
    if max(shares.shape) > _MOST_ROWS:
        return None
    left, sizes, right = np.linalg.svd(
        np.log(np.maximum(shares, _FLOOR)), full_matrices=False
    )
    left, right = left * np.sqrt(sizes), right.T * np.sqrt(sizes)

    def error(rank: int) -> float:
        return np.abs(np.exp(left[:, :rank] @ right[:, :rank].T) - shares).max()

    low, high = 0, min(_MOST_RANK, len(sizes))
    if error(high) > _TRUNCATION * tolerance:
        return None
    while high - low > 1:  # `high` is enough, `low` is not
        middle = (low + high) // 2
        if error(middle) <= _TRUNCATION * tolerance:
            high = middle
        else:
            low = middle
    return _rounded(left[:, :high], right[:, :high], shares, tolerance)


def _rounded(
    left: np.ndarray, right: np.ndarray, shares: np.ndarray, tolerance: float
) -> Factors | None:
    """The factors in the largest steps, of some, that keep the tolerance."""
    largest = max(np.abs(left).max(), np.abs(right).max())
    for levels in np.geomspace(64, 32_767, 28):
        step = float(np.float32(largest / levels))
        if not step:
            return None
        queries, keys = (np.rint(side / step).astype(int) for side in (left, right))
        found = Factors(queries, keys, step)
        if np.abs(found.shares() - shares).max() <= tolerance:
            return found
    return None
