"""A line for each config: parameters, published accuracies, and those of runs."""

import statistics
from collections.abc import Iterable, Sequence

from attn_cnn_jax import config as config_lib
from attn_cnn_jax.results import published
from attn_cnn_jax.results.runs import ScoredRun

_HEADINGS = ("config", "parameters", "paper", "report", "yours", "")


def lines(runs: Iterable[ScoredRun]) -> list[tuple[str, ...]]:
    """Return for each config its name, parameters, accuracies (in %) and label.

    Accuracies are the best ones, as published: of the paper, of the report, and the
    mean over those of `runs` that are complete. "" stands for what is not known.
    """
    best: dict[str, list[float]] = {}
    for run in runs:
        if run.row and run.finished and run.best:
            best.setdefault(run.row.name, []).append(run.best.accuracy)
    tables = published.load()["tables"]
    numbers: dict[str, dict[str, float]] = {}
    for line in (line for table in "123" for line in tables[table]["lines"]):
        for source in ("paper", "report"):
            if source in line:
                numbers.setdefault(line["row"], {}).setdefault(source, line[source])
    labels = {row.name: row.label for row in published.rows()}
    labels |= {
        "quickstart": "made for the demo",
        "laptop": "made for CIFAR-10 on a CPU",
    }
    found = []
    for name in sorted(path.stem for path in config_lib.folder().glob("*.py")):
        parameters = published.count_parameters(published.load_config(name))
        own = best.get(name, [])
        found.append(
            (
                name,
                f"{parameters:,}" if parameters is not None else "",
                *(_percent(numbers.get(name, {}).get(s)) for s in ("paper", "report")),
                f"{_percent(statistics.mean(own))} (n = {len(own)})" if own else "",
                labels.get(name, ""),
            )
        )
    return found


def as_text(lines: Sequence[tuple[str, ...]]) -> str:
    """Return the lines as a table, headings first."""
    rows = [_HEADINGS, *lines]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = [
        "  ".join(
            [
                f"{row[0]:<{widths[0]}}",
                *(f"{c:>{w}}" for c, w in zip(row[1:-1], widths[1:-1], strict=True)),
                row[-1],
            ]
        ).rstrip()
        for row in rows
    ]
    return "\n".join(aligned)


def _percent(accuracy: float | None) -> str:
    return "" if accuracy is None else f"{100 * accuracy:.1f}"
