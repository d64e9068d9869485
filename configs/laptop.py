"""A small quadratic-attention network for all of CIFAR-10 on a laptop's CPU.

python -m attn_cnn_jax.main --config=configs/laptop.py

525,334 parameters; 65.3 % on the test set after six epochs (docs/results.md).
"""

from ml_collections import ConfigDict

from attn_cnn_jax.config import base_config, self_attention, with_options


def get_config(options: str = "") -> ConfigDict:
    """Return the example's config; options: cifar10 (default), cifar100, digits."""
    config = base_config()
    config.model = self_attention("quadratic_isotropic")
    config.model.update(patch_size=4, width=96, mlp_dim=192, num_layers=4)
    # So few epochs do not overfit: without dropout they learn more.
    config.model.dropout_rate = 0.0
    config.model.attention.dropout_rate = 0.0
    config.model.attention.center_std = 1.0  # near the pixel, on a grid of 8 x 8
    config.batch_size = 50
    config.num_epochs = 6
    config.optimizer.learning_rate = 0.03
    config.schedule.warmup_epochs = 0.2
    config.log_every_steps = 50
    config.snapshot_every_epochs = 1
    return with_options(config, options)
