"""Positions as a network learned them: Gaussians and scores, from its parameters."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from flax import linen as nn
from jaxtyping import Float

from attn_cnn_jax import models
from attn_cnn_jax.covered_offsets import Interior
from attn_cnn_jax.errors import UserError

UNIFORM_KEYS = 0.95  # the share of the keys from which on they count as all
MAX_CONDITION = 1000.0  # of the original
UNIFORM = "uniform"


@dataclasses.dataclass(frozen=True)
class GaussianHeads:
    """The quadratic heads of one layer: score = -1/2 (d - c)^T P (d - c).

    d is the offset, key minus query, (row, column) in pixels of the `grid`; c a center,
    P a precision matrix (symmetric).
    """

    centers: Float[np.ndarray, "N 2"]
    precisions: Float[np.ndarray, "N 2 2"]
    grid: tuple[int, int]

    @property
    def degenerate(self) -> tuple[str, ...]:
        """What is degenerate about each head, "" for nothing.

        "uniform": it looks at all keys alike, see `is_uniform`; "strip": it looks along
        a line, for its precision has a condition number above `MAX_CONDITION`.
        """
        reasons = []
        for precision, entropy in zip(self.precisions, self.entropies(), strict=True):
            if np.isnan(entropy):
                reasons.append("not finite")
            elif is_uniform(entropy, math.prod(self.grid)):
                reasons.append(UNIFORM)
            else:
                low, high = np.linalg.eigvalsh(precision)
                reasons.append("strip" if high > MAX_CONDITION * max(low, 0) else "")
        return tuple(reasons)

    def entropies(self) -> Float[np.ndarray, "N"]:
        """Return the entropy of each head, nats, as `HeadStatistics` defines it.

        Of a grid without interior queries all count. A head that is not finite has nan.
        """
        interior = Interior.of_shape((1, 1, *self.grid, *self.grid))
        rows, columns = (
            (interior.row_offsets, interior.column_offsets)
            if interior
            else (np.arange(n)[None] - np.arange(n)[:, None] for n in self.grid)
        )
        shape = len(rows), len(columns), *self.grid
        offsets = np.stack(
            [
                np.broadcast_to(rows[:, None, :, None], shape),
                np.broadcast_to(columns[None, :, None, :], shape),
            ],
            axis=-1,
        )
        return np.array(
            [
                _mean_entropy(_scores(offsets - center, precision))
                for center, precision in zip(self.centers, self.precisions, strict=True)
            ]
        )


def _scores(
    from_center: Float[np.ndarray, "Hq Wq H W 2"], precision: Float[np.ndarray, "2 2"]
) -> Float[np.ndarray, "Hq Wq H W"]:
    if not (np.isfinite(from_center).all() and np.isfinite(precision).all()):
        return np.full(from_center.shape[:-1], np.nan)
    squares = np.einsum("ijacx,xy,ijacy->ijac", from_center, precision, from_center)
    return -0.5 * squares


def _mean_entropy(scores: Float[np.ndarray, "Hq Wq H W"]) -> float:
    """Return the mean over queries of -sum p log p, p the softmax over the keys."""
    scores = scores - scores.max(axis=(2, 3), keepdims=True)
    weights = np.exp(scores)
    total = weights.sum(axis=(2, 3))
    entropies = np.log(total) - (weights * scores).sum(axis=(2, 3)) / total
    return float(entropies.mean())


def is_uniform(entropy: float, num_keys: int) -> bool:
    """Return whether a head of this entropy, nats, looks at all keys alike.

    e to the entropy is the number of keys that it looks at: among so many equal ones a
    head has this entropy. From 95 % of all keys on it counts as all of them.
    """
    return num_keys > 1 and math.exp(entropy) >= UNIFORM_KEYS * num_keys


def quadratic_heads(
    model: nn.Module, variables: Mapping[str, Any], grid: tuple[int, int]
) -> dict[str, GaussianHeads]:
    """Return the heads of every layer on the grid, by its name (a shared block is one).

    A layer may have no heads. Raises a `UserError` for attention without centres.
    """
    gaussians = _fact(model, "gaussians", "only quadratic attention has centres.")
    heads = {}
    for layer in models.attention_params(model, variables):
        centers, precisions = np.zeros((0, 2)), np.zeros((0, 2, 2))
        if layer.num_heads:
            centers, precisions = gaussians(layer.params)
        heads[layer.name] = GaussianHeads(
            np.asarray(centers, float), np.asarray(precisions, float), grid
        )
    return heads


def position_scores(
    model: nn.Module, variables: Mapping[str, Any], grid: tuple[int, int]
) -> dict[str, Float[np.ndarray, "_ rows columns"]]:
    """Return the learned scores of the offsets of a `grid` of H x W pixels, by layer.

    [N, 2H - 1, 2W - 1], see `offset_scores` of the layer. A layer may have no
    heads. Raises a `UserError` for attention that does not score offsets alike for all
    images.
    """
    complaint = "only positions that meet no query score offsets alike for all images."
    scores = _fact(model, "offset_scores", complaint)
    tables = {}
    for layer in models.attention_params(model, variables):
        table = np.zeros((0, 2 * grid[0] - 1, 2 * grid[1] - 1))
        if layer.num_heads:
            table = scores(layer.params, grid)
        tables[layer.name] = np.asarray(table, np.float64)
    return tables


def _fact(model: nn.Module, name: str, complaint: str) -> Any:
    fact = getattr(getattr(model, "attention_layer", None), name, None)
    if fact is None:
        raise UserError(complaint)
    return fact
