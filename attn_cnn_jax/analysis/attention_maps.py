"""What every layer of a checkpoint attends to."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class AttentionMaps:
    """What every layer of one checkpoint attends to, for some images.

    `kind` "grid": probs are [B or 1, N, Hq, Wq, Hk, Wk], query then key pixel; "taps":
    [B, H, W, T, G], tap t = row * k + column of a k x k window around the pixel.
    """

    kind: str  # "grid" (self_attention, vit) or "taps" (SAN)
    layers: tuple[str, ...]  # in the order of computation: "layer 1", ...
    probs: tuple[np.ndarray, ...]  # float32, one a layer
    class_mass: tuple[np.ndarray, ...] | None  # ViT: [B, N, Hq, Wq]
    images: np.ndarray  # uint8 [B, H, W, C], before normalisation
    names: tuple[str, ...]  # of the images, e.g. "test image 16 (dog)"
    run: str  # e.g. "learned_wo_content_seed42"
    step: int  # of the checkpoint
    epoch: float
    softmaxed: bool = True  # False: SAN patchwise, whose weights may be negative
