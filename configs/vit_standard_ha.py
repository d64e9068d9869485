"""Hierarchical Attention of the standard Vision Transformer on the report's stem.

python -m attn_cnn_jax.main --config=configs/vit_standard_ha.py

6,543,946 parameters; published nowhere: the partner of vit_standard.py.
"""

from ml_collections import ConfigDict

from attn_cnn_jax.config import base_config, report_training, vit, with_options


def get_config(options: str = "") -> ConfigDict:
    """Return the row's config; options: cifar10 (default), cifar100, digits."""
    config = base_config()
    config.model = vit("standard")
    config.model.share_weights = True
    config.batch_size = 32
    config.num_epochs = 100
    config.optimizer.learning_rate = 0.01
    config.schedule.warmup_epochs = 5.0
    report_training(config)
    return with_options(config, options)
