"""Every attention layer of a run against the convolutions that are closest to it."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from jaxtyping import Array
from tqdm import tqdm

from attn_cnn_jax.analysis.closest_convolution.least_squares import (
    Convolution,
    LeastSquares,
    num_coefficients,
)
from attn_cnn_jax.covered_offsets import Coverage
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.run import Run

LARGEST_INPUT = 4096  # K^2 D, up to which kernels are fitted without being asked for
_MOST_COEFFICIENTS = 16_384  # of an output; their products take 2 GiB
_LEAST_IMAGES = 200  # the pixels of an image are alike
_SAMPLES, _FEWEST_SAMPLES = 8, 4  # pixels that are fitted to, for each coefficient
_MAX_BYTES = 256 * 2**20  # of the maps of a batch


@dataclasses.dataclass(frozen=True)
class LayerConvolutions:
    """The convolutions that are closest to an attention layer alone.

    The layer maps `in_width` channels to `out_width`, which it has on `grid`, from its
    own input to its output, before residual, dense map and norm. They are fitted to the
    first `num_images` test images and scored on as many others. `left_out`: kernel
    sizes that the grid or the test set is too small for.
    """

    layer: str
    grid: tuple[int, int]
    in_width: int
    out_width: int
    num_images: int
    convolutions: tuple[Convolution, ...]  # by rising size
    left_out: tuple[int, ...] = ()

    def r_squared(self, kernel_size: int) -> float | None:
        """Return the R^2 of a size; None where it has none or was not fitted."""
        found = [c for c in self.convolutions if c.kernel_size == kernel_size]
        return found[0].r_squared if found else None


@dataclasses.dataclass(frozen=True)
class ConvolutionTable:
    """The closest convolutions of all layers of one checkpoint.

    `coverage`: the offsets that the heads of a layer cover, by the layer's name, where
    they are known.
    """

    run: str
    step: int
    epoch: float
    layers: tuple[LayerConvolutions, ...]
    coverage: Mapping[str, Coverage] = dataclasses.field(default_factory=dict)

    @property
    def kernel_sizes(self) -> tuple[int, ...]:
        """The sizes that were fitted to any layer, rising."""
        sizes = {c.kernel_size for one in self.layers for c in one.convolutions}
        return tuple(sorted(sizes))


def closest_convolutions(
    runs: Run | Sequence[Run], kernel_sizes: Sequence[int] = ()
) -> list[ConvolutionTable]:
    """Return a table for each of the runs, which are checkpoints of the same one.

    Without `kernel_sizes` they are those of at most `LARGEST_INPUT` inputs that fit on
    a layer's grid. They are fitted to 200 images, or as many as have 8 pixels for each
    coefficient of an output; where the test set is too small, to half of it, and with
    less than 4 pixels a coefficient not at all. Raises a `UserError` for sizes that are
    even or too large, and where nothing can be fitted.
    """
    runs = [runs] if isinstance(runs, Run) else runs
    run, wanted = runs[0], sorted(set(kernel_sizes))
    if any(size < 1 or size % 2 == 0 for size in wanted):
        raise UserError(f"kernel sizes are odd, from 1 on, not {_listed(wanted)}.")
    program = _Program(run)
    plans = [_plan(shapes, wanted, len(run.dataset.test)) for shapes in program.layers]
    if not any(plan.sizes for plan in plans):
        raise UserError(
            f"{run.name}: no kernel can be fitted on the grids of its layers with "
            f"{len(run.dataset.test):,} test images."
        )
    return [_table(one, program, plans) for one in runs]


@dataclasses.dataclass(frozen=True)
class _Shapes:
    layer: str
    grid: tuple[int, int]  # of the output
    in_grid: tuple[int, int]
    in_width: int
    out_width: int


@dataclasses.dataclass(frozen=True)
class _Plan:
    shapes: _Shapes
    sizes: tuple[int, ...]
    num_images: int
    left_out: tuple[int, ...]


def _plan(shapes: _Shapes, wanted: Sequence[int], num_test_images: int) -> _Plan:
    """Choose the kernels of a layer, and the images that they are fitted to."""
    grid, width = shapes.grid, shapes.in_width
    fitting = [size for size in range(1, min(shapes.in_grid) + 1, 2)]
    default = [size for size in fitting if size**2 * width <= LARGEST_INPUT]
    pixels, half = grid[0] * grid[1], num_test_images // 2

    def images_for(size: int, samples: int) -> int:
        return math.ceil(samples * num_coefficients(size, width) / pixels)

    sizes = [
        size
        for size in wanted or default
        if size in fitting and images_for(size, _FEWEST_SAMPLES) <= half
    ]
    largest = max(sizes, default=1)
    if num_coefficients(largest, width) > _MOST_COEFFICIENTS:
        raise UserError(
            f"a {largest} x {largest} convolution of {shapes.layer} has "
            f"{num_coefficients(largest, width):,} coefficients for each output, more "
            f"than {_MOST_COEFFICIENTS:,}: leave {largest} out of --kernels."
        )
    images = max(_LEAST_IMAGES, images_for(largest, _SAMPLES))
    left_out = tuple(size for size in wanted or default if size not in sizes)
    return _Plan(shapes, tuple(sizes), min(images, half), left_out)


class _Program:
    """The compiled pass that returns what every attention layer maps to what."""

    def __init__(self, run: Run) -> None:
        self._grid_of_tokens = tuple(
            length // run.config.model.get("patch_size", 1)
            for length in run.dataset.image_shape[:2]
        )

        def maps(*batch: Any) -> list[tuple[str, tuple[Array, Array]]]:
            with nn.intercept_methods(_keep_maps):
                sown = run.sown(*batch, collection="maps")
            on_grid = self._on_grid
            return [(name, (on_grid(x), on_grid(y))) for name, (x, y) in sown]

        names: list[str] = []

        def sizes(*batch: Any) -> list[tuple[Array, Array]]:
            found = maps(*batch)
            names.extend(name for name, _ in found)
            return [pair for _, pair in found]

        images = np.zeros((2, *run.dataset.image_shape), np.uint8)
        indices = np.zeros(2, np.int32)
        shapes = jax.eval_shape(sizes, run.variables, images, indices)
        self.layers = [
            _Shapes(name, y.shape[1:3], x.shape[1:3], x.shape[3], y.shape[3])
            for name, (x, y) in zip(names, shapes, strict=True)
        ]
        per_image = sum(4 * a.size // len(images) for pair in shapes for a in pair)
        fits = max(1, _MAX_BYTES // max(1, per_image))
        self._batch_size = min(fits, run.config.eval_batch_size)
        self._compiled = jax.jit(lambda *batch: [pair for _, pair in maps(*batch)])

    def _on_grid(self, x: Array) -> Array:
        """Return tokens [B, T, D] on the grid of their patches, no class token."""
        if x.ndim == 4:
            return x
        height, width = self._grid_of_tokens
        return x[:, x.shape[1] - height * width :].reshape(
            len(x), height, width, x.shape[-1]
        )

    def batches(self, run: Run, num_images: int) -> Iterator[tuple[np.ndarray, list]]:
        """Yield the rows of test images, and (input, output) of every layer for them.

        The last batch is filled up, so that one compiled program serves all of them.
        """
        variables = jax.device_put(run.variables)
        title = f"layers of {run.name}"
        with tqdm(
            total=num_images, desc=title, unit="images", disable=None, delay=2
        ) as bar:
            for start in range(0, num_images, self._batch_size):
                rows = np.arange(start, min(start + self._batch_size, num_images))
                padded = np.resize(rows, self._batch_size).astype(np.int32)
                images = run.dataset.test.images[padded]
                pairs = self._compiled(variables, images, padded)
                yield (
                    rows,
                    [tuple(np.asarray(a)[: len(rows)] for a in pair) for pair in pairs],
                )
                bar.update(len(rows))


def _keep_maps(
    layer: Callable[..., Any], args: tuple, kwargs: dict, context: Any
) -> Any:
    """Sow the input and the output of each attention layer in "maps"."""
    result = layer(*args, **kwargs)
    if context.module.name == "attention" and context.method_name == "__call__":
        context.module.sow("maps", "attention", (args[0], result[0]))
    return result


def _table(run: Run, program: _Program, plans: Sequence[_Plan]) -> ConvolutionTable:
    fits = [LeastSquares(plan.sizes) if plan.sizes else None for plan in plans]
    last = 2 * max(plan.num_images for plan in plans if plan.sizes)
    for rows, pairs in program.batches(run, last):
        for plan, fit, (x, y) in zip(plans, fits, pairs, strict=True):
            if fit is None:
                continue
            fitted, used = rows < plan.num_images, rows < 2 * plan.num_images
            for add, chosen in ((fit.fit, fitted), (fit.score, used & ~fitted)):
                if chosen.any():
                    add(x[chosen], y[chosen])
    layers = [
        LayerConvolutions(
            layer=plan.shapes.layer,
            grid=plan.shapes.grid,
            in_width=plan.shapes.in_width,
            out_width=plan.shapes.out_width,
            num_images=plan.num_images,
            convolutions=() if fit is None else fit.convolutions(),
            left_out=plan.left_out,
        )
        for plan, fit in zip(plans, fits, strict=True)
    ]
    return ConvolutionTable(run.name, run.step, run.epoch, tuple(layers))


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))
