"""Names of the layers of a network, and the attention that each of them sows."""

import re
from collections.abc import Iterator, Mapping
from typing import Any


def sown_layers(
    intermediates: Mapping[str, Any], model: str, num_sweeps: int = 1
) -> list[tuple[str, Any]]:
    """(name, array) of all attention that was sown, in the order of computation.

    `intermediates` is that collection of a forward pass, of arrays or of their shapes;
    `model` is `config.model.name`. A module that is applied several times sows an array
    a time. Names are "layer 1", "stage 1 block 2", or "pass 1" of the hierarchical SAN,
    of which the last block alone is kept, in the last of the `num_sweeps` of a pass:
    the figures show it. Empty for a network
    without attention.
    """
    found = sorted(_walk(intermediates, ()), key=lambda item: _natural(item[0]))
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


def _natural(path: tuple[str, ...]) -> list:
    """A sort key by which block_10 comes after block_9."""
    parts = re.split(r"(\d+)", "/".join(path))
    return [int(part) if part.isdigit() else part for part in parts]


def _name(path: tuple[str, ...], application: int, applications: int) -> str:
    """Numbers start at 1: block_0 is "layer 1", stage_0_block_1 "stage 1 block 2"."""
    parts = re.findall(r"([a-z]+)_(\d+)", "/".join(path))
    if applications > 1 or not parts:
        return f"layer {application + 1}"
    if len(parts) == 1:
        return f"layer {int(parts[0][1]) + 1}"
    return " ".join(f"{word} {int(number) + 1}" for word, number in parts)
