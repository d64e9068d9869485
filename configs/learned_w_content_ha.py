"""Hierarchical Attention of the report's learned layer, 9 heads: Table 3, row 1, HA.

python -m attn_cnn_jax.main --config=configs/learned_w_content_ha.py

4,754,122 parameters; accuracy .910 in the report. Its partner without sharing is
learned_w_content_report.py (the report compares with the paper's learned_w_content.py).
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
    config.model.share_weights = True
    report_training(config)
    return with_options(config, options)
