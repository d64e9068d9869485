"""The worth of each head: the accuracy of a run with that head switched off.

ablation = ablate("runs/demo")
ablation.accuracies[0][3] - ablation.accuracy  # of head 4 of layer 1
"""

import csv
import dataclasses
import functools
import json
import math
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import traverse_util
from jaxtyping import Array, Bool, Int
from tqdm import tqdm

from attn_cnn_jax import models
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models import AttentionParams
from attn_cnn_jax.run import Run

_COLUMNS = (
    "run",
    "step",
    "epoch",
    "num_images",
    "layer",
    "head",
    "accuracy",
    "change",
    "standard_error",
)


@dataclasses.dataclass(frozen=True)
class Ablation:
    """Accuracy on the first `num_images` of the test set with one head switched off.

    A head that is switched off adds nothing to its layer's output; all else computes
    as before. With shared weights a layer is a pass, and the head is off in that pass
    alone.

    `accuracy` is that of the whole network, `standard_error` its own:
    sqrt(p (1 - p) / n), of a binomial. `accuracies[layer][head]` are those without a
    head, and `standard_errors` of their differences from `accuracy`, smaller as the
    images are the same: sd(d) / sqrt(n) of the images' changes d, +1 where the answer
    becomes right, -1 where it becomes wrong, else 0 (sd with n - 1; 0 for one image).
    """

    run: str
    step: int
    epoch: float
    num_images: int
    accuracy: float
    standard_error: float
    layers: tuple[str, ...]
    accuracies: tuple[tuple[float, ...], ...]
    standard_errors: tuple[tuple[float, ...], ...]


def ablate(
    workdir: str | os.PathLike | Run,
    num_images: int = 1000,
    *,
    checkpoint: str | int = "last",
    data_dir: str | None = None,
    batch_size: int | None = None,
) -> Ablation:
    """Switch off each head of a run, one at a time, and count the right answers.

    `workdir` is the run's folder or a `Run`, to which `checkpoint` and `data_dir` do
    not apply. For every head its layer and those above are computed again, for a batch
    of `batch_size` images (of evaluation where None) at a time. Raises a `UserError`
    for a network without heads that can be switched off.
    """
    run = workdir if isinstance(workdir, Run) else Run(workdir, checkpoint, data_dir)
    if num_images < 1 or (batch_size is not None and batch_size < 1):
        raise UserError("the accuracy needs 1 image or more, in batches of 1 or more.")
    layers = _Layers.of(run)
    total = min(num_images, len(run.dataset.test))
    size = min(batch_size or run.config.eval_batch_size, total)
    right: dict[tuple[int, int] | None, list[np.ndarray]] = {}
    starts = range(0, total, size)
    with tqdm(
        total=len(starts) * sum(layers.num_heads),
        desc=f"heads of {run.name} switched off",
        unit="batches",
        disable=None,
        delay=2,
    ) as bar:
        for start in starts:
            rows = np.arange(start, min(start + size, total), dtype=np.int32)
            for head, correct in layers.answers(np.resize(rows, size)):
                right.setdefault(head, []).append(np.asarray(correct)[: len(rows)])
                bar.update(head is not None)
    by_head = {head: np.concatenate(parts) for head, parts in right.items()}
    whole = by_head[None]

    def of_heads(number: Callable[[np.ndarray], float]) -> tuple:
        return tuple(
            tuple(number(by_head[layer, head]) for head in range(count))
            for layer, count in enumerate(layers.num_heads)
        )

    accuracy = float(whole.mean())
    return Ablation(
        run=run.name,
        step=run.step,
        epoch=run.epoch,
        num_images=total,
        accuracy=accuracy,
        standard_error=math.sqrt(accuracy * (1 - accuracy) / total),
        layers=tuple(f"layer {i + 1}" for i in range(len(layers.num_heads))),
        accuracies=of_heads(lambda correct: float(correct.mean())),
        standard_errors=of_heads(lambda correct: _standard_error(correct, whole)),
    )


def can_ablate(run: Run) -> bool:
    """Return whether a run has heads that `ablate` can switch off."""
    try:
        _Layers.of(run)
    except UserError:
        return False
    return True


def write_csv(ablation: Ablation, path: str | os.PathLike) -> None:
    """Write a line for each head and, with an empty head, one for the whole network.

    `standard_error` is that of `change`; for the whole network, which has no change,
    that of `accuracy`.
    """
    same = (ablation.run, ablation.step, ablation.epoch, ablation.num_images)
    with pathlib.Path(path).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(_COLUMNS)
        whole = (ablation.accuracy, "", ablation.standard_error)
        writer.writerow((*same, "", "", *whole))
        for layer, accuracies, errors in zip(
            ablation.layers, ablation.accuracies, ablation.standard_errors, strict=True
        ):
            for head, (accuracy, error) in enumerate(
                zip(accuracies, errors, strict=True), start=1
            ):
                change = accuracy - ablation.accuracy
                writer.writerow((*same, layer, head, accuracy, change, error))


