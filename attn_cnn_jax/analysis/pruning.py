"""Heads removed from a run: quadratic heads that have degenerated, or named ones.

print(prune("runs/quadratic_nonisotropic_seed42", "runs/pruned"))
print(prune("runs/learned_wo_content_seed42", "runs/pruned", heads=["1:3", "2:9"]))
"""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flax import traverse_util
from ml_collections import ConfigDict

from attn_cnn_jax import checkpoint as checkpoint_lib
from attn_cnn_jax import config as config_lib
from attn_cnn_jax import data, models
from attn_cnn_jax.analysis.learned_positions import quadratic_heads
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models import AttentionParams
from attn_cnn_jax.models.attention import HeadlessAttention
from attn_cnn_jax.run import Run, refuse_misfits


@dataclasses.dataclass(frozen=True)
class Removal:
    """The heads removed from a run, one tuple a layer (of shared weights: one in all).

    `removed` are heads, counted from 1, each with the reason; `parameters` those
    before and after. Nothing was written where `removed` is empty in all layers. `str`
    says it in a line.
    """

    run: str
    target: str
    removed: tuple[tuple[tuple[int, str], ...], ...]
    parameters: tuple[int, int]

    def __str__(self) -> str:
        found = [
            f"{layer}:{head} ({reason})"
            for layer, heads in enumerate(self.removed, start=1)
            for head, reason in heads
        ]
        if not found:
            return (
                f"{self.run}: no head is degenerate (uniform or a strip), so that "
                "nothing is written. Name the heads to remove, as in --heads=2:1 "
                "(layer:head); analyze --figure=heads,ablation says what each does."
            )
        before, after = self.parameters
        plural = "s" if len(found) > 1 else ""
        return (
            f"{self.run}: {len(found)} head{plural} removed, layer:head "
            f"{', '.join(found)}; {before:,} - {before - after:,} = {after:,} "
            f"parameters in {self.target}"
        )


def degenerate_heads(
    config: ConfigDict, variables: Mapping[str, Any], grid: tuple[int, int]
) -> list[list[tuple[int, str]]]:
    """Return (head from 1, reason) of the degenerate quadratic heads of each layer.

    The reasons are those of `GaussianHeads.degenerate`, and of `heads.csv`: "uniform"
    or "strip". Shared weights are one layer. Raises a `UserError` for another
    attention.
    """
    _attentions(config, variables)  # whose heads can be removed at all
    model = models.build(config.model, 1)
    if not hasattr(model.attention_layer, "gaussians"):
        raise UserError(
            f"heads of {config.model.attention.name} do not degenerate, as those of "
            "quadratic attention do: name the heads, layer:head."
        )
    layers = quadratic_heads(model, variables, grid).values()
    return [
        [(head, reason) for head, reason in enumerate(layer.degenerate, 1) if reason]
        for layer in layers
    ]


def prune(
    workdir: str | os.PathLike,
    target: str | os.PathLike,
    checkpoint: str | int = "last",
    heads: Sequence[str] | None = None,
) -> Removal:
    """Write the run in `workdir` without its degenerate heads as the workdir `target`.

    `heads`: these instead, each "layer:head", both from 1. The new workdir evaluates
    and analyses as its checkpoint 0; `main --init_from` trains it on. Raises a
    `UserError` where heads are not there, cannot be removed, or `target` is a run.
    """
    run = Run(workdir, checkpoint)
    config_lib.check(run.config)
    before = models.count_parameters(run.variables)
    if heads is None:
        found = degenerate_heads(run.config, run.variables, _grid(run))
    else:
        found = _named_heads(run.config, run.variables, heads)
    removed = tuple(tuple(layer) for layer in found)
    if not any(removed):
        return Removal(run.name, str(target), removed, (before, before))
    numbers = [[head for head, _ in layer] for layer in found]
    config, variables = without_heads(run.config, run.variables, numbers)
    refuse_misfits(config, variables, "the pruned network does not fit its config")
    checkpoint_lib.write_variables(target, config, variables)
    after = models.count_parameters(variables)
    return Removal(run.name, str(target), removed, (before, after))


