"""What a network learned of positions, from its parameters: Gaussians and scores."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from attn_cnn_jax.errors import UserError

QUADRATIC = ("quadratic_isotropic", "quadratic_nonisotropic")
POSITION_SCORED = ("learned_wo_content", "learned_w_content_v1")


@dataclasses.dataclass(frozen=True)
class GaussianHeads:
    """The quadratic heads of one layer: score = -1/2 (d - c)^T P (d - c).

    d is the offset, key minus query, (row, column) in pixels of the grid; c a center,
    P a precision matrix (symmetric).
    """

    centers: Float[np.ndarray, "N 2"]
    precisions: Float[np.ndarray, "N 2 2"]


def attention_name(config_model: Any) -> str:
    """The attention of a self-attention network, "" for other networks."""
    if config_model["name"] != "self_attention":
        return ""
    return config_model["attention"]["name"]


def quadratic_heads(
    config_model: Any, variables: Mapping[str, Any]
) -> dict[str, GaussianHeads]:
    """Centre and precision of every head, by layer (a shared block is one layer).

    A layer may have no heads.
    """
    if attention_name(config_model) not in QUADRATIC:
        raise UserError("only quadratic attention has centres to show.")
    heads = {}
    for name, layer in _attention_layers(config_model, variables):
        if "spreads" not in layer:
            heads[name] = GaussianHeads(np.zeros((0, 2)), np.zeros((0, 2, 2)))
            continue
        spreads = np.asarray(layer["spreads"], np.float64)
        if spreads.ndim == 1:
            precisions = spreads[:, None, None] ** 2 * np.eye(2)
        else:
            precisions = spreads @ spreads.transpose(0, 2, 1)
        heads[name] = GaussianHeads(np.asarray(layer["centers"], float), precisions)
    return heads


def position_scores(
    config_model: Any, variables: Mapping[str, Any], grid: tuple[int, int]
) -> dict[str, Float[np.ndarray, "_ rows columns"]]:
    """Learned scores of the offsets that a `grid` of H x W pixels has, by layer.

    [N, 2H - 1, 2W - 1], offset (row, column) at [row + H - 1, column + W - 1]; what the
    parameters hold beyond is never looked up and so never trained. The score is
    row_key . row[offset] + col_key . col[offset] (paper, section 4.3), as far as it
    does not depend on the image; where queries meet the positions there is no such
    table. A layer may have no heads.
    """
    if attention_name(config_model) not in POSITION_SCORED:
        raise UserError(
            f"only {' and '.join(POSITION_SCORED)} score offsets alike for all images."
        )
    tables = {}
    for name, layer in _attention_layers(config_model, variables):
        if "row_embeddings" not in layer:
            tables[name] = np.zeros((0, 2 * grid[0] - 1, 2 * grid[1] - 1))
            continue
        rows, cols = (
            _axis_scores(layer[f"{axis}_embeddings"], layer[f"{axis}_keys"], length)
            for axis, length in zip(("row", "col"), grid, strict=True)
        )
        tables[name] = (rows[:, :, None] + cols[:, None, :]).astype(np.float64)
    return tables


def _axis_scores(
    embeddings: Any, keys: Any, length: int
) -> Float[np.ndarray, "N offsets"]:
    """Scores of the offsets along an axis of that length, -(length - 1) first."""
    zero = len(embeddings) // 2
    there = slice(zero - length + 1, zero + length)
    return (np.asarray(embeddings)[there] @ np.asarray(keys)).T


def _attention_layers(config_model: Any, variables: Mapping[str, Any]):
    params = variables["params"]
    if config_model["share_weights"]:
        return [("all layers", params["block"]["attention"])]
    return [
        (f"layer {i + 1}", params[f"block_{i}"]["attention"])
        for i in range(config_model["num_layers"])
    ]
