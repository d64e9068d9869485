"""What parameters alone say of a network's heads: Gaussians, scores of offsets."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from attn_cnn_jax.analysis.plots import GaussianHeads
from attn_cnn_jax.errors import UserError

QUADRATIC = ("quadratic_isotropic", "quadratic_nonisotropic")
POSITION_SCORED = ("learned_wo_content", "learned_w_content_v1")


def attention_name(config_model: Any) -> str:
    """The attention of a self-attention network, "" for other networks."""
    if config_model["name"] != "self_attention":
        return ""
    return config_model["attention"]["name"]


def quadratic_heads(
    config_model: Any, variables: Mapping[str, Any]
) -> dict[str, GaussianHeads]:
    """Centre and precision of every head, by layer (a shared block is one layer)."""
    if attention_name(config_model) not in QUADRATIC:
        raise UserError("only quadratic attention has centres to show.")
    heads = {}
    for name, layer in _attention_layers(config_model, variables):
        spreads = np.asarray(layer["spreads"], np.float64)
        if spreads.ndim == 1:
            precisions = spreads[:, None, None] ** 2 * np.eye(2)
        else:
            precisions = spreads @ spreads.transpose(0, 2, 1)
        heads[name] = GaussianHeads(np.asarray(layer["centers"], float), precisions)
    return heads


def position_scores(
    config_model: Any, variables: Mapping[str, Any]
) -> dict[str, Float[np.ndarray, "N P P"]]:
    """Learned scores by offset (row, column) from -(P // 2), by layer.

    row_key . row[offset] + col_key . col[offset] (paper, section 4.3), as far as it
    does not depend on the image; where queries meet the positions there is no such
    table.
    """
    if attention_name(config_model) not in POSITION_SCORED:
        raise UserError(
            f"only {' and '.join(POSITION_SCORED)} score offsets alike for all images."
        )
    tables = {}
    for name, layer in _attention_layers(config_model, variables):
        rows, cols = (
            (
                np.asarray(layer[f"{axis}_embeddings"])
                @ np.asarray(layer[f"{axis}_keys"])
            ).T
            for axis in ("row", "col")
        )
        tables[name] = (rows[:, :, None] + cols[:, None, :]).astype(np.float64)
    return tables


def _attention_layers(config_model: Any, variables: Mapping[str, Any]):
    params = variables["params"]
    if config_model["share_weights"]:
        return [("all layers", params["block"]["attention"])]
    return [
        (f"layer {i + 1}", params[f"block_{i}"]["attention"])
        for i in range(config_model["num_layers"])
    ]
