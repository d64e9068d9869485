"""The report's quadratic (non-isotropic) attention, 9 heads: Table 1, row 3.

python -m attn_cnn_jax.main --config=configs/quadratic_nonisotropic_report.py

11,124,606 parameters; accuracy .939 in the report. Its block is the report's
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
    config.model = self_attention("quadratic_nonisotropic_report")
    report_training(config)
    return with_options(config, options)
