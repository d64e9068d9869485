"""The convolution that is closest in least squares to what maps x to y.

y[i, j] = bias + sum over offsets d of x[(i, j) + d] kernel[d], with the nearest pixel
inside where (i, j) + d is outside, and s (i, j) in place of (i, j) where y has every
s-th pixel alone. All sums are float64, on the host.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

# What is added to the squares of all coefficients, of the mean square of the inputs:
# behind a LayerNorm channels add up to a constant, and no least squares is unique.
RIDGE = 1e-12
_MAX_BYTES = 128 * 2**20  # of the neighbourhoods of some images


@dataclasses.dataclass(frozen=True, eq=False)
class Convolution:
    """A K x K convolution with bias, and how much of a map it explains.

    `kernel[r, c]` meets the pixel (r - K // 2, c - K // 2) from the query. With y the
    map, p what the convolution makes of its input, and the mean of each channel of y,

        R^2 = 1 - sum |y - p|^2 / sum |y - mean|^2,

    sums over images, pixels and channels: `r_squared` over images that it was not
    fitted to, `r_squared_fitted` over those that it was. None where y does not vary.
    """

    kernel: Float[np.ndarray, "K K D E"]
    bias: Float[np.ndarray, "E"]
    r_squared: float | None
    r_squared_fitted: float | None

    @property
    def kernel_size(self) -> int:
        """The K of K x K."""
        return len(self.kernel)


def num_coefficients(kernel_size: int, width: int) -> int:
    """Return the coefficients of each output of a K x K convolution, bias included."""
    return kernel_size**2 * width + 1


def offsets(kernel_size: int) -> list[tuple[int, int]]:
    """Return the K x K offsets, from the middle outwards.

    Those of a smaller kernel therefore come first, and its sums are a part of a
    larger one's.
    """
    span = range(-(kernel_size // 2), kernel_size // 2 + 1)
    square = [(row, column) for row in span for column in span]
    return sorted(square, key=lambda d: max(abs(d[0]), abs(d[1])))


def neighbourhoods(
    x: Float[np.ndarray, "B H W D"], kernel_size: int, grid: tuple[int, ...]
) -> Float[np.ndarray, "P F"]:
    """Return the K x K pixels around each pixel of an output, by `offsets`, channel.

    P = B h w rows of F = K K D. `grid` are the output's h x w pixels, every stride-th
    of the H x W. Beyond the border is the nearest pixel inside.
    """
    down, right = (-(-of // to) for of, to in zip(x.shape[1:3], grid, strict=True))
    reach, (height, width) = kernel_size // 2, x.shape[1:3]
    padded = np.pad(x, ((0, 0), (reach, reach), (reach, reach), (0, 0)), mode="edge")
    shifted = [
        padded[
            :, reach + row : reach + row + height, reach + col : reach + col + width
        ][:, ::down, ::right]
        for row, col in offsets(kernel_size)
    ]
    return np.concatenate(shifted, axis=-1).reshape(-1, len(shifted) * x.shape[-1])


class LeastSquares:
    """Fits convolutions of several sizes to images, then scores them on others.

    First `fit` all images of one part, then `score` all of the other, a batch at a
    time; then `convolutions`. `sizes` are odd and rising.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sizes)
        self._fitted = _Sums()
        self._solved: list[tuple[np.ndarray, np.ndarray, float | None]] = []
        self._residuals = np.zeros(len(self.sizes))
        self._count, self._squares = 0, 0.0
        self._sum: np.ndarray = np.zeros(1)  # of each output

    def fit(
        self, x: Float[np.ndarray, "B H W D"], y: Float[np.ndarray, "B h w E"]
    ) -> None:
        """Add images that the convolutions are fitted to."""
        for part in _parts(x, self.sizes[-1]):
            self._fitted.add(x[part], y[part], self.sizes[-1])

    def score(
        self, x: Float[np.ndarray, "B H W D"], y: Float[np.ndarray, "B h w E"]
    ) -> None:
        """Add images that the convolutions are scored on."""
        self._solve()
        for part in _parts(x, self.sizes[-1]):
            pixels, wanted = self._fitted.centred(x[part], y[part], self.sizes[-1])
            for index, (coefficients, shift, _) in enumerate(self._solved):
                guess = pixels[:, : len(coefficients)] @ coefficients + shift[None]
                self._residuals[index] += ((wanted - guess) ** 2).sum()
            self._count += len(wanted)
            self._sum = self._sum + wanted.sum(axis=0)
            self._squares += (wanted**2).sum()

    def convolutions(self) -> tuple[Convolution, ...]:
        """Return the closest convolution of each size, with its R^2."""
        self._solve()
        total = self._squares - (self._sum**2).sum() / max(self._count, 1)
        found = []
        for size, (coefficients, shift, fitted), residual in zip(
            self.sizes, self._solved, self._residuals, strict=True
        ):
            kernel, bias = self._fitted.uncentred(size, coefficients, shift)
            score = self._fitted.r_squared(residual, total, self._count)
            found.append(Convolution(kernel, bias, score, fitted))
        return tuple(found)

    def _solve(self) -> None:
        if not self._solved:
            self._solved = [self._fitted.solve(size) for size in self.sizes]


