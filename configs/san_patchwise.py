"""Patchwise SAN: Table 3, row 3.

python -m attn_cnn_jax.main --config=configs/san_patchwise.py

3,851,142 parameters; accuracy .857 in the report.
The report prints the count of the pairwise network for this one too.
"""

from ml_collections import ConfigDict

from attn_cnn_jax.config import base_config, san, san_training, with_options


def get_config(options: str = "") -> ConfigDict:
    """Return the row's config; options: cifar10 (default), cifar100, digits."""
    config = base_config()
    config.model = san("patchwise")
    config.batch_size = 256
    config.schedule.update(name="multistep", drop_epochs=(100, 200, 250))
    with_options(config, options)
    san_training(config)
    return config