def without_heads(
    config: ConfigDict, variables: Mapping[str, Any], heads: Sequence[Sequence[int]]
) -> tuple[ConfigDict, dict[str, Any]]:
    """Return config and variables without these heads (from 1) of each layer.

    All else is untouched: what the other heads compute is what they computed before.
    """
    layers = _attentions(config, variables)
    flat: dict[str, Any] = traverse_util.flatten_dict(dict(variables), sep="/")
    numbers = []
    for layer, removed in zip(layers, heads, strict=True):
        rows = [head - 1 for head in set(removed)]
        numbers.append(layer.num_heads - len(rows))
        for name in layer.params:
            key, axis = f"{layer.path}/{name}", layer.facts[name].head_axis
            if numbers[-1] and axis is not None:
                flat[key] = np.delete(flat[key], rows, axis=axis)
            elif not numbers[-1] and name not in HeadlessAttention.parameters:
                del flat[key]
    if config.model.share_weights and not numbers[0]:
        raise UserError("a network of shared weights has to keep one head.")
    pruned = config.copy_and_resolve_references()
    alike = len(set(numbers)) == 1 and numbers[0]
    with pruned.ignore_type():
        pruned.model.num_heads = numbers[0] if alike else tuple(numbers)
    return pruned, traverse_util.unflatten_dict(flat, sep="/")


def _attentions(
    config: ConfigDict, variables: Mapping[str, Any]
) -> list[AttentionParams]:
    """Return the attention of each layer, of which each head has its own parts.

    Raises a `UserError` for a network whose heads cannot be removed.
    """
    fields = config.model
    if fields.name != "self_attention":
        raise UserError(
            f"heads are removed from self_attention, not from {fields.name}."
        )
    model, name = models.build(fields, 1), fields.attention.name
    if getattr(model.attention_layer, "heads_share_width", False):
        raise UserError(f"heads of {name} share the width: none can be removed.")
    layers = models.attention_params(model, variables)
    missing = {p for layer in layers for p in layer.params if p not in layer.facts}
    if missing:
        raise UserError(
            f"the attention {name} does not declare the head axes of its parameters "
            f"{', '.join(sorted(missing))}, so that none of its heads can be removed: "
            "name them in the layer's `parameters`."
        )
    return layers


def _grid(run: Run) -> tuple[int, int]:
    """Return the grid of a run; its data are read where their shape is not known."""
    entry = data.DATASETS.get(run.config.dataset.name)
    height, width, _ = (entry or run.dataset).image_shape
    size = run.config.model.patch_size
    return height // size, width // size


def _named_heads(
    config: ConfigDict, variables: Mapping[str, Any], heads: Sequence[str]
) -> list[list[tuple[int, str]]]:
    """Return `heads`, each "layer:head" from 1, by layer."""
    counts = [layer.num_heads for layer in _attentions(config, variables)]
    chosen: list[set[int]] = [set() for _ in counts]
    for text in heads:
        match = re.fullmatch(r"\s*(\d{1,9}):(\d{1,9})\s*", text, re.ASCII)
        if not match:
            raise UserError(f"{text!r} is no head; give layer:head, such as 2:9.")
        layer, head = (int(number) for number in match.groups())
        if not 1 <= layer <= len(counts):
            raise UserError(f"head {text}: the layers to prune are 1 to {len(counts)}.")
        if not 1 <= head <= counts[layer - 1]:
            raise UserError(
                f"head {text}: layer {layer} has {counts[layer - 1]} heads, from 1."
            )
        chosen[layer - 1].add(head)
    if not any(chosen):
        raise UserError("no head was named; give layer:head, such as 2:9.")
    return [[(head, "as named") for head in sorted(layer)] for layer in chosen]
