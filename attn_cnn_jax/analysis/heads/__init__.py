"""Numbers that say "this head is a convolution", per head and per layer of a run.

    table = head_statistics(MapBatches(Run("runs/demo"), images))
    print(as_text(table))

The definitions are in the docstring of `HeadStatistics`.
"""

from attn_cnn_jax.analysis.heads.statistics import (
    HeadStatistics,
    HeadTable,
    LayerSummary,
    covered_offsets,
    head_statistics,
)
from attn_cnn_jax.analysis.heads.write import as_text, write_csv, write_json

__all__ = [
    "HeadStatistics",
    "HeadTable",
    "LayerSummary",
    "as_text",
    "covered_offsets",
    "head_statistics",
    "write_csv",
    "write_json",
]
