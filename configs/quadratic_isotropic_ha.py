"""Hierarchical Attention of the paper's quadratic (isotropic) block, 9 heads.

python -m attn_cnn_jax.main --config=configs/quadratic_isotropic_ha.py

2,022,149 parameters; published nowhere. The .928 in the logs of the report's authors is
of their own block: quadratic_isotropic_report_ha.py.
"""

from ml_collections import ConfigDict

from attn_cnn_jax.config import base_config, self_attention, with_options


def get_config(options: str = "") -> ConfigDict:
    """Return the row's config; options: cifar10 (default), cifar100, digits."""
    config = base_config()
    config.model = self_attention("quadratic_isotropic")
    config.model.share_weights = True
    return with_options(config, options)
