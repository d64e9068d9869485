"""Quadratic (isotropic Gaussian) attention, 9 heads: Table 1, row 2.

python -m attn_cnn_jax.main --config=configs/quadratic_isotropic.py

12,086,844 parameters; accuracy .938 in the paper, .943 in the report.
"""

from ml_collections import ConfigDict

from attn_cnn_jax.config import base_config, self_attention, with_options


def get_config(options: str = "") -> ConfigDict:
    """Return the row's config; options: cifar10 (default), cifar100, digits."""
    config = base_config()
    config.model = self_attention("quadratic_isotropic")
    return with_options(config, options)
