"""The attention maps of every layer of a checkpoint, for some images."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class AttentionMaps:
    """What every layer of one checkpoint attends to, for some images.

    `kind` "grid": `probs` of a layer are [B or 1, N, Hq, Wq, Hk, Wk]; a leading 1 says
    that they do not depend on the image. Without ViT's class token, whose mass is in
    `class_mass` ([B, N, Hq, Wq] a layer); rows then sum to 1 - class_mass.
    `kind` "taps" (SAN): [B, H, W, T, G], tap t = row * k + column of a k x k window
    around the pixel, G weight planes.
    """

    kind: str
    layers: tuple[str, ...]  # in the order of computation
    probs: tuple[np.ndarray, ...]  # float32, one a layer
    class_mass: tuple[np.ndarray, ...] | None
    images: np.ndarray  # uint8 [B, H, W, C], as the model saw them
    names: tuple[str, ...]  # what to call the images
    run: str
    step: int
    epoch: float
    softmaxed: bool = True  # False: SAN patchwise, whose weights may be negative