def write_json(ablation: Ablation, path: str | os.PathLike) -> None:
    """Write the fields of the dataclass."""
    text = json.dumps(dataclasses.asdict(ablation), indent=2, allow_nan=False)
    pathlib.Path(path).write_text(text + "\n", encoding="utf-8")


def _standard_error(
    correct: Bool[np.ndarray, "B"], whole: Bool[np.ndarray, "B"]
) -> float:
    changes = correct.astype(float) - whole
    count = len(changes)
    return float(changes.std(ddof=1)) / math.sqrt(count) if count > 1 else 0.0


@dataclasses.dataclass(frozen=True)
class _Layers:
    """A network that can be run from any of its layers on."""

    run: Run
    layers: tuple[AttentionParams, ...]

    @classmethod
    def of(cls, run: Run) -> "_Layers":
        model, config = run.model, run.config.model
        if not isinstance(model, models.LAYERED):
            raise UserError(
                f"{run.name} is a {config.name}: only heads of self_attention and vit "
                "can be switched off."
            )
        layers = models.attention_params(model, run.variables)
        if not any(fact.is_value for fact in layers[0].facts.values()):
            raise UserError(
                f"the attention {config.attention.name} does not declare which of its "
                "parameters make values (`is_value` in the layer's `parameters`)."
            )
        return cls(run, tuple(layers * (model.num_layers // len(layers))))

    @property
    def num_heads(self) -> tuple[int, ...]:
        """Return the number of heads of each layer."""
        return tuple(layer.num_heads for layer in self.layers)

    def answers(
        self, rows: Int[np.ndarray, "B"]
    ) -> Iterator[tuple[tuple[int, int] | None, Bool[Array, "B"]]]:
        """Yield head and [B], true where the answer for a test image is right.

        Heads are (layer, head), from 0, or None for the whole network. The output of
        the layers below a head is computed once and kept for its layer alone.
        """
        test = self.run.dataset.test
        labels, images = jnp.asarray(test.labels[rows]), jnp.asarray(test.images[rows])
        x, keys = self._embed(self._variables, images, jnp.asarray(rows)), None
        for layer, count in enumerate(self.num_heads):
            for head in range(count):
                right = self._rest(self._variables, x, keys, labels, head, layer=layer)
                yield (layer, head), right
            x, keys = self._layer(self._variables, x, keys, layer=layer)
        yield None, self._classify(self._variables, x, labels)

    @functools.cached_property
    def _variables(self) -> Any:
        return jax.device_put(self.run.variables)

    @functools.cached_property
    def _embed(self) -> Callable[..., Array]:
        return jax.jit(functools.partial(self.run.forward, method="embed"))

    @functools.cached_property
    def _layer(self) -> Callable[..., Any]:
        return jax.jit(
            functools.partial(_apply_layer, self.run.model), static_argnames="layer"
        )

    @functools.cached_property
    def _classify(self) -> Callable[..., Array]:
        return jax.jit(functools.partial(_are_right, self.run.model))

    @functools.cached_property
    def _rest(self) -> Callable[..., Array]:
        """Compile the network from `layer` on, with a head of it switched off."""
        model = self.run.model

        @functools.partial(jax.jit, static_argnames="layer")
        def rest(variables, x, keys, labels, head, *, layer: int) -> Array:
            without = switched_off(variables, self.layers[layer], head)
            x, keys = _apply_layer(model, without, x, keys, layer=layer)
            for above in range(layer + 1, len(self.layers)):
                x, keys = _apply_layer(model, variables, x, keys, layer=above)
            return _are_right(model, variables, x, labels)

        return rest


def switched_off(
    variables: Mapping[str, Any], layer: AttentionParams, head: Any
) -> dict[str, Any]:
    """Return `variables` where a layer's head (from 0, may be traced) adds nothing."""
    flat: dict[str, Any] = traverse_util.flatten_dict(dict(variables), sep="/")
    for name, fact in layer.facts.items():
        if fact.is_value and fact.head_axis is not None and name in layer.params:
            key, axis = f"{layer.path}/{name}", fact.head_axis
            parts = jnp.moveaxis(flat[key], axis, 0)
            flat[key] = jnp.moveaxis(parts.at[head].set(0), 0, axis)
    return traverse_util.unflatten_dict(flat, sep="/")


def _apply_layer(model: nn.Module, variables: Any, x: Any, keys: Any, *, layer: int):
    return model.apply(variables, x, keys, layer, train=False, method="layer")


def _are_right(model: nn.Module, variables: Any, x: Any, labels: Any) -> Any:
    logits: Any = model.apply(variables, x, method="classify")
    return logits.argmax(axis=-1) == labels
