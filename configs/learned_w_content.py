"""Learned relative attention with content (q.k and q.r), 9 heads: Table 1, row 5.

python -m attn_cnn_jax.main --config=configs/learned_w_content.py

29,484,282 parameters; accuracy .871 in the paper, .864 in the report.
"""

from ml_collections import ConfigDict

from attn_cnn_jax.config import base_config, self_attention, with_options


def get_config(options: str = "") -> ConfigDict:
    """Return the row's config; options: cifar10 (default), cifar100, digits."""
    config = base_config()
    config.model = self_attention("learned_w_content")
    return with_options(config, options)
