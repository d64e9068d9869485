"""Positions as a network learned them: Gaussians and scores, from its parameters."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from flax import linen as nn
from jaxtyping import Float

from attn_cnn_jax import models
from attn_cnn_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class GaussianHeads:
    """The quadratic heads of one layer: score = -1/2 (d - c)^T P (d - c).

    d is the offset, key minus query, (row, column) in pixels of the grid; c a center,
    P a precision matrix (symmetric).
    """

    centers: Float[np.ndarray, "N 2"]
    precisions: Float[np.ndarray, "N 2 2"]


def quadratic_heads(
    model: nn.Module, variables: Mapping[str, Any]
) -> dict[str, GaussianHeads]:
    """Return centre and precision of every head, by layer (a shared block is one).

    A layer may have no heads. Raises a `UserError` for attention without centres.
    """
    gaussians = _fact(model, "gaussians", "only quadratic attention has centres.")
    heads = {}
    for layer in models.attention_params(model, variables):
        centers, precisions = np.zeros((0, 2)), np.zeros((0, 2, 2))
        if layer.num_heads:
            centers, precisions = gaussians(layer.params)
        heads[layer.name] = GaussianHeads(
            np.asarray(centers, float), np.asarray(precisions, float)
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
