"""Rules for the names and layouts of the original, epfml/attention-cnn."""

from collections.abc import Iterator
from typing import Any

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.interop.layouts import (
    FLAT,
    HEADS,
    LINEAR,
    SAME,
    Layout,
    Rule,
    convolution,
    dense,
    norm,
)

ORIGIN = "epfml/attention-cnn"

_OURS = r"block_(\d+)"
_THEIRS = r"encoder.layer.\1"


def _of_attention(ours: str, theirs: str, layout: Layout) -> Rule:
    return f"{_OURS}/attention/{ours}", rf"{_THEIRS}.attention.self.{theirs}", layout


_NETWORK = (
    *dense("embedding", "features_upscale"),
    *dense(f"{_OURS}/attention_dense", f"{_THEIRS}.attention.output.dense"),
    *norm(f"{_OURS}/attention_norm", f"{_THEIRS}.attention.output.LayerNorm"),
    *dense(f"{_OURS}/mlp_in", f"{_THEIRS}.intermediate.dense"),
    *dense(f"{_OURS}/mlp_out", f"{_THEIRS}.output.dense"),
    *norm(f"{_OURS}/mlp_norm", f"{_THEIRS}.output.LayerNorm"),
    *dense("classifier", "classifier"),
)
_VALUE = (
    _of_attention("value_kernel", "value.weight", HEADS),
    _of_attention("value_bias", "value.bias", SAME),
)
_QUADRATIC = (
    _of_attention("centers", "attention_centers", SAME),
    _of_attention("spreads", "attention_spreads", SAME),
    *_VALUE,
)
_QUERY = (
    _of_attention("query_kernel", "query.weight", LINEAR),
    _of_attention("query_bias", "query.bias", FLAT),
)
_KEY = (
    _of_attention("key_kernel", "key.weight", LINEAR),
    _of_attention("key_bias", "key.bias", FLAT),
)
# Where queries meet the tables, the original's rows are the rows of the image.
_QUERY_TABLES = (
    _of_attention("row_embeddings", "row_embeddings.weight", SAME),
    _of_attention("col_embeddings", "col_embeddings.weight", SAME),
)
# Elsewhere its "row" tables follow the columns of the image, and the other way round.
_KEY_TABLES = (
    _of_attention("row_embeddings", "col_embeddings.weight", SAME),
    _of_attention("col_embeddings", "row_embeddings.weight", SAME),
    _of_attention("row_keys", "head_keys_col.weight", LINEAR),
    _of_attention("col_keys", "head_keys_row.weight", LINEAR),
)
_ATTENTIONS: dict[str, tuple[Rule, ...]] = {
    "quadratic_isotropic": _QUADRATIC,
    "quadratic_nonisotropic": _QUADRATIC,
    "learned_wo_content": (*_KEY_TABLES, *_VALUE),
    "learned_w_content": (*_QUERY_TABLES, *_QUERY, *_KEY, *_VALUE),
    "learned_query_position": (*_QUERY_TABLES, *_QUERY, *_VALUE),
    "learned_w_content_v1": (*_KEY_TABLES, *_QUERY, *_KEY, *_VALUE),
    "multi_head": tuple(
        rule
        for name in ("query", "key", "value")
        for rule in dense(
            f"{_OURS}/attention/{name}", f"{_THEIRS}.attention.self.{name}"
        )
    ),
}


def _resnet_rules() -> Iterator[Rule]:
    yield from convolution("stem_", "conv1", "bn1")
    for stage in range(4):
        ours, theirs = rf"stage_{stage}_block_(\d+)/", rf"layer{stage + 1}.\1."
        yield from convolution(rf"{ours}(\d)_", rf"{theirs}conv\2", rf"{theirs}bn\2")
        shortcut = f"{theirs}shortcut"
        yield from convolution(f"{ours}shortcut_", f"{shortcut}.0", f"{shortcut}.1")
    yield from dense("classifier", "linear")


def rules(config_model: Any) -> tuple[Rule, ...]:
    """Return the rules of a network; `UserError` if the original has none like it."""
    if "attention" not in config_model:
        return tuple(_resnet_rules())
    name = config_model["attention"]["name"]
    if name not in _ATTENTIONS:
        raise UserError(f"{name} is not an attention of {ORIGIN}.")
    return *_NETWORK, *_ATTENTIONS[name]
