"""A request for figures: the run, the images to show it on, and how."""

import dataclasses
from functools import cached_property

import numpy as np

from attn_cnn_jax import checkpoint as checkpoint_lib
from attn_cnn_jax.analysis.attention_maps import (
    AttentionMaps,
    MapBatches,
    attention_maps,
)
from attn_cnn_jax.analysis.closest_convolution import (
    ConvolutionTable,
    closest_convolutions,
)
from attn_cnn_jax.analysis.heads import (
    HeadTable,
    covered_offsets,
    head_statistics,
)
from attn_cnn_jax.analysis.images import ChosenImages
from attn_cnn_jax.analysis.learned_positions import GaussianHeads, quadratic_heads
from attn_cnn_jax.analysis.pictures import parse_query, reading_order
from attn_cnn_jax.covered_offsets import COVERING_MASS
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.run import Run

EPOCHS_KERNEL = 3  # whose R^2 is followed over the epochs


@dataclasses.dataclass(frozen=True)
class FigureRequest:
    """A run, the images to show it on, and how its figures show it.

    Each image of `shown` has a figure of its own; means and numbers are over the images
    of `sample`. `query` is "row,column" of the grid, or "" for the middle. `by_key`
    shows who attends to that pixel instead of what it attends to. `average` is the
    reading of the report's Eqn 4, `layer` (from 1) that of `centers_layer`. `reorder`
    sorts heads by the offset they look at. `threshold` is the mass from which an offset
    is covered. `kernel_sizes` are those of the closest convolutions, which the width
    decides where there are none. With `common_scale` all maps of a figure share one
    colour scale. What the figures share is computed once, when it is
    first needed.
    """

    run: Run
    shown: ChosenImages
    sample: ChosenImages
    query: str = ""
    by_key: bool = False
    average: str = "query"
    layer: int = 1
    reorder: bool = False
    threshold: float = COVERING_MASS
    kernel_sizes: tuple[int, ...] = ()
    common_scale: bool = False

    @cached_property
    def maps(self) -> AttentionMaps:
        """The attention maps of the shown images."""
        return attention_maps(
            self.run,
            self.shown.images,
            names=self.shown.names,
            indices=self.shown.indices,
        )

    @cached_property
    def batches(self) -> MapBatches:
        """The attention maps of the sample, one batch at a time."""
        sample = self.sample
        return MapBatches(self.run, sample.images, sample.names, sample.indices)

    @cached_property
    def numbers(self) -> HeadTable:
        """The numbers of every head over the sample."""
        table = head_statistics(self.batches, self.threshold)
        if not hasattr(getattr(self.run.model, "attention_layer", None), "gaussians"):
            return table
        layers = gaussian_heads(self.run)  # one of shared weights for all passes
        degenerate = {
            name: layers.get(name, next(iter(layers.values()))).degenerate
            for name in self.batches.layers
        }
        heads = (
            dataclasses.replace(h, degenerate=degenerate[h.layer][h.head - 1])
            for h in table.heads
        )
        return dataclasses.replace(table, heads=tuple(heads))

    @cached_property
    def convolutions(self) -> ConvolutionTable:
        """The closest convolutions of every layer."""
        [table] = closest_convolutions(self.run, self.kernel_sizes)
        return dataclasses.replace(
            table, coverage=covered_offsets(self.batches, self.threshold)
        )

    @cached_property
    def convolution_epochs(self) -> list[ConvolutionTable]:
        """The closest 3 x 3 convolutions of every layer, of every checkpoint."""
        runs, sample = checkpoints(self.run), self.sample
        if len(runs) < 2:
            raise UserError(
                f"{self.run.name} has one checkpoint and no snapshots of other epochs "
                "(config.snapshot_every_epochs)."
            )
        tables = closest_convolutions(runs, [EPOCHS_KERNEL])
        return [
            dataclasses.replace(
                table,
                coverage=covered_offsets(
                    MapBatches(run, sample.images, sample.names, sample.indices),
                    self.threshold,
                ),
            )
            for run, table in zip(runs, tables, strict=True)
        ]

    @cached_property
    def order(self) -> list[np.ndarray] | None:
        """The heads of every layer in reading order, None where they stay."""
        if not self.reorder:
            return None
        offsets: dict[str, list] = {name: [] for name in self.maps.layers}
        for head in self.numbers.heads:
            offsets[head.layer].append(head.expected_offset)
        return [reading_order(np.array(o).reshape(-1, 2)) for o in offsets.values()]

    def grid_query(self, maps: AttentionMaps) -> tuple[int, int]:
        """Return the query pixel on the grid of the maps."""
        return parse_query(self.query, maps.probs[0].shape[2:4])


def gaussian_heads(run: Run) -> dict[str, GaussianHeads]:
    """Return the quadratic heads of a run on its grid, by layer."""
    return quadratic_heads(run.model, run.variables, run.layers[0][1].shape[2:4])


def checkpoints(run: Run) -> list[Run]:
    """Return the run at its snapshots and at its checkpoint, in the order of steps."""
    steps = sorted({*checkpoint_lib.snapshots(run.workdir), run.step})
    return [run if step == run.step else run.at(step) for step in steps]
