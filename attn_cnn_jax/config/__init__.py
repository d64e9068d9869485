"""Configs: the schema of a run, the blocks of its model, and checks of both."""

from attn_cnn_jax.config.checks import check
from attn_cnn_jax.config.files import folder, read_file
from attn_cnn_jax.config.meanings import MEANINGS
from attn_cnn_jax.config.model_blocks import (
    IMAGENET_SANS,
    RESNETS,
    RESNETS_AS_ATTENTION,
    resnet,
    resnet_as_attention,
    san,
    san_hierarchical,
    self_attention,
    vit,
)
from attn_cnn_jax.config.record import (
    RESUMABLE,
    changes,
    differences,
    flatten,
    from_dict,
    to_json,
)
from attn_cnn_jax.config.schema import (
    base_config,
    optimizer,
    report_training,
    san_training,
    with_options,
)
from attn_cnn_jax.config.workdir import default_workdir

__all__ = [
    "IMAGENET_SANS",
    "MEANINGS",
    "RESNETS",
    "RESNETS_AS_ATTENTION",
    "RESUMABLE",
    "base_config",
    "changes",
    "check",
    "default_workdir",
    "differences",
    "flatten",
    "folder",
    "from_dict",
    "optimizer",
    "read_file",
    "report_training",
    "resnet",
    "resnet_as_attention",
    "san",
    "san_hierarchical",
    "san_training",
    "self_attention",
    "to_json",
    "vit",
    "with_options",
]
