"""The layers of a network by name: their parameters, and what they sow."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from flax import traverse_util

from attn_cnn_jax.models.attention import Parameter
from attn_cnn_jax.models.encoder import block_names


class ModelError(ValueError):
    """A model that cannot be what its config asks for; the message says why."""


class AttentionParams(NamedTuple):
    """The attention of one layer of a network, or of all where they share weights.

    `path` leads to it in the variables, names between "/"; `params` are its parameters
    by their path in the layer, `facts` what its class says of them (`parameters`).
    """

    name: str
    path: str
    num_heads: int
    params: dict[str, Any]
    facts: Mapping[str, Parameter]


def attention_params(model: Any, variables: Mapping[str, Any]) -> list[AttentionParams]:
    """Return the attention parameters of a self-attention network or ViT, by layer.

    `variables` may be arrays or their shapes. Raises a `ModelError` where a layer says
    of its parameters what is not so.
    """
    facts, found = getattr(model.attention_layer, "parameters", {}), []
    for i, block in enumerate(block_names(model.num_layers, model.share_weights)):
        heads = model.num_heads
        heads = heads if isinstance(heads, int) else heads[i]
        tree: Any = variables["params"][block]["attention"]
        params: dict[str, Any] = traverse_util.flatten_dict(tree, sep="/")
        for name in params.keys() & facts.keys():
            _check_head_axis(name, params[name].shape, facts[name], heads)
        name = "all layers" if model.share_weights else f"layer {i + 1}"
        path = f"params/{block}/attention"
        found.append(AttentionParams(name, path, heads, params, facts))
    return found


def _check_head_axis(name: str, shape: tuple[int, ...], fact: Any, heads: int) -> None:
    axis = fact.head_axis if isinstance(fact, Parameter) else fact
    if axis is None and not getattr(fact, "is_value", False):
        return
    if type(axis) is not int or not 0 <= axis < len(shape) or shape[axis] != heads:
        raise ModelError(
            f"the attention layer says of its parameter {name} {list(shape)} that axis "
            f"{axis} counts the {heads} heads; correct its `parameters`."
        )


def sown_layers(
    intermediates: Mapping[str, Any], model: str, num_sweeps: int = 1
) -> list[tuple[str, Any]]:
    """Return (name, array) of all attention that was sown, in the order of computation.

    `intermediates` is that collection of a forward pass, of arrays or of their shapes;
    `model` is `config.model.name`. A module that is applied several times sows an array
    a time. Names are "layer 1", "stage 1 block 2", of a ResNet's attention "stem" and
    "stage 1 block 2 layer 1", or "pass 1" of the hierarchical SAN, of which the figures
    show the last block, in the last of the `num_sweeps` of a pass. A network without
    attention has none.
    """
    found = sorted(_walk(intermediates, ()), key=lambda item: _order(item[0]))
    if model == "san_hierarchical":
        sown = [array for _, arrays in found[-1:] for array in arrays]
        passes = sown[num_sweeps - 1 :: num_sweeps]
        return [(f"pass {i + 1}", array) for i, array in enumerate(passes)]
    return [
        (_name(path, i, len(sown)), array)
        for path, sown in found
        for i, array in enumerate(sown)
    ]


def _walk(tree: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _walk(value, (*path, key))
        elif key == "attention":
            yield path, value


def _order(path: tuple[str, ...]) -> list:
    """Return a sort key: the stem first, and block_10 after block_9."""
    parts = re.split(r"(\d+)", "/".join(path))
    numbers = [int(part) if part.isdigit() else part for part in parts]
    return [not path[0].startswith("stem"), *numbers]


def _name(path: tuple[str, ...], application: int, applications: int) -> str:
    """Count from 1: block_0 is "layer 1", stage_0_block_1 "stage 1 block 2"."""
    block, conv = path[:-2], "".join(path[-2:-1])
    layer = conv.removesuffix("_conv")
    if layer != conv:  # attention in the place of a convolution
        layer = f"layer {layer}" if layer.isdigit() else layer
        return f"{_name(block, 0, 1)} {layer}" if block else layer
    parts = re.findall(r"([a-z]+)_(\d+)", "/".join(path))
    if applications > 1 or not parts:
        return f"layer {application + 1}"
    if len(parts) == 1:
        return f"layer {int(parts[0][1]) + 1}"
    return " ".join(f"{word} {int(number) + 1}" for word, number in parts)
