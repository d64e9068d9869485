"""The report's quadratic (isotropic) attention, 9 heads: Table 1, row 2, its column.

python -m attn_cnn_jax.main --config=configs/quadratic_isotropic_report.py

11,124,444 parameters; accuracy .943 in the report. Its block is the report's
own (ReLU, no linear map behind the heads' output, no dropout outside attention), and so
is the column of its centres (README, "Where this differs from the papers").
Its Table 4 says batches of 100, the config of its code 32: that is the option batch32.
"""

from ml_collections import ConfigDict

from attn_cnn_jax.config import (
    base_config,
    report_training,
    self_attention,
    with_options,
)


def get_config(options: str = "") -> ConfigDict:
    """Return the row's config; options: batch32, cifar10, cifar100, digits."""
    config = base_config()
    config.model = self_attention("quadratic_isotropic_report")
    report_training(config)
    return with_options(config, options, {"batch32": {"batch_size": 32}})
