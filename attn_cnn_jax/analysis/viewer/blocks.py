"""The maps and images of a viewer as blocks of bytes, as many as there is room for."""

import dataclasses
import heapq
import json
import sys
from collections.abc import Iterator, Sequence
from typing import IO, Any

import numpy as np
from tqdm import tqdm

from attn_cnn_jax.analysis.attention_maps import AttentionMaps
from attn_cnn_jax.analysis.viewer.encode import block, encode_layer, shares
from attn_cnn_jax.analysis.viewer.run_facts import RunFacts


@dataclasses.dataclass(frozen=True)
class WrittenBlocks:
    """What `write_blocks` wrote: that many images of the checkpoints of `entries`.

    The entries are what the page says of each checkpoint, in the order of their steps.
    Where no image fitted, `first_image` is the size of one, in bytes.
    """

    num_images: int
    entries: tuple[dict[str, Any], ...]
    first_image: int


def write_blocks(
    file: IO[bytes], checkpoints: Sequence[AttentionMaps], facts: RunFacts, room: int
) -> WrittenBlocks:
    """Write images and maps to `file`, at most `room` bytes with their entries as JSON.

    The last checkpoint comes first, with as many images as fit. The others follow in
    the order of `halving`, up to the first that does not fit with all images. What
    images share is stored with the first. Raises a ValueError where the checkpoints
    differ in images, layers or heads.
    """
    described, total = describe(checkpoints[-1]), len(checkpoints[-1].images)
    entries: dict[int, dict[str, Any]] = {}
    num_images, first_image = 0, 0
    with tqdm(
        total=total * len(checkpoints),
        desc="viewer",
        unit="image",
        disable=not sys.stderr.isatty(),
    ) as bar:
        for index in halving(len(checkpoints)):
            maps = checkpoints[index]
            if describe(maps) != described:
                raise ValueError("the checkpoints differ in images, layers or heads")
            entry = _entry(maps, facts, index)
            room -= len(json.dumps(entry)) + len(", ")
            start, fitting = file.tell(), 0
            for piece in _pieces(maps, index, with_images=not entries):
                first_image = first_image or len(piece)
                if file.tell() + len(piece) > room:
                    break
                file.write(piece)
                fitting += 1
                bar.update()
            if entries and fitting < total:
                file.seek(start)
                file.truncate()
                break
            num_images = num_images or fitting
            entries[index] = entry
            if fitting < total:
                break
    in_order = tuple(entry for _, entry in sorted(entries.items()))
    return WrittenBlocks(num_images, in_order, first_image)


def _entry(maps: AttentionMaps, facts: RunFacts, index: int) -> dict[str, Any]:
    """Return what the page says of a checkpoint."""
    images = range(len(maps.images)) if facts.predictions else ()
    return {
        "blocks": index,
        "run": maps.run,
        "name": f"epoch {maps.epoch:.4g} (step {maps.step:,})",
        "epoch": maps.epoch,
        "step": maps.step,
        "shared": [probs.shape[0] == 1 for probs in maps.probs],
        "accuracy": facts.accuracies[index] if facts.accuracies else None,
        "guesses": [facts.guesses(index, image) for image in images],
    }


def _pieces(maps: AttentionMaps, index: int, *, with_images: bool) -> Iterator[bytes]:
    """Yield the blocks of each image of a checkpoint."""
    for number, image in enumerate(maps.images):
        own = image_block(image, number) if with_images else b""
        yield own + map_blocks(maps, index, number)


def halving(count: int) -> list[int]:
    """Return 0 to count - 1: last, first, then what halves the longest stretch."""
    order = list(dict.fromkeys([count - 1, 0]))
    stretches = [(1 - count, 0)]  # a heap of (minus the length, start)
    while len(order) < count:
        length, start = heapq.heappop(stretches)
        middle = start + -length // 2
        order.append(middle)
        heapq.heappush(stretches, (start - middle, start))
        heapq.heappush(stretches, (length + middle - start, middle))
    return order


def describe(maps: AttentionMaps) -> dict[str, Any]:
    """Return the names, sizes and codes that the page needs to read any map."""
    layers = []
    for name, probs in zip(maps.layers, maps.probs, strict=True):
        heads, *grids = _as_grids(maps.kind, probs[:1])[0].shape
        shared = probs.shape[0] == 1
        if not shared and probs.shape[0] != len(maps.images):
            raise ValueError(f"{name} has maps of {probs.shape[0]} images")
        layer = {"name": name, "heads": heads}
        layers.append({**layer, "query": grids[:2], "key": grids[2:]})
    return {
        "kind": maps.kind,
        "signed": not maps.softmaxed,
        "shares": shares(signed=not maps.softmaxed).tolist(),
        "classMass": maps.class_mass is not None,
        "layers": layers,
        "names": list(maps.names),
        "imageSize": list(maps.images.shape[1:3]),
        "grey": maps.images.shape[3] == 1,
    }


def _as_grids(kind: str, probs: np.ndarray) -> np.ndarray:
    """Return [B, N, Hq, Wq, Hk, Wk]: SAN's planes are heads, its taps are keys."""
    if kind == "grid":
        return probs
    batch, height, width, taps, planes = probs.shape
    side = round(taps**0.5)
    probs = probs.transpose(0, 4, 1, 2, 3)
    return probs.reshape(batch, planes, height, width, side, side)


def map_blocks(maps: AttentionMaps, checkpoint: int, image: int) -> bytes:
    """Return the maps of all layers; what images share comes with the first."""
    blocks = []
    for layer, probs in enumerate(maps.probs):
        shared = probs.shape[0] == 1
        if shared and image > 0:
            continue
        mass = None if maps.class_mass is None else maps.class_mass[layer]
        encoded = encode_layer(
            _as_grids(maps.kind, probs[image : image + 1])[0],
            None if mass is None else mass[0 if mass.shape[0] == 1 else image],
            signed=not maps.softmaxed,
            average=maps.kind == "grid",
        )
        blocks.append(block(f"maps-{checkpoint}-{layer}-{image}", encoded))
    return b"".join(blocks)


def image_block(image: np.ndarray, index: int) -> bytes:
    """Return an image [H, W, 1 or 3] as RGB bytes."""
    pixels = image.repeat(3, -1) if image.shape[-1] == 1 else image
    return block(f"image-{index}", pixels.tobytes())
