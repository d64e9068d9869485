"""Which offsets a head can attend to, by the dimension of a relative encoding.

A head with the key v scores an offset by v . r, r the encoding of the offset. With a
long v all of its attention is on one offset if and only if that has the one largest
score, which some v gives it if and only if its r is a vertex of the convex hull of all
encodings. How long v has to be depends on how far the vertex stands out: its margin.
Encodings are float64 [n, D_p], a row for each offset.
"""

import math

import numpy as np
from jaxtyping import Bool, Float
from scipy.optimize import nnls

_ROUNDING = 1e-9  # margins below it, of encodings in the unit ball, are none


def margins(encoding: Float[np.ndarray, "n D_p"]) -> Float[np.ndarray, "n"]:
    """Return by how much each offset's score can exceed all others, max_v min_j.

    v has length 1. This is the distance of the offset's encoding from the convex hull
    of the others; 0 where no v gives it the one largest score. With a margin m a key of
    length log((n - 1) / e) / m leaves at most e of the attention to the n - 1 others.
    """
    encoding = np.asarray(encoding, np.float64)
    size = np.linalg.norm(encoding, axis=1).max(initial=0.0)
    if len(encoding) < 2 or size == 0.0:
        return np.full(len(encoding), math.inf if len(encoding) == 1 else 0.0)
    return size * np.array(
        [_distance(encoding / size, i) for i in range(len(encoding))]
    )


def reachable_offsets(encoding: Float[np.ndarray, "n D_p"]) -> Bool[np.ndarray, "n"]:
    """Tell which offsets some key scores above all others."""
    size = np.linalg.norm(encoding, axis=1).max(initial=0.0)
    return margins(encoding) > _ROUNDING * size


def _distance(points: Float[np.ndarray, "n D_p"], index: int) -> float:
    """Return the distance of a point from the convex hull of the other points.

    With the columns of A the others less the point, it is min |A w| over w >= 0 that
    sum to 1. Non-negative least squares of |A u|^2 + (sum u - 1)^2 has the same
    direction, w = u / sum u, and the minimum d^2 / (1 + d^2).
    """
    others = (np.delete(points, index, axis=0) - points[index]).T
    system = np.vstack([others, np.ones(others.shape[1])])
    goal = np.append(np.zeros(len(others)), 1.0)
    residual = min(float(nnls(system, goal)[1]), 1.0 - 1e-15)
    return residual / math.sqrt(1.0 - residual**2)


def circle_encoding(num_offsets: int) -> Float[np.ndarray, "n 2"]:
    """Encode offsets by points at equal distances on a circle of radius 1.

    Every offset is reachable; its margin is 1 - cos(2 pi / n) (from four offsets on).
    """
    angles = 2 * np.pi * np.arange(num_offsets) / num_offsets
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def sphere_encoding(num_offsets: int) -> Float[np.ndarray, "n 3"]:
    """Encode offsets by points spread over a sphere of radius 1, a Fibonacci lattice.

    Every offset is reachable, with a margin in proportion to 1 / n.
    """
    index = np.arange(num_offsets)
    height = 1 - (2 * index + 1) / num_offsets
    angles = np.pi * (3 - math.sqrt(5)) * index
    radius = np.sqrt(1 - height**2)
    return np.stack([radius * np.cos(angles), radius * np.sin(angles), height], axis=1)


def axis_quadratic_encoding(
    offsets: Float[np.ndarray, "n"],
) -> Float[np.ndarray, "n 2"]:
    """Encode the offsets d of one axis by (d^2, d), points of a parabola."""
    return np.stack([offsets**2, offsets], axis=1)


def quadratic_encoding(
    rows: Float[np.ndarray, "m"], cols: Float[np.ndarray, "n"]
) -> Float[np.ndarray, "m*n 3"]:
    """Encode offsets d by (|d|^2, d1, d2) (paper, Eq. 9), the rows' offsets first.

    It is the sum of an encoding of rows, (d1^2, d1, 0), and of columns, (d2^2, 0, d2).
    """
    by_row = np.stack([rows**2, rows, np.zeros_like(rows)], axis=1)
    by_col = np.stack([cols**2, np.zeros_like(cols), cols], axis=1)
    return sum_encoding(by_row, by_col)


def sum_encoding(
    rows: Float[np.ndarray, "m D_p"], cols: Float[np.ndarray, "n D_p"]
) -> Float[np.ndarray, "m*n D_p"]:
    """Encode (d1, d2) by row[d1] + col[d2], which one key of a head meets.

    In two dimensions this is a Minkowski sum of polygons, of which the m n offsets
    reach at most m + n.
    """
    return (rows[:, None] + cols[None]).reshape(-1, rows.shape[1])


def joined_encoding(
    rows: Float[np.ndarray, "m D_r"], cols: Float[np.ndarray, "n D_c"]
) -> Float[np.ndarray, "m*n D_r+D_c"]:
    """Encode (d1, d2) by row[d1] and col[d2] side by side: a key for each axis.

    This is `learned_wo_content`, with `position_dim` for each axis. (d1, d2) is
    reachable if and only if d1 is among the rows, and d2 among the columns.
    """
    shape = (len(rows), len(cols), -1)
    by_row = np.broadcast_to(rows[:, None], (*shape[:2], rows.shape[1]))
    by_col = np.broadcast_to(cols[None], (*shape[:2], cols.shape[1]))
    both = np.concatenate([by_row, by_col], axis=-1)
    return both.reshape(-1, both.shape[-1])
