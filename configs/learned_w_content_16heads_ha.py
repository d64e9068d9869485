"""Hierarchical Attention of the report's learned layer, 16 heads.

python -m attn_cnn_jax.main --config=configs/learned_w_content_16heads_ha.py

4,414,874 parameters; accuracy .877 in the logs of the report's authors. Values are
projected before mixing.
"""

from ml_collections import ConfigDict

from attn_cnn_jax.config import (
    base_config,
    report_training,
    self_attention,
    with_options,
)


def get_config(options: str = "") -> ConfigDict:
    """Return the row's config; options: cifar10 (default), cifar100, digits."""
    config = base_config()
    config.model = self_attention("learned_w_content_report")
    config.model.update(num_heads=16, width=256, mlp_dim=400)
    config.model.attention.project_values = True
    config.model.share_weights = True
    report_training(config)
    return with_options(config, options)
