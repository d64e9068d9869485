"""Records of `bench.measure` as an aligned table."""

from collections.abc import Mapping, Sequence
from typing import Any

_HEADINGS = (
    ("config", ""),
    ("parameters", ""),
    ("paper", "GFLOPs"),
    ("latency", "median ms"),
    ("batch", "size"),
    ("program", "GFLOPs"),
    ("training", "images/s"),
    ("inference", "images/s"),
    ("compile", "train s"),
    ("compile", "eval s"),
    ("memory", "train MiB"),
    ("memory", "eval MiB"),
)


def as_text(records: Sequence[Mapping[str, Any]]) -> str:
    """Return a line for each config and batch size, then the devices and versions."""
    rows = [tuple(heading[i] for heading in _HEADINGS) for i in (0, 1)]
    for record in records:
        latency = record["latency_ms"]
        fixed = (
            record["config"],
            f"{record['parameters']:,}",
            _billions(record["flops_paper"]),
            f"{latency['median']:.4g}" if latency else "-",
        )
        for batch in record["batches"]:
            rows.append((*fixed, *_batch_cells(batch)))
            fixed = ("",) * len(fixed)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    lines.insert(2, "  ".join("-" * width for width in widths))
    return "\n".join([*lines, "", *_circumstances(records)])


def _batch_cells(batch: Mapping[str, Any]) -> tuple[str, ...]:
    def cells(key: str, form: str, unit: int = 1) -> list[str]:
        values = {kind: batch[f"{kind}_{key}"] for kind in ("train", "eval")}
        missing = {
            kind: "out of memory" if kind in batch["out_of_memory"] else "-"
            for kind in values
        }
        return [
            missing[kind] if value is None else format(value / unit, form)
            for kind, value in values.items()
        ]

    return (
        f"{batch['batch_size']:,}",
        _billions(batch["flops"]),
        *cells("images_per_second", ",.4g"),
        *cells("compile_seconds", ".1f"),
        *cells("peak_bytes", ",.4g", 2**20),
    )


def _billions(count: int | None) -> str:
    """Return three decimals, or as many as show three digits; "-" if not known."""
    if count is None:
        return "-"
    return f"{count / 1e9:.3f}" if count >= 1e8 else f"{count / 1e9:.3g}"


def _circumstances(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return device, types, versions and the spread of latencies, each once."""
    lines = []
    for record in records:
        commit = (record["git_commit"] or "no checkout")[:12]
        lines.append(
            f"{record['devices']} x {record['device_kind']} ({record['platform']}), "
            f"{record['compute_dtype']}, jax {record['jax']}, commit {commit}, "
            f"{record['date'][:10]}; memory: {_sources(record)}"
        )
        if record["overrides"]:
            changed = (f"{k}={v}" for k, v in record["overrides"].items())
            lines.append(f"{record['config']} with {', '.join(changed)}")
        if latency := record["latency_ms"]:
            lines.append(
                f"{record['config']}: latency of batch 1 {latency['mean']:.3f} +- "
                f"{latency['std']:.3f} ms over {latency['calls']} calls"
            )
    return list(dict.fromkeys(lines))


def _sources(record: Mapping[str, Any]) -> str:
    """Name the sources: memory_stats of the device, memory_analysis of the program."""
    sources = (batch["memory_source"] for batch in record["batches"])
    return "; ".join(dict.fromkeys(filter(None, sources))) or "-"
