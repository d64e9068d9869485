"""Quadratic (isotropic) attention, 16 heads of width 256: Table 2, row 1.

python -m attn_cnn_jax.main --config=configs/quadratic_isotropic_16heads.py

8,277,546 parameters; accuracy .931 in the report.
"""

from ml_collections import ConfigDict

from attn_cnn_jax.config import base_config, self_attention, with_options


def get_config(options: str = "") -> ConfigDict:
    """Return the row's config; options: cifar10 (default), cifar100, digits."""
    config = base_config()
    config.model = self_attention("quadratic_isotropic")
    config.model.update(num_heads=16, width=256, mlp_dim=512)
    return with_options(config, options)
