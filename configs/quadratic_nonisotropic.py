"""Quadratic (non-isotropic Gaussian) attention, 9 heads: Table 1, row 3.

python -m attn_cnn_jax.main --config=configs/quadratic_nonisotropic.py

12,087,006 parameters; accuracy .934 in the paper, .939 in the report.
"""

from ml_collections import ConfigDict

from attn_cnn_jax.config import base_config, self_attention, with_options


def get_config(options: str = "") -> ConfigDict:
    """Return the row's config; options: cifar10 (default), cifar100, digits."""
    config = base_config()
    config.model = self_attention("quadratic_nonisotropic")
    return with_options(config, options)
