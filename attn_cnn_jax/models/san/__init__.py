"""SAN (Zhao, Jia and Koltun, CVPR 2020), without CUDA kernels.

`subtract`, `aggregate` and `Bottleneck` are its parts; `SANS` its networks by name.
"""

from functools import partial

from attn_cnn_jax.models.san.bottleneck import Bottleneck, NeighbourhoodAttention
from attn_cnn_jax.models.san.networks import SAN, HierarchicalSAN
from attn_cnn_jax.models.san.taps import aggregate, neighbourhoods, subtract

__all__ = [
    "SAN",
    "SANS",
    "Bottleneck",
    "HierarchicalSAN",
    "NeighbourhoodAttention",
    "aggregate",
    "neighbourhoods",
    "subtract",
]

_IMAGENET = partial(
    SAN,
    widths=(64, 256, 512, 1024, 2048),
    kernel_sizes=(3, 7, 7, 7, 7),
    projection_bias=True,
)
SANS = {
    "san": SAN,
    "san_hierarchical": HierarchicalSAN,
    "san10": partial(_IMAGENET, num_blocks=(2, 1, 2, 4, 1)),
    "san15": partial(_IMAGENET, num_blocks=(3, 2, 3, 5, 2)),
    "san19": partial(_IMAGENET, num_blocks=(3, 3, 4, 6, 3)),
}
