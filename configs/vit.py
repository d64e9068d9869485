"""The report's Vision Transformer on a ResNet stem: Table 3, row 4.

python -m attn_cnn_jax.main --config=configs/vit.py

37,394,506 parameters; accuracy .843 in the report.
"""

from ml_collections import ConfigDict

from attn_cnn_jax.config import base_config, report_training, vit, with_options


def get_config(options: str = "") -> ConfigDict:
    """Return the row's config; options: cifar10 (default), cifar100, digits."""
    config = base_config()
    config.model = vit("report")
    config.batch_size = 32
    config.num_epochs = 100
    config.optimizer.learning_rate = 0.01
    config.schedule.warmup_epochs = 5.0
    report_training(config)
    return with_options(config, options)
