"""The report's quadratic (isotropic) attention, 16 heads: Table 2, row 1.

python -m attn_cnn_jax.main --config=configs/quadratic_isotropic_report_16heads.py

7,882,794 parameters; accuracy .931 in the report. Its block is the report's
own (ReLU, no linear map behind the heads' output, no dropout outside attention), and so
is the column of its centres (README, "Where this differs from the papers").
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
    config.model.update(num_heads=16, width=256, mlp_dim=512)
    report_training(config)
    return with_options(config, options)
