"""Hierarchical Attention of the report's quadratic (isotropic) attention, 9 heads.

python -m attn_cnn_jax.main --config=configs/quadratic_isotropic_report_ha.py

1,861,749 parameters; accuracy .928 in the logs of the report's authors. Its partner
without sharing is quadratic_isotropic_report.py.
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
    config.model = self_attention("quadratic_isotropic_report")
    config.model.share_weights = True
    report_training(config)
    return with_options(config, options)
