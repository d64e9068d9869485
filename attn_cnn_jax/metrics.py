"""Sums that are divided once, and where a run writes what they come to."""

import json
import math
import os
import pathlib
from collections.abc import Mapping
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
        """The sums of a batch; an image of weight 0 does not count.

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
        """No images."""
        return cls(0.0, 0.0, 0.0)

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(
            self.loss + other.loss,
            self.correct + other.correct,
            self.count + other.count,
        )

    def on_host(self) -> "Sums":
        """The same as Python floats, for exact accumulation in double precision."""
        return Sums(
            *(float(np.asarray(v)) for v in (self.loss, self.correct, self.count))
        )

    def means(self) -> dict[str, float]:
        """Mean loss in nats and accuracy in [0, 1]."""
        return {"loss": self.loss / self.count, "accuracy": self.correct / self.count}


class MetricsFile:
    """`metrics.jsonl` (one object a line) and TensorBoard events of a workdir.

    Opened at the step that a run continues from: what was written after it is dropped,
    so that each step stands there once. With `enabled=False` nothing is written.
    """

    def __init__(self, workdir: pathlib.Path, step: int, *, enabled: bool) -> None:
        self._lines = self._events = None
        if not enabled:
            return
        from tensorboardX import SummaryWriter

        path = workdir / "metrics.jsonl"
        keep_until(path, step)
        self._lines = path.open("a", encoding="utf-8")
        self._events = SummaryWriter(str(workdir / "tensorboard"), purge_step=step + 1)

    def write(self, step: int, split: str, values: Mapping[str, int | float]) -> None:
        """One line {"step", "split", values...} and a scalar split/value for each."""
        if self._lines is None or self._events is None:
            return
        record = {"step": step, "split": split, **values}
        self._lines.write(json.dumps(record) + "\n")
        self._lines.flush()
        for name, value in values.items():
            self._events.add_scalar(f"{split}/{name}", value, step)

    def close(self) -> None:
        """Flush and close both."""
        if self._lines is not None and self._events is not None:
            self._lines.close()
            self._events.close()


def read(workdir: str | os.PathLike) -> list[dict[str, Any]]:
    """The records of a run's `metrics.jsonl`; broken lines are left out."""
    path = pathlib.Path(workdir) / "metrics.jsonl"
    records = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            records.append(record)
    return records


def keep_until(path: pathlib.Path, step: int) -> None:
    """Drop what a metrics file says of steps after `step`, and broken lines."""
    if not path.exists():
        return
    kept = [record for record in read(path.parent) if record["step"] <= step]
    rewritten = path.with_suffix(".jsonl.new")
    rewritten.write_text(
        "".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8"
    )
    rewritten.replace(path)


def is_finite(sums: Sums) -> bool:
    """Whether the loss is a number."""
    return math.isfinite(sums.loss)
