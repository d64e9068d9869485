"""Learned relative attention without content, 9 heads: Table 1, row 4.

python -m attn_cnn_jax.main --config=configs/learned_wo_content.py

12,278,682 parameters; accuracy .918 in the paper, .904 in the report.
"""

from ml_collections import ConfigDict

from attn_cnn_jax.config import base_config, self_attention, with_options


def get_config(options: str = "") -> ConfigDict:
    """Return the row's config; options: cifar10 (default), cifar100, digits."""
    config = base_config()
    config.model = self_attention("learned_wo_content")
    return with_options(config, options)
