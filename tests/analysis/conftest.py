"""Maps of heads written down by hand."""

from collections.abc import Sequence

import numpy as np
import pytest

from attn_cnn_jax.analysis.attention_maps import AttentionMaps


class Heads:
    """Probabilities of one head each, [Hq, Wq, Hk, Wk], and maps made of them."""

    def dirac(self, offset: tuple[int, int], grid: tuple[int, int]) -> np.ndarray:
        """All on query + offset, or on the query itself where that is outside."""
        probs = np.zeros((*grid, *grid), np.float32)
        for row in range(grid[0]):
            for column in range(grid[1]):
                key = row + offset[0], column + offset[1]
                inside = 0 <= key[0] < grid[0] and 0 <= key[1] < grid[1]
                probs[(row, column, *(key if inside else (row, column)))] = 1
        return probs

    def uniform(self, grid: tuple[int, int]) -> np.ndarray:
        """The same for all keys."""
        return np.full((*grid, *grid), 1 / (grid[0] * grid[1]), np.float32)

    def fixed(self, key: tuple[int, int], grid: tuple[int, int]) -> np.ndarray:
        """All on one pixel, whatever the query."""
        probs = np.zeros((*grid, *grid), np.float32)
        probs[:, :, key[0], key[1]] = 1
        return probs

    def random(self, *shape: int, seed: int = 0) -> np.ndarray:
        """Softmax of noise over the last two axes."""
        scores = np.random.default_rng(seed).normal(size=shape)
        probs = np.exp(2 * scores)
        return (probs / probs.sum(axis=(-2, -1), keepdims=True)).astype(np.float32)

    def maps(
        self,
        *layers: np.ndarray,
        num_images: int = 1,
        kind: str = "grid",
        class_mass: Sequence[np.ndarray] | None = None,
        softmaxed: bool = True,
    ) -> AttentionMaps:
        """Layers [B or 1, N, ...] as `AttentionMaps` of blank images."""
        return AttentionMaps(
            kind=kind,
            layers=tuple(f"layer {i + 1}" for i in range(len(layers))),
            probs=layers,
            class_mass=None if class_mass is None else tuple(class_mass),
            images=np.zeros((num_images, 8, 8, 1), np.uint8),
            names=tuple(f"image {i + 1}" for i in range(num_images)),
            run="by_hand_seed1",
            step=20,
            epoch=2.5,
            softmaxed=softmaxed,
        )


@pytest.fixture
def heads() -> Heads:
    return Heads()
