"""Numbers that say "this head is a convolution", per head and per layer of a run.

    table = head_statistics(MapBatches(Run("runs/demo"), images))
    print(as_text(table))

The definitions are in the docstring of `HeadStatistics`.
"""

from attn_cnn_jax.analysis.heads.statistics import (
    COVERING_MASS,
    HeadStatistics,
    HeadTable,
    LayerSummary,
    head_statistics,
    largest_kernel,
)
from attn_cnn_jax.analysis.heads.write import as_text, write_csv, write_json

__all__ = [
    "COVERING_MASS",
    "HeadStatistics",
    "HeadTable",
    "LayerSummary",
    "as_text",
    "head_statistics",
    "largest_kernel",
    "write_csv",
    "write_json",
]
