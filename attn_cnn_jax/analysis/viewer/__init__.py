"""One HTML file in which to look at all attention maps of a run, without a server."""

import base64
import contextlib
import hashlib
import html
import importlib.resources
import json
import os
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from attn_cnn_jax.analysis.attention_maps import AttentionMaps
from attn_cnn_jax.analysis.viewer.encode import block, encode_layer, shares
from attn_cnn_jax.errors import UserError

__all__ = ["write_viewer"]

_SCRIPTS = ("maps.js", "colours.js", "layout.js", "paint.js", "viewer.js")


def write_viewer(
    path: str | os.PathLike,
    checkpoints: Sequence[AttentionMaps],
    *,
    title: str,
    max_bytes: int = 100_000_000,
) -> int:
    """Write the page that shows `checkpoints` and return the file's size in bytes.

    `checkpoints` are maps of one run for the same images, in the order of their steps;
    each is read once, so that a lazy sequence needs the memory of one. The page is one
    file that opens from disk and loads nothing. Raises a `UserError`, and writes
    nothing, where the file would be larger than `max_bytes` or cannot be written.
    """
    if not checkpoints:
        raise ValueError("there is no checkpoint to show")
    target = pathlib.Path(path)
    unfinished = target.with_name(f".{target.name}.unfinished")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("wb") as file:
            size = 0
            for share, piece in _page(checkpoints, title):
                size += file.write(piece)
                if size > max_bytes:
                    raise _too_large(target, checkpoints, size / share, max_bytes)
        unfinished.replace(target)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error}.") from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()
    return size


def _too_large(
    path: pathlib.Path,
    checkpoints: Sequence[AttentionMaps],
    estimate: float,
    max_bytes: int,
) -> UserError:
    # We round them away from each other, for the estimate may be all but the limit.
    needed, allowed = -(-estimate // 100_000) / 10, max_bytes / 1e6
    return UserError(
        f"{path.name} would take about {needed:,.1f} MB, more than the "
        f"{allowed:g} MB of --viewer_max_mb: show fewer images or checkpoints "
        f"({len(checkpoints[0].images)} and {len(checkpoints)} now), or raise it."
    )


def _page(
    checkpoints: Sequence[AttentionMaps], title: str
) -> Iterator[tuple[float, bytes]]:
    """Yield the page piece by piece, each with the share of the maps written by then.

    All but the blocks of maps and images is ASCII, which means the same in the page's
    windows-1252 as anywhere.
    """
    script = "\n".join(_page_file(name) for name in _SCRIPTS)
    style = _page_file("viewer.css")
    before, after = _page_file("viewer.html").split("{{data}}\n")
    policy = (
        f"default-src 'none'; script-src {_digest(script)}; "
        f"style-src {_digest(style)}; base-uri 'none'; form-action 'none'"
    )
    after = after.replace("{{script}}", script)
    for mark, text in (("style", style), ("policy", policy)):
        before = before.replace(f"{{{{{mark}}}}}", text)
    before = before.replace("{{title}}", html.escape(title))
    done, total = 0, len(checkpoints) * len(checkpoints[0].images)
    bar = tqdm(
        total=total,
        desc="viewer",
        unit="image",
        disable=not sys.stderr.isatty(),
    )
    with bar:
        yield 1.0, before.encode("ascii", "xmlcharrefreplace")
        description: dict[str, Any] = {}
        for index, maps in enumerate(checkpoints):
            described = _describe(maps)
            if index and described != description:
                raise ValueError("the checkpoints differ in images, layers or heads")
            if not index:
                description = described
                yield 1.0, _image_blocks(maps.images)
            for image in range(len(maps.images)):
                done += 1
                yield done / total, _map_blocks(maps, index, image)
                bar.update()
    names = [f"epoch {maps.epoch:.4g} (step {maps.step:,})" for maps in checkpoints]
    shown = names[0] if len(names) == 1 else f"{len(names)} checkpoints"
    about = f"Run {checkpoints[0].run}, {shown}."
    text = _json({**description, "checkpoints": names, "about": about}) + after
    yield 1.0, text.encode("ascii")


def _page_file(name: str) -> str:
    folder = importlib.resources.files(__name__) / "page"
    return (folder / name).read_text(encoding="ascii")


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _describe(maps: AttentionMaps) -> dict[str, Any]:
    """Return the names, sizes and codes that the page needs to read any map."""
    layers = []
    for name, probs in zip(maps.layers, maps.probs, strict=True):
        heads, *grids = _as_grids(maps.kind, probs[:1])[0].shape
        shared = probs.shape[0] == 1
        if not shared and probs.shape[0] != len(maps.images):
            raise ValueError(f"{name} has maps of {probs.shape[0]} images")
        layer = {"name": name, "heads": heads, "shared": shared}
        layers.append({**layer, "query": grids[:2], "key": grids[2:]})
    return {
        "kind": maps.kind,
        "signed": not maps.softmaxed,
        "shares": shares(signed=not maps.softmaxed).tolist(),
        "classMass": maps.class_mass is not None,
        "layers": layers,
        "names": list(maps.names),
        "imageSize": list(maps.images.shape[1:3]),
    }


def _as_grids(kind: str, probs: np.ndarray) -> np.ndarray:
    """Return [B, N, Hq, Wq, Hk, Wk]: SAN's planes are heads, its taps are keys."""
    if kind == "grid":
        return probs
    batch, height, width, taps, planes = probs.shape
    side = round(taps**0.5)
    probs = probs.transpose(0, 4, 1, 2, 3)
    return probs.reshape(batch, planes, height, width, side, side)


def _map_blocks(maps: AttentionMaps, checkpoint: int, image: int) -> bytes:
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


def _image_blocks(images: np.ndarray) -> bytes:
    """Return each image as RGB bytes."""
    if images.shape[-1] == 1:
        images = images.repeat(3, -1)
    return b"".join(block(f"image-{i}", x.tobytes()) for i, x in enumerate(images))


def _json(value: Any) -> str:
    """Return a script element of JSON, in which nothing can end the element."""
    text = json.dumps(value, ensure_ascii=True)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json" id="data">{text}</script>\n'
