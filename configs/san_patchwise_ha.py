"""Hierarchical Attention of patchwise SAN: Table 3, row 3, HA.

python -m attn_cnn_jax.main --config=configs/san_patchwise_ha.py

356,282 parameters; accuracy .912 in the report.
Another network than san_patchwise.py: 256 channels and 32 x 32 pixels throughout, and
attention reads the raw map. Evaluated in training mode, as the report did: its passes
share one set of running statistics, which fits none of them.
"""

from ml_collections import ConfigDict

from attn_cnn_jax.config import (
    base_config,
    report_training,
    san_hierarchical,
    san_training,
    with_options,
)


def get_config(options: str = "") -> ConfigDict:
    """Return the row's config; options: cifar10 (default), cifar100, digits."""
    config = base_config()
    config.model = san_hierarchical("patchwise")
    config.batch_size = 100
    config.schedule.warmup_epochs = 10.0
    config.evaluate_in_training_mode = True
    report_training(config)
    with_options(config, options)
    san_training(config)
    return config
