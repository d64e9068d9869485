"""One HTML file in which to look at all attention maps of a run, without a server."""

import base64
import contextlib
import dataclasses
import hashlib
import html
import importlib.resources
import json
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any

from attn_cnn_jax.analysis.attention_maps import AttentionMaps
from attn_cnn_jax.analysis.viewer.blocks import WrittenBlocks, describe, write_blocks
from attn_cnn_jax.analysis.viewer.run_facts import RunFacts, run_facts
from attn_cnn_jax.errors import UserError

__all__ = ["RunFacts", "WrittenViewer", "run_facts", "write_viewer"]

_SCRIPTS = (
    "maps.js",
    "state.js",
    "colours.js",
    "layout.js",
    "words.js",
    "paint.js",
    "images.js",
    "query.js",
    "choices.js",
    "address.js",
    "export.js",
    "viewer.js",
)
_MOST_EPOCHS = 12  # that a sentence names
_LONGEST_SENTENCE = 500  # on what was left out, bytes


@dataclasses.dataclass(frozen=True)
class WrittenViewer:
    """The size in bytes of a page that was written, and what it shows.

    `left_out` is a sentence on what there was no room for, "" where all is shown.
    """

    size: int
    num_images: int
    num_checkpoints: int
    left_out: str


def write_viewer(
    path: str | os.PathLike,
    checkpoints: Sequence[AttentionMaps],
    *,
    title: str,
    facts: RunFacts | None = None,
    max_bytes: int = 100_000_000,
) -> WrittenViewer:
    """Write the page that shows `checkpoints`, of which it shows as much as fits.

    `checkpoints` are maps of the same images, of networks of the same layers and heads:
    those of one run in the order of their steps, after one of each other run. Each is
    read once, so that a lazy sequence needs the memory of one. The page is one
    file that opens from disk and loads nothing. Where it would be larger than
    `max_bytes`, images and then checkpoints are left out (`write_blocks` says which).
    Raises a `UserError`, and writes nothing, where not one image fits or the file
    cannot be written.
    """
    if not checkpoints:
        raise ValueError("there is no checkpoint to show")
    facts = facts or RunFacts()
    target = pathlib.Path(path)
    unfinished = target.with_name(f".{target.name}.unfinished")
    before, middle, after = _page(title)
    description = _description(checkpoints[-1], facts)
    around = len(before + _json(description) + middle + after) + _LONGEST_SENTENCE
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=target.parent) as blocks:
            written = write_blocks(blocks, checkpoints, facts, max_bytes - around)
            if not written.num_images:
                raise _too_large(target, around + written.first_image, max_bytes)
            left_out = _left_out(written, checkpoints, description, max_bytes)
            description["names"] = description["names"][: written.num_images]
            description["checkpoints"] = written.entries
            description["notes"] += [left_out] if left_out else []
            blocks.seek(0)
            with unfinished.open("wb") as file:
                file.write((before + _json(description) + middle).encode("ascii"))
                shutil.copyfileobj(blocks, file)
                file.write(after.encode("ascii"))
                size = file.tell()
        unfinished.replace(target)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error}.") from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()
    return WrittenViewer(size, written.num_images, len(written.entries), left_out)


def _too_large(path: pathlib.Path, needed: int, max_bytes: int) -> UserError:
    # We round them away from each other, for the need may be all but the limit.
    rounded, allowed = -(-needed // 100_000) / 10, max_bytes / 1e6
    return UserError(
        f"{path.name} would take {rounded:,.1f} MB with one image of one checkpoint, "
        f"more than the {allowed:g} MB of --viewer_max_mb: raise it."
    )


def _left_out(
    written: WrittenBlocks,
    checkpoints: Sequence[AttentionMaps],
    description: dict[str, Any],
    max_bytes: int,
) -> str:
    """Return a sentence on what there was no room for, "" where all is there."""
    num_images, count = len(description["names"]), len(checkpoints)
    parts = []
    if written.num_images < num_images:
        parts.append(f"the first {written.num_images:,} of {num_images:,} images")
    if len(written.entries) < count:
        epochs = [f"{entry['epoch']:.4g}" for entry in written.entries]
        noun = "epoch" if len(epochs) == 1 else "epochs"
        named = f" ({noun} {', '.join(epochs)})" if len(epochs) <= _MOST_EPOCHS else ""
        parts.append(f"{len(epochs):,} of {count:,} checkpoints{named}")
    if not parts:
        return ""
    return (
        f"To stay below {max_bytes / 1e6:g} MB (--viewer_max_mb) the page shows "
        f"{' and '.join(parts)}."
    )


def _page(title: str) -> tuple[str, str, str]:
    """Return the page before the description, up to the blocks, and after them.

    All but the blocks of maps and images is ASCII, which means the same in the page's
    windows-1252 as anywhere. The script comes before the blocks: it draws the first
    image while the browser still reads the others.
    """
    script = "\n".join(_page_file(name) for name in _SCRIPTS)
    style = _page_file("viewer.css")
    before, middle, after = re.split(
        "{{description}}\n|{{blocks}}\n", _page_file("viewer.html")
    )
    policy = (
        f"default-src 'none'; script-src {_digest(script)}; "
        f"style-src {_digest(style)}; base-uri 'none'; form-action 'none'"
    )
    title = html.escape(title).encode("ascii", "xmlcharrefreplace").decode()
    for mark, text in (("style", style), ("policy", policy), ("title", title)):
        before = before.replace(f"{{{{{mark}}}}}", text)
    return before, middle.replace("{{script}}", script), after


def _description(maps: AttentionMaps, facts: RunFacts) -> dict[str, Any]:
    """Return what the page knows of the run, but for its checkpoints."""
    return {
        **describe(maps),
        "about": facts.about or f"Run {maps.run}",
        "notes": list(facts.notes),
        "classes": facts.class_names,
        "labels": facts.labels,
        "checkpoints": [],
    }


def _page_file(name: str) -> str:
    folder = importlib.resources.files(__name__) / "page"
    return (folder / name).read_text(encoding="ascii")


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _json(value: Any) -> str:
    """Return a script element of JSON, in which nothing can end the element."""
    text = json.dumps(value, ensure_ascii=True)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json" id="data">{text}</script>\n'
