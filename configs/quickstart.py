"""A small quadratic-attention network on scikit-learn's 8 x 8 digits: `make demo`.

python -m attn_cnn_jax.main --config=configs/quickstart.py
"""

from ml_collections import ConfigDict

from attn_cnn_jax.config import base_config, self_attention, with_options


def get_config(options: str = "") -> ConfigDict:
    """The demo; options: digits (the same images, enlarged to 32 x 32), cifar10."""
    config = base_config()
    config.model = self_attention("quadratic_isotropic")
    config.model.update(patch_size=1, width=64, mlp_dim=128, num_layers=3)
    config.dataset.update(name="digits_8x8", crop_padding=0, flip=False)
    config.num_epochs = 30
    config.schedule.warmup_epochs = 2.0
    config.snapshot_every_epochs = 10
    return with_options(config, options)
