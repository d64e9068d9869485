"""Rules for the networks that are the report's own.

The rules use short names. `published` turns them into those of the report's modules,
whose saved file is a dict of state dicts: `{"encoder": ..., "conv": ..., "clf": ...}`.
"""

import re
from collections.abc import Iterable
from typing import Any

from attn_cnn_jax.interop.layouts import (
    HEADS,
    LINEAR,
    SAME,
    TO_HEADS,
    Rule,
    convolution,
    dense,
    norm,
    patch_layout,
)


def _blocks(config_model: Any) -> tuple[str, str]:
    """Return our path of a block and its name there; a shared one is their first."""
    if config_model["share_weights"]:
        return "block", "blocks.0"
    return r"block_(\d+)", r"blocks.\1"


def learned(config_model: Any) -> tuple[Rule, ...]:
    """Return the rules of the learned attention with content, shared or not."""
    ours, theirs = _blocks(config_model)
    projects = config_model["attention"]["project_values"]
    behind = "out" if projects else "value"
    return (
        *dense("embedding", "feature_upscale"),
        (f"{ours}/attention/query_kernel", f"{theirs}.query.weight", LINEAR),
        (f"{ours}/attention/key_kernel", f"{theirs}.key.weight", LINEAR),
        (
            f"{ours}/attention/value_projection_kernel",
            f"{theirs}.value.weight",
            TO_HEADS,
        ),
        (f"{ours}/attention/value_kernel", f"{theirs}.{behind}.weight", HEADS),
        (f"{ours}/attention/value_bias", f"{theirs}.{behind}.bias", SAME),
        (f"{ours}/attention/row_embeddings", f"{theirs}.row_embeddings.weight", SAME),
        (f"{ours}/attention/col_embeddings", f"{theirs}.col_embeddings.weight", SAME),
        *norm(f"{ours}/attention_norm", f"{theirs}.layer_norm"),
        *dense(f"{ours}/mlp_in", f"{theirs}.fc1"),
        *dense(f"{ours}/mlp_out", f"{theirs}.fc2"),
        *norm(f"{ours}/mlp_norm", f"{theirs}.layer_norm2"),
        *dense("classifier", "fc"),
    )


def vision_transformer(config_model: Any) -> tuple[Rule, ...]:
    """Return the rules of the report's Vision Transformer, shared or not."""
    ours, theirs = _blocks(config_model)
    return (
        *convolution("stem/", "stem.0", "stem.1"),
        *convolution(r"stem/block_(\d)/(\d)_", r"stem.3.\1.conv\2", r"stem.3.\1.bn\2"),
        *dense(
            "embedding", "feature_upscale", patch_layout(config_model["patch_size"])
        ),
        ("positions", "position_embedding.weight", SAME),
        *(
            rule
            for name in ("query", "key", "value")
            for rule in dense(f"{ours}/attention/{name}", f"{theirs}.attention.{name}")
        ),
        *dense(f"{ours}/attention/output", f"{theirs}.attention.out", HEADS),
        *norm(f"{ours}/attention_norm", f"{theirs}.attention.layer_norm"),
        *dense(f"{ours}/mlp_in", f"{theirs}.feedfwd.fc_1"),
        *dense(f"{ours}/mlp_out", f"{theirs}.feedfwd.fc_2"),
        *norm(f"{ours}/mlp_norm", f"{theirs}.feedfwd.layer_norm"),
        *dense("classifier", "fc"),
    )


# The report's modules begin a name as on the right where the rules do as on the left.
_PUBLISHED = (
    (r"stem\.", "resnet."),
    (r"(enc_layer\.[^.]+)\.sam\.", r"\1.attention."),
    (r"(blocks\.[^.]+)\.layer_norm2\.", r"\1.feedfwd.layer_norm."),
    (r"(blocks\.[^.]+)\.fc", r"\1.feedfwd.fc"),
    (r"(blocks\.[^.]+)\.(?!attention|feedfwd)", r"\1.attention."),
    (r"blocks\.0\.", "block."),
)
_MODULE = re.compile(r"(encoder|patch(er)?|conv|clf)[./](module\.)?")


def published(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Return the rules with the names of the report's published modules."""
    renamed = []
    for ours, theirs, layout in rules:
        for pattern, replacement in _PUBLISHED:
            theirs = re.sub(f"^{pattern}", replacement, theirs)
        renamed.append((ours, theirs, layout))
    return tuple(renamed)


def without_module(name: str) -> str:
    """Return a tensor's name in a saved file without its module's."""
    return name.removeprefix(match[0]) if (match := _MODULE.match(name)) else name
