"""Images in memory, and batches of them as a pure function of (seed, step).

`table` names the datasets, `prepared` reads those of TFDS, `dataset` is one in memory,
and `batches` picks, augments and normalizes its images.
"""

from attn_cnn_jax.data.batches import augment, epoch_rows, eval_rows, normalize
from attn_cnn_jax.data.dataset import Dataset, Split, channel_statistics
from attn_cnn_jax.data.table import DATASETS, DatasetEntry, load

__all__ = [
    "DATASETS",
    "Dataset",
    "DatasetEntry",
    "Split",
    "augment",
    "channel_statistics",
    "epoch_rows",
    "eval_rows",
    "load",
    "normalize",
]
