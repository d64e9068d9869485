"""Learned relative attention without content, 16 heads: Table 2, row 2.

python -m attn_cnn_jax.main --config=configs/learned_wo_content_16heads.py

8,421,642 parameters; accuracy .912 in the report.
"""

from ml_collections import ConfigDict

from attn_cnn_jax.config import base_config, self_attention, with_options


def get_config(options: str = "") -> ConfigDict:
    """Return the row's config; options: cifar10 (default), cifar100, digits."""
    config = base_config()
    config.model = self_attention("learned_wo_content")
    config.model.update(num_heads=16, width=256, mlp_dim=512)
    return with_options(config, options)
