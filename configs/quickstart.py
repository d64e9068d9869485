"""A small quadratic-attention network on scikit-learn's 8 x 8 digits: `make demo`.

python -m attn_cnn_jax.main --config=configs/quickstart.py
"""

from ml_collections import ConfigDict

from attn_cnn_jax.config import base_config, self_attention, with_options


def get_config(options: str = "") -> ConfigDict:
    """Return the demo's config; options: digits (enlarged to 32 x 32), cifar10.

    The grid has 8 x 8 pixels: on fewer a head has little room to look elsewhere.
    """
    config = base_config()
    config.model = self_attention("quadratic_isotropic")
    config.model.update(width=40, mlp_dim=80, num_layers=2)
    # A small network on few images in few epochs: dropout would only slow it down.
    config.model.dropout_rate = 0.0
    config.model.attention.dropout_rate = 0.0
    config.model.attention.center_std = 1.0  # near the pixel
    config.batch_size = 50
    config.num_epochs = 110
    config.optimizer.learning_rate = 0.08
    config.schedule.warmup_epochs = 2.0
    config.eval_every_epochs = 10
    config.snapshot_every_epochs = 20
    with_options(config, options or "digits_8x8")
    config.model.patch_size = 1 if config.dataset.name == "digits_8x8" else 4
    return config
