"""A CIFAR data set in memory, its official numbers, and the check that it is whole."""

import dataclasses
import hashlib

import numpy as np
from jaxtyping import Integer, UInt8

from attn_cnn_jax.data import CIFAR_COUNTS
from attn_cnn_jax.errors import UserError

# Classes of each label, in the order of the label bytes of the binary layout.
LABELS = {"cifar10": {"label": 10}, "cifar100": {"coarse_label": 20, "label": 100}}
# sha256 of a split in the official order: the labels, a byte each, then the pixels of
# the images, row by row, red, green and blue of a pixel together.
DIGESTS = {
    "cifar10": {
        "train": "d12c98b5c6d1c8f3ee705d14ab38dccf995510e8044d36d18154ece4e3b8060f",
        "test": "1695efc9dc931b768f20f5cb2956256bc3a12eba128a3d7f6f8a6a6910d3b57e",
    },
    "cifar100": {},
}


@dataclasses.dataclass(frozen=True)
class Split:
    """Images and, for each kind of label, the labels of one split, in order."""

    images: UInt8[np.ndarray, "N 32 32 3"]
    labels: dict[str, Integer[np.ndarray, " N"]]

    def digest(self) -> str:
        """Return the sha256 (hex) of the split, as `DIGESTS` records it."""
        digest = hashlib.sha256()
        for kind in sorted(self.labels):
            digest.update(self.labels[kind].astype(np.uint8).tobytes())
        digest.update(np.ascontiguousarray(self.images).data)
        return digest.hexdigest()


@dataclasses.dataclass(frozen=True)
class Cifar:
    """A whole data set in memory: `name` is cifar10 or cifar100."""

    name: str
    splits: dict[str, Split]
    label_names: dict[str, list[str]]

    def check(self, where: str, *, allow_partial: bool) -> None:
        """Raise a `UserError` unless shapes, labels and counts are right.

        With `allow_partial` a split may have fewer records than the official one, but
        at least one.
        """
        for kind, classes in LABELS[self.name].items():
            names = self.label_names[kind]
            if len(names) != classes or len(set(names)) != classes:
                raise UserError(
                    f"{where} names {len(set(names))} classes for {kind}, not "
                    f"{classes}: use an undamaged copy of {self.name}."
                )
        for name, count in CIFAR_COUNTS.items():
            split = self.splits[name]
            for kind, classes in LABELS[self.name].items():
                check_labels(split.labels[kind], classes, f"{where}: {kind} of {name}")
            check_count(len(split.images), count, f"{where}: {name}", allow_partial)

    def is_official(self) -> bool | None:
        """Return True if pixels, labels and order are official, None if unknown."""
        digests = DIGESTS[self.name]
        if not digests:
            return None
        return all(self.splits[name].digest() == digests[name] for name in digests)


def check_labels(labels: Integer[np.ndarray, " N"], classes: int, where: str) -> None:
    """Raise a `UserError` at a label outside 0 ... classes - 1."""
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if wrong.size:
        raise UserError(
            f"{where}: record {wrong[0]} has the label {labels[wrong[0]]}, beyond "
            f"{classes - 1}. The copy is damaged or of another kind."
        )


def check_count(found: int, official: int, where: str, allow_partial: bool) -> None:
    """Raise a `UserError` unless there are `official` records (or some of them)."""
    if found == official or (allow_partial and 0 < found < official):
        return
    hint = " (--allow_partial accepts fewer)" if 0 < found < official else ""
    raise UserError(
        f"{where} has {found} records, not {official}{hint}. Get a complete copy."
    )
