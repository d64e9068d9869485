"""The row of a compiled step, its line of text, and where its time goes."""

import collections
import re
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.compiled_cost import Gpu, Kernel

_EPOCHS = 300

# Heading, key of the row, format.
_COLUMNS = (
    ("config", "config", "<24"),
    ("dtype", "compute_dtype", "<9"),
    ("kernels", "kernels", "7d"),
    ("TFLOP", "tflop", "7.3f"),
    ("in f32", "tflop_float32", "7.3f"),
    ("mixed", "mixed_products", "6d"),
    ("GB", "gigabytes", "7.2f"),
    ("ideal ms", "ideal_ms", "9.2f"),
    ("mid ms", "mid_ms", "7.2f"),
    ("MFU mid", "mfu_mid", "8.1%"),
    ("of TFLOP/s", "mfu_of_tflops", "11.0f"),
    ("images/s", "images_per_second", "9,.0f"),
    (f"min/{_EPOCHS} epochs", "minutes", "15.1f"),
    ("temp. GiB", "temporary_gib", "10.2f"),
    ("compile s", "compile_seconds", "10.1f"),
)


def summary(
    kernels: Sequence[Kernel],
    gpu: Gpu,
    *,
    compute_dtype: str,
    batch_size: int,
    num_images: int,
) -> dict[str, Any]:
    """Return what a step of these kernels does, and how long it may take.

    `ideal_ms` has every kernel at the GPU's limits; `mid_ms` at the usual efficiency,
    with gaps, and from it follow `mfu_mid` (of `mfu_of_tflops`, what large products of
    the dtype reach, not the vendor's peak), `images_per_second` and the `minutes` of
    300 epochs without evaluation.
    """
    flops = sum(kernel.times * kernel.flops for kernel in kernels)
    in_float32 = (k.times * k.flops for k in kernels if k.float32)
    mid = sum(kernel.mid_seconds(gpu) for kernel in kernels)
    peak = gpu.float32_flops if compute_dtype == "float32" else gpu.flops
    return {
        "kernels": sum(kernel.times for kernel in kernels),
        "tflop": flops / 1e12,
        "tflop_float32": sum(in_float32) / 1e12,
        "gigabytes": sum(kernel.times * kernel.bytes for kernel in kernels) / 1e9,
        "ideal_ms": 1e3 * sum(kernel.ideal_seconds(gpu) for kernel in kernels),
        "mid_ms": 1e3 * mid,
        "mfu_mid": flops / mid / peak,
        "mfu_of_tflops": peak / 1e12,
        "images_per_second": batch_size / mid,
        "minutes": _EPOCHS * (num_images // batch_size) * mid / 60,
    }


def heading() -> str:
    """Return the line above the rows."""
    return "  ".join(
        f"{title:{_aligned(form)}{_width(title, form)}}" for title, _, form in _COLUMNS
    )


def as_line(row: Mapping[str, Any]) -> str:
    """Return the line of a row."""
    return "  ".join(
        f"{format(row[key], form):{_aligned(form)}{_width(title, form)}}"
        for title, key, form in _COLUMNS
    )


def _aligned(form: str) -> str:
    return "<" if form.startswith("<") else ">"


def _width(title: str, form: str) -> int:
    found = re.search(r"\d+", form)
    return max(len(title), int(found[0]) if found else 0)


def breakdown(kernels: Sequence[Kernel], gpu: Gpu, count: int) -> list[str]:
    """Return lines of the `count` most expensive operations, by time at mid.

    Kernels of one operation of the traced program, in whichever layer, are a line.
    """
    alike = collections.defaultdict(list)
    for kernel in kernels:
        name = re.sub(r"\d+", "#", kernel.op_name.removeprefix("jit(train_step)/"))
        name = name or "(made by the compiler)"
        alike[name, kernel.kind].append(kernel)

    def seconds(group: list[Kernel]) -> float:
        return sum(kernel.mid_seconds(gpu) for kernel in group)

    total = seconds(list(kernels))
    lines = [f"{'ms':>8}  {'share':>6}  {'kernels':>7}  {'TFLOP':>6}  {'GB':>6}  what"]
    ordered = sorted(alike.items(), key=lambda item: -seconds(item[1]))
    for (name, kind), group in ordered[:count]:
        lines.append(
            f"{1e3 * seconds(group):8.3f}  {seconds(group) / total:6.1%}  "
            f"{sum(k.times for k in group):7d}  "
            f"{sum(k.times * k.flops for k in group) / 1e12:6.3f}  "
            f"{sum(k.times * k.bytes for k in group) / 1e9:6.2f}  {kind}: {name}"
        )
    return lines
