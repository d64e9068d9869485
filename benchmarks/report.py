"""Records of the variants of a step, a line of JSON each, and the table of them."""

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.variants import OURS, VARIANTS

# What NVIDIA says of dense bfloat16 products, in operations a second.
_VENDOR_PEAKS = {"H100": 989e12, "H200": 989e12}

_HEADINGS = (
    ("model", ""),
    ("side", ""),
    ("variant", ""),
    ("batch", "size"),
    ("step", "median s"),
    ("step", "min s"),
    ("step", "max s"),
    ("training", "images/s"),
    ("memory", "peak MiB"),
    ("time", "/ ours"),
    ("MFU %", "of product"),
    ("MFU %", "of vendor"),
)


def record(
    model: str, batch_size: int, worker: Any, training_flops: int | None
) -> dict[str, Any]:
    """Return the record of a worker that has taken its turns, and finish it.

    The keys and their units are those of docs/performance.md; `time_over_ours` is added
    by `compare_to_ours`.
    """
    finish, times = worker.finish(), worker.seconds
    variant, facts = VARIANTS[worker.variant], worker.facts
    seconds = ceiling = None
    if worker.error is None:
        median = statistics.median(times)
        seconds = {"median": median, "min": min(times), "max": max(times)}
        ceiling = finish["ceiling_flops"]
    found: dict[str, Any] = {
        "model": model,
        "side": variant.side,
        "variant": worker.variant,
        "batch_size": batch_size,
        "dtype": variant.dtype,
        "error": worker.error,
        "seconds": seconds,
        "steps": len(times),
        "images_per_second": seconds and batch_size / seconds["median"],
        "peak_bytes": finish.get("peak_bytes"),
        "memory_source": finish.get("memory_source"),
        "time_over_ours": None,
        "training_flops": training_flops,
        "mfu": {"product": None, "vendor": None},
        "product_flops": ceiling,
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        **facts,
    }
    if seconds and training_flops:
        rate, kind = training_flops / seconds["median"], facts["device_kind"]
        vendor = [peak for name, peak in _VENDOR_PEAKS.items() if name in kind]
        found["mfu"] = {
            "product": rate / ceiling,
            "vendor": rate / vendor[0] if vendor else None,
        }
    return found


def compare_to_ours(records: Sequence[dict[str, Any]]) -> None:
    """Set `time_over_ours` of records of one model and batch.

    It is the median over that of our fastest variant among them: above 1 ours is
    faster.
    """
    timed = [r for r in records if r["seconds"]]
    ours = [r["seconds"]["median"] for r in timed if r["side"] == OURS]
    for each in timed if ours else ():
        each["time_over_ours"] = each["seconds"]["median"] / min(ours)


def as_text(records: Sequence[Mapping[str, Any]]) -> str:
    """Return a line for each record, then what failed, devices and denominators."""
    rows = [_cells(each) for each in records]
    return "\n".join([aligned(_HEADINGS, rows), "", *_notes(records)])


def aligned(headings: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]]) -> str:
    """Return the rows under their two lines of headings, in columns."""
    lines = [[heading[i] for heading in headings] for i in (0, 1)] + [*map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        "  ".join(
            cell.ljust(width) if cell[:1].isalpha() else cell.rjust(width)
            for cell, width in zip(line, widths, strict=True)
        ).rstrip()
        for line in lines
    ]
    text.insert(2, "  ".join("-" * width for width in widths))
    return "\n".join(text)


def number(value: float | None, form: str, unit: float = 1.0) -> str:
    """Return the value over its unit; "-" if it is not known."""
    return "-" if value is None else format(value / unit, form)


def _cells(found: Mapping[str, Any]) -> tuple[str, ...]:
    seconds = found["seconds"] or dict.fromkeys(("median", "min", "max"))
    mfu = found["mfu"]
    return (
        found["model"],
        found["side"],
        found["variant"],
        f"{found['batch_size']:,}",
        *("failed" if found["error"] else number(seconds["median"], ".4g"),),
        number(seconds["min"], ".4g"),
        number(seconds["max"], ".4g"),
        number(found["images_per_second"], ",.4g"),
        number(found["peak_bytes"], ",.4g", 2**20),
        number(found["time_over_ours"], ".2f"),
        number(mfu["product"], ".1f", 0.01),
        number(mfu["vendor"], ".1f", 0.01),
    )


def _notes(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what is said once: errors, operations of a step, devices, denominators."""
    failed = [
        f"{r['model']} {r['variant']} failed: {r['error']}"
        for r in records
        if r["error"]
    ]
    flops = [
        f"{r['model']}: {r['training_flops'] / 1e12:.4g} TFLOP a step of "
        f"{r['batch_size']:,} images, as published"
        for r in records
        if r["training_flops"]
    ]
    products = [
        f"a large {r['dtype']} product of {r['side']} ({r['variant']}, {r['model']}): "
        f"{r['product_flops'] / 1e12:.4g} TFLOP/s"
        for r in records
        if r["product_flops"]
    ]
    machines = []
    for r in records:
        if r["error"] is None:
            library = f"torch {r['torch']}" if "torch" in r else f"jax {r['jax']}"
            machines.append(
                f"{r['side']}: {r['device_kind']}, {library}, python {r['python']}, "
                f"{r['date'][:10]}; memory: {r['memory_source']}"
            )
    return list(dict.fromkeys([*failed, *flops, *products, *machines]))
