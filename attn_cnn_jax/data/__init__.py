"""Images in memory, and batches of them as a pure function of (seed, step).

`table` names the datasets, `prepared` reads those of TFDS out of the folders that
`folders` finds and `verified` knows, `dataset` is one in memory, and `batches` picks,
augments and normalizes its images.
"""

from attn_cnn_jax.data.batches import augment, epoch_rows, eval_rows, normalize
from attn_cnn_jax.data.dataset import Dataset, Split, channel_statistics
from attn_cnn_jax.data.folders import default_data_dir
from attn_cnn_jax.data.table import CIFAR_COUNTS, DATASETS, DatasetEntry, load

__all__ = [
    "CIFAR_COUNTS",
    "DATASETS",
    "Dataset",
    "DatasetEntry",
    "Split",
    "augment",
    "channel_statistics",
    "default_data_dir",
    "epoch_rows",
    "eval_rows",
    "load",
    "normalize",
]
