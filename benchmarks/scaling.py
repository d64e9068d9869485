"""Our step at other batches, grids, heads and widths, and on several devices."""

import copy
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.report import aligned, number
from benchmarks.turns import Worker, take_turns

# The values of a field of the model, besides the config's own.
_FIELDS = {"patch_size": (1, 2, 4), "num_heads": (4, 9, 16), "width": (200, 400, 800)}
_DEVICES = (1, 2, 4, 8)
_HEADINGS = (
    ("model", ""),
    ("field", ""),
    ("value", ""),
    ("step", "median s"),
    ("training", "images/s"),
    ("memory", "peak MiB"),
    ("compile", "s"),
    ("collectives", "of a step"),
)


def measure(
    name: str,
    spec: Mapping[str, Any],
    batch_sizes: Sequence[int],
    steps: int,
    seconds: float,
) -> list[dict[str, Any]]:
    """Return a record for each value of each field, one process after the other.

    All but the field is the config's, and the batch the first of `batch_sizes`. On a
    CPU the devices are virtual ones, on all of its cores together.
    """
    records = []
    for field, value, changed in _cells(spec, batch_sizes):
        print(f"{name}, {field} {value}", file=sys.stderr, flush=True)
        worker = Worker(changed, changed["environment"])
        try:
            take_turns([worker], steps, seconds, 3)
            finish, times = worker.finish(), worker.seconds
        finally:
            worker.close()
        median = None if worker.error else statistics.median(times)
        records.append(
            {
                "model": name,
                "field": field,
                "value": value,
                "variant": worker.variant,
                "batch_size": changed["batch_size"],
                "error": worker.error,
                "seconds": median,
                "images_per_second": median and changed["batch_size"] / median,
                "peak_bytes": finish.get("peak_bytes"),
                "memory_source": finish.get("memory_source"),
                "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
                **worker.facts,
            }
        )
    return records


def as_text(records: Sequence[Mapping[str, Any]]) -> str:
    """Return a line for each record, then what failed."""
    rows = [_row(each) for each in records]
    errors = [f"{r['field']} {r['value']}: {r['error']}" for r in records if r["error"]]
    return "\n".join([aligned(_HEADINGS, rows), *errors])


def _cells(
    spec: Mapping[str, Any], batch_sizes: Sequence[int]
) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yield field, value, and what the worker of that cell is told."""
    for size in batch_sizes:
        yield "batch", size, {**spec, "batch_size": size, "environment": {}}
    model = spec["config"]["model"]
    for field, values in _FIELDS.items():
        if isinstance(model.get(field), int) and "patch_size" in model:
            for value in sorted({*values, model[field]}):
                config = copy.deepcopy(spec["config"])
                config["model"][field] = value
                _widen_tables(config["model"], spec["image_shape"])
                yield field, value, {**spec, "config": config, "environment": {}}
    for count in _DEVICES:
        flags = f"--xla_force_host_platform_device_count={count}"
        virtual = {"XLA_FLAGS": flags} if spec["platform"] == "cpu" else {}
        yield "devices", count, {**spec, "devices": count, "environment": virtual}


def _widen_tables(model: dict[str, Any], image_shape: Sequence[int]) -> None:
    """Let the tables of relative positions reach over the grid, and be as wide."""
    attention = model.get("attention", {})
    side = max(image_shape[:2]) // model["patch_size"]
    if "max_position" in attention:
        attention["max_position"] = max(attention["max_position"], side)
    if "position_dim" in attention:
        attention["position_dim"] = model["width"]


def _row(found: Mapping[str, Any]) -> tuple[str, ...]:
    counts = found.get("collectives", {})
    return (
        found["model"],
        found["field"],
        f"{found['value']:,}",
        "failed" if found["error"] else number(found["seconds"], ".4g"),
        number(found["images_per_second"], ",.4g"),
        number(found["peak_bytes"], ",.4g", 2**20),
        number(found.get("compile_seconds"), ".1f"),
        ", ".join(f"{name} {count}" for name, count in counts.items()) or "-",
    )
