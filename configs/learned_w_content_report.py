"""The report's own learned attention with content, 9 heads, nothing shared.

python -m attn_cnn_jax.main --config=configs/learned_w_content_report.py

28,478,682 parameters; accuracy .864 in the report. No bias in queries and keys, no
linear map behind the heads' output, ReLU: the clean partner of learned_w_content_ha.py.
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
    config.model = self_attention("learned_w_content_report")
    report_training(config)
    return with_options(config, options)
