"""What a figure is of: a run, the images to show it on, and how."""

import dataclasses
from functools import cached_property

import numpy as np

from attn_cnn_jax.analysis import plots
from attn_cnn_jax.analysis.attention_maps import (
    AttentionMaps,
    MapBatches,
    attention_maps,
    iter_attention_maps,
)
from attn_cnn_jax.analysis.heads import COVERING_MASS, HeadTable, head_statistics
from attn_cnn_jax.analysis.images import ChosenImages
from attn_cnn_jax.analysis.queries import parse_query
from attn_cnn_jax.run import Run


@dataclasses.dataclass(frozen=True)
class Subject:
    """A run, the images to show it on, and how.

    `shown`: images with a figure each. `many`: those that averages and numbers are
    over. `query`: "row,column" of the grid, "" for the middle. `layer` counts from 1.
    `by_key` shows who attends to the pixel instead of what it attends to.
    """

    run: Run
    shown: ChosenImages
    many: ChosenImages
    query: str = ""
    by_key: bool = False
    average: str = "query"
    layer: int = 1
    reorder: bool = False
    threshold: float = COVERING_MASS

    @cached_property
    def maps(self) -> AttentionMaps:
        """Of the shown images."""
        return attention_maps(
            self.run,
            self.shown.images,
            names=self.shown.names,
            indices=self.shown.indices,
        )

    @cached_property
    def batches(self) -> MapBatches:
        """Of the many images, batch by batch."""
        return iter_attention_maps(
            self.run, self.many.images, names=self.many.names, indices=self.many.indices
        )

    @cached_property
    def numbers(self) -> HeadTable:
        """The numbers of every head over the many images."""
        return head_statistics(self.batches, self.threshold)

    @cached_property
    def order(self) -> list[np.ndarray] | None:
        """For every layer its heads by the offset they look at; None to leave them."""
        if not self.reorder:
            return None
        offsets: dict[str, list] = {name: [] for name in self.maps.layers}
        for head in self.numbers.heads:
            offsets[head.layer].append(head.expected_offset)
        return [
            plots.reading_order(np.array(o).reshape(-1, 2)) for o in offsets.values()
        ]

    @property
    def title(self) -> str:
        """Run, model and checkpoint."""
        return self.run.title

    def grid_query(self, maps: AttentionMaps) -> tuple[int, int]:
        """The query pixel on the grid of the maps."""
        return parse_query(self.query, maps.probs[0].shape[2:4])
