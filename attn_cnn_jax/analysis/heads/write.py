"""The numbers of heads as CSV, as JSON, and as a table for the terminal."""

import csv
import dataclasses
import json
import os
import pathlib
from collections.abc import Sequence

from attn_cnn_jax.analysis.heads.statistics import HeadStatistics, HeadTable

_COLUMNS = (
    "run step epoch num_images threshold weights layer grid_height grid_width radius "
    "head expected_row expected_column mean_distance entropy best_row best_column "
    "best_mass covers content_dependence class_mass degenerate"
).split()


def write_csv(table: HeadTable, path: str | os.PathLike) -> None:
    """Write a line for each head, with what it was computed from.

    Offsets and distances in pixels of the grid, entropy in nats; `class_mass` is empty
    where there is no class token, `degenerate` where nothing is.
    """
    layers = {layer.layer: layer for layer in table.layers}
    with pathlib.Path(path).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(_COLUMNS)
        for head in table.heads:
            layer = layers[head.layer]
            writer.writerow(
                (
                    table.run,
                    table.step,
                    table.epoch,
                    table.num_images,
                    table.threshold,
                    "shares" if table.shares else "probabilities",
                    head.layer,
                    *layer.grid,
                    layer.radius,
                    head.head,
                    *head.expected_offset,
                    head.mean_distance,
                    head.entropy,
                    *head.best_offset,
                    head.best_mass,
                    head.covers,
                    head.content_dependence,
                    "" if head.class_mass is None else head.class_mass,
                    head.degenerate,
                )
            )


def write_json(table: HeadTable, path: str | os.PathLike) -> None:
    """Write the whole table, layers included, as the fields of its dataclasses."""
    text = json.dumps(dataclasses.asdict(table), indent=2, allow_nan=False)
    pathlib.Path(path).write_text(text + "\n", encoding="utf-8")


def as_text(table: HeadTable) -> str:
    """Return the numbers as a table to read: a line a head, and then a line a layer."""
    has_class = any(head.class_mass is not None for head in table.heads)
    title = ["layer", "head", "expected offset", "distance", "entropy", "best offset"]
    title += ["mass", "covers", "content", "degenerate"]
    title += ["class token"] * has_class
    lines = [_cells(head)[: len(title)] for head in table.heads]
    layers = [
        (
            layer.layer,
            f"{layer.grid[0]} x {layer.grid[1]}",
            str(layer.radius),
            str(layer.num_queries),
            str(layer.num_heads),
            str(len(layer.covered)),
            f"{layer.kernel_size} x {layer.kernel_size}"
            if layer.kernel_size
            else "none",
        )
        for layer in table.layers
    ]
    layer_title = ("layer", "grid", "R", "queries", "heads", "offsets covered")
    images = "image" if table.num_images == 1 else "images"
    parts = [
        f"{table.run}, step {table.step} (epoch {table.epoch:.4g}), {table.num_images} "
        f"{images}. A head covers its best offset from a mass of {table.threshold:g}.",
        "Offsets are (row, column) from the query, in pixels; entropy is in nats.",
    ]
    if table.shares:
        parts.append(
            "The weights are no probabilities: these are shares |w| / sum |w|."
        )
    if table.left_out:
        parts.append(
            f"Too small a grid for these numbers: {', '.join(table.left_out)}."
        )
    parts += ["", aligned([title, *lines]), ""]
    parts += [aligned([(*layer_title, "largest kernel covered"), *layers])]
    return "\n".join(parts)


def _cells(head: HeadStatistics) -> tuple[str, ...]:
    row, column = head.expected_offset
    return (
        head.layer,
        str(head.head),
        f"({row:+.2f}, {column:+.2f})",
        f"{head.mean_distance:.2f}",
        f"{head.entropy:.2f}",
        f"({head.best_offset[0]:+d}, {head.best_offset[1]:+d})",
        f"{head.best_mass:.3f}",
        "yes" if head.covers else "no",
        f"{head.content_dependence:.3f}",
        head.degenerate or "no",
        "" if head.class_mass is None else f"{head.class_mass:.3f}",
    )


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Return aligned columns: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
