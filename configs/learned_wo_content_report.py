"""The report's learned attention without content, 9 heads: Table 1, row 4.

python -m attn_cnn_jax.main --config=configs/learned_wo_content_report.py

11,316,282 parameters; accuracy .904 in the report. Its block is the report's own:
ReLU, no linear map behind the heads' output, no dropout outside attention.
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
    config.model = self_attention("learned_wo_content_report")
    report_training(config)
    return with_options(config, options)
