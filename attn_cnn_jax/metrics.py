"""Sums over images that are divided once."""

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jaxtyping import Array, Float, Int


class Sums(struct.PyTreeNode):
    """Loss and correct answers summed over images, and how many images they are."""

    loss: Any
    correct: Any
    count: Any

    @classmethod
    def of(
        cls,
        logits: Float[Array, "B K"],
        labels: Int[Array, "B"],
        weights: Float[Array, "B"] | None = None,
        label_smoothing: float = 0.0,
    ) -> "Sums":
        """Sum over a batch; an image of weight 0 does not count.

        The loss is the cross-entropy in nats to 1 - label_smoothing on the label and
        the rest spread evenly over the other K - 1 classes.
        """
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        if label_smoothing:
            others = label_smoothing / (logits.shape[-1] - 1)
            of_all = -jax.nn.log_softmax(logits).sum(-1)
            loss = (1 - label_smoothing - others) * loss + others * of_all
        correct = (logits.argmax(-1) == labels).astype(loss.dtype)
        weights = jnp.ones_like(loss) if weights is None else weights.astype(loss.dtype)
        return cls((loss * weights).sum(), (correct * weights).sum(), weights.sum())

    @classmethod
    def zero(cls) -> "Sums":
        """Return the sums over no images."""
        return cls(0.0, 0.0, 0.0)

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(
            self.loss + other.loss,
            self.correct + other.correct,
            self.count + other.count,
        )

    def on_host(self) -> "Sums":
        """Return the same as Python floats, which accumulate in double precision."""
        return Sums(
            *(float(np.asarray(v)) for v in (self.loss, self.correct, self.count))
        )

    def of_steps(self) -> Iterator["Sums"]:
        """Yield the sums of each step, on the host: one, or those of stacked steps."""
        leaves = (
            np.ravel(leaf).tolist() for leaf in (self.loss, self.correct, self.count)
        )
        return itertools.starmap(Sums, zip(*leaves, strict=True))

    def means(self) -> dict[str, float]:
        """Return mean loss in nats and accuracy in [0, 1]."""
        return {"loss": self.loss / self.count, "accuracy": self.correct / self.count}
