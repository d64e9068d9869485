"""The report's learned attention without content, 16 heads: Table 2, row 2.

python -m attn_cnn_jax.main --config=configs/learned_wo_content_report_16heads.py

13,973,610 parameters; accuracy .912 in the report. Its block is the report's own;
values are projected before mixing.
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
    config.model.update(num_heads=16, width=256, mlp_dim=400)
    config.model.attention.project_values = True
    report_training(config)
    return with_options(config, options)
