"""A small quadratic-attention network on scikit-learn's 8 x 8 digits: `make demo`.

python -m attn_cnn_jax.main --config=configs/quickstart.py
"""

from ml_collections import ConfigDict

from attn_cnn_jax.config import base_config, self_attention, with_options


def get_config(options: str = "") -> ConfigDict:
    """Return the demo's config; options: digits (enlarged to 32 x 32), cifar10."""
    config = base_config()
    config.model = self_attention("quadratic_isotropic")
    config.model.update(patch_size=2, width=64, mlp_dim=128, num_layers=3)
    # A small network on few images in few epochs: dropout would only slow it down.
    config.model.dropout_rate = 0.0
    config.model.attention.dropout_rate = 0.0
    config.model.attention.center_std = 1.0  # near the pixel, on a grid of 4 x 4
    config.batch_size = 50
    config.num_epochs = 70
    config.optimizer.learning_rate = 0.03
    config.schedule.warmup_epochs = 2.0
    config.snapshot_every_epochs = 10
    return with_options(config, options or "digits_8x8")
