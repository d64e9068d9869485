"""The closest convolutions of checkpoints as CSV, as JSON, and as text."""

import csv
import json
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from attn_cnn_jax.analysis.closest_convolution.layers import (
    ConvolutionTable,
    LayerConvolutions,
)
from attn_cnn_jax.analysis.heads.write import aligned

_COLUMNS = (
    "run step epoch layer grid_height grid_width in_width out_width num_images "
    "kernel_size r_squared r_squared_fitted covered_offsets largest_kernel_covered"
).split()


def write_csv(tables: Sequence[ConvolutionTable], path: str | os.PathLike) -> None:
    """Write a line for each checkpoint, layer and kernel size.

    `num_images` were fitted to, and as many others scored. What is not known is empty.
    """
    with pathlib.Path(path).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(_COLUMNS)
        writer.writerows(record.values() for record in _records(tables))


def write_json(tables: Sequence[ConvolutionTable], path: str | os.PathLike) -> None:
    """Write the same as `write_csv` as a list of objects; what is not known is null."""
    text = json.dumps(list(_records(tables)), indent=2, allow_nan=False)
    pathlib.Path(path).write_text(text + "\n", encoding="utf-8")


def _records(tables: Sequence[ConvolutionTable]) -> Iterator[dict[str, Any]]:
    for table in tables:
        for one in table.layers:
            coverage = table.coverage.get(one.layer)
            for convolution in one.convolutions:
                values = (
                    table.run,
                    table.step,
                    table.epoch,
                    one.layer,
                    *one.grid,
                    one.in_width,
                    one.out_width,
                    one.num_images,
                    convolution.kernel_size,
                    convolution.r_squared,
                    convolution.r_squared_fitted,
                    coverage and len(coverage.covered),
                    coverage and coverage.kernel_size,
                )
                yield dict(zip(_COLUMNS, values, strict=True))


def as_text(table: ConvolutionTable) -> str:
    """Return R^2 by layer and kernel size, beside the offsets that the heads cover."""
    sizes = table.kernel_sizes
    title = ["layer", "grid", "channels", "images", "offsets covered"]
    title += ["largest kernel", *(f"R^2 {size} x {size}" for size in sizes)]
    lines = [_cells(table, one, sizes) for one in table.layers]
    parts = [
        f"{table.run}, step {table.step} (epoch {table.epoch:.4g}). R^2 of the K x K "
        "convolution that is closest to",
        "each layer's attention alone, fitted to so many test images and scored on as "
        "many others.",
        "",
        aligned([title, *lines]),
    ]
    left_out = [
        f"{one.layer} {size} x {size}" for one in table.layers for size in one.left_out
    ]
    if left_out:
        parts.append(
            f"Grid or test set are too small for these: {', '.join(left_out)}."
        )
    return "\n".join(parts)


def _cells(
    table: ConvolutionTable, one: LayerConvolutions, sizes: Sequence[int]
) -> list[str]:
    coverage = table.coverage.get(one.layer)
    kernel = "-"
    if coverage is not None:
        size = coverage.kernel_size
        kernel = f"{size} x {size}" if size else "none"
    return [
        one.layer,
        f"{one.grid[0]} x {one.grid[1]}",
        f"{one.in_width} -> {one.out_width}",
        str(one.num_images),
        "-" if coverage is None else str(len(coverage.covered)),
        kernel,
        *(_score(one.r_squared(size)) for size in sizes),
    ]


def _score(value: float | None) -> str:
    """Return R^2 to four digits, and its distance from 1 where these would say 1."""
    if value is None:
        return "-"
    return f"{value:.4f}" if value < 0.99995 else f"1 - {1 - value:.0e}"
