"""The measurements that `bench` keeps in a workdir."""

import dataclasses
import json
import math
import pathlib
import warnings
from collections.abc import Mapping
from typing import Any

from attn_cnn_jax.errors import one_line


@dataclasses.dataclass(frozen=True)
class BenchRecord:
    """The last measurement of a run; a number is None where it does not say."""

    device: str  # with the computing type where that is not float32
    date: str
    flops_paper: float | None  # an image: 2 x multiply-adds of dense and convolution
    flops: float | None  # an image, attention included
    latency_ms: float | None  # mean of one image


def read_bench_record(
    workdir: pathlib.Path, parameters: int | None
) -> BenchRecord | None:
    """Return the last whole line of `bench.jsonl`, or None where there is none.

    A file that cannot be read, or is about a model of another number of parameters,
    is left out with a warning.
    """
    file = workdir / "bench.jsonl"
    if not file.exists():
        return None
    found = None
    try:
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            found = record if isinstance(record, dict) else found
    except OSError:
        pass
    if found is None:
        warnings.warn(f"{one_line(file)} has no line that can be read.", stacklevel=3)
        return None
    counted = found.get("parameters")
    if None not in (parameters, counted) and counted != parameters:
        warnings.warn(
            f"{one_line(file)} is about a model of {one_line(counted)} parameters, not "
            f"{parameters}, and is left out.",
            stacklevel=3,
        )
        return None
    latency = found.get("latency_ms")
    return BenchRecord(
        device=_device(found),
        date=str(found.get("date", "")),
        flops_paper=finite(found.get("flops_paper")),
        flops=finite(found.get("flops")),
        latency_ms=finite(latency.get("mean")) if isinstance(latency, dict) else None,
    )


def _device(record: Mapping[str, Any]) -> str:
    name = str(record.get("device_kind", "unknown device"))
    dtype = record.get("compute_dtype", "float32")
    return name if dtype == "float32" else f"{name}, {dtype}"


def finite(value: Any) -> float | None:
    """Return `value` as a float where it is a number from 0 to 1e18, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= 1e18 and math.isfinite(value) else None