class _Sums:
    """Products of neighbourhoods and outputs, summed over pixels.

    Both are centred by the means of the first images that are added, so that what is
    subtracted later is small.
    """

    def __init__(self) -> None:
        self._count = 0
        self._x_mean = self._y_mean = np.zeros(0)
        self._inputs = self._outputs = np.zeros(0)
        self._gram = self._cross = np.zeros((0, 0))
        self._squares = 0.0

    def centred(
        self, x: np.ndarray, y: np.ndarray, size: int
    ) -> tuple[Float[np.ndarray, "P F"], Float[np.ndarray, "P E"]]:
        """Return neighbourhoods and outputs, float64, less the first means."""
        x, grid = x.astype(np.float64) - self._x_mean[None, None, None], y.shape[1:3]
        y = y.reshape(-1, y.shape[-1]).astype(np.float64) - self._y_mean[None]
        return neighbourhoods(x, size, grid), y

    def add(self, x: np.ndarray, y: np.ndarray, size: int) -> None:
        if not self._count:
            self._x_mean = x.mean(axis=(0, 1, 2), dtype=np.float64)
            self._y_mean = y.mean(axis=(0, 1, 2), dtype=np.float64)
            features, width = size**2 * x.shape[-1], y.shape[-1]
            self._inputs, self._outputs = np.zeros(features), np.zeros(width)
            self._gram = np.zeros((features, features))
            self._cross = np.zeros((features, width))
        pixels, outputs = self.centred(x, y, size)
        self._count += len(pixels)
        self._inputs += pixels.sum(axis=0)
        self._outputs += outputs.sum(axis=0)
        self._gram += pixels.T @ pixels
        self._cross += pixels.T @ outputs
        self._squares += (outputs**2).sum()

    def solve(self, size: int) -> tuple[np.ndarray, np.ndarray, float | None]:
        """Return coefficients [F, E], what is added to them [E], R^2 of the fit."""
        features = size**2 * len(self._x_mean)
        inputs, outputs = self._inputs[:features], self._outputs
        gram = self._gram[:features, :features]
        gram = gram - np.outer(inputs, inputs / self._count)
        cross = self._cross[:features] - np.outer(inputs, outputs / self._count)
        coefficients = np.zeros_like(cross)
        if np.trace(gram) > 0:
            ridge = RIDGE * np.trace(gram) / features
            ridged = gram + np.diag(np.full(features, ridge))
            coefficients = np.linalg.solve(ridged, cross)
        shift = (outputs - inputs @ coefficients) / self._count
        total = self._squares - (outputs**2).sum() / self._count
        explained = 2 * (coefficients * cross).sum()
        explained -= (coefficients * (gram @ coefficients)).sum()
        fitted = self.r_squared(total - explained, total, self._count)
        return coefficients, shift, fitted

    def uncentred(
        self, size: int, coefficients: np.ndarray, shift: np.ndarray
    ) -> tuple[Float[np.ndarray, "K K D E"], Float[np.ndarray, "E"]]:
        """Return kernel and bias for inputs and outputs as they are."""
        by_offset = coefficients.reshape(size**2, len(self._x_mean), -1)
        kernel = np.zeros((size, size, *by_offset.shape[1:]))
        for (row, column), values in zip(offsets(size), by_offset, strict=True):
            kernel[row + size // 2, column + size // 2] = values
        bias = self._y_mean + shift - self._x_mean @ by_offset.sum(axis=0)
        return kernel, bias

    def r_squared(self, residual: float, total: float, count: int) -> float | None:
        """Return 1 - residual / total, None where outputs vary by rounding alone."""
        # Twice as much as values of float32 can be from what they are rounded from.
        rounding = 1e-13 * count * (self._y_mean**2).sum()
        return float(1 - residual / total) if total > rounding else None


def _parts(x: np.ndarray, size: int) -> list[slice]:
    """Return slices of images whose neighbourhoods fit into memory together."""
    per_image = 8 * x.shape[1] * x.shape[2] * size**2 * x.shape[3]
    length = max(1, _MAX_BYTES // per_image)
    return [slice(start, start + length) for start in range(0, len(x), length)]
