"""Tables 1 to 3, accuracy and cost beside the published, and the runs outside them."""

from collections.abc import Mapping, Sequence
from typing import Any

from attn_cnn_jax.results import published
from attn_cnn_jax.results.summaries import RunSummary
from attn_cnn_jax.results.tables.entries import Entry, gather
from attn_cnn_jax.results.tables.table import Cell, Column, Footnotes, Kind, Table

# Heading and kind of what the papers publish, where a table has it.
_PUBLISHED: dict[str, tuple[str, Kind]] = {
    "paper": ("paper: accuracy", "published accuracy"),
    "report": ("report: accuracy", "published accuracy"),
    "parameters": ("published: parameters", "rounded count"),
    "flops": ("paper: FLOPs", "flops"),
    "latency_ms": ("report: latency, ms", "milliseconds"),
}
_SCORES = (
    Column("ours: best accuracy", "accuracy", over_seeds=True),
    Column("ours: final accuracy", "accuracy", over_seeds=True),
    Column("runs", "count"),
    Column("epochs", "number"),
    Column("status"),
)
_PARAMETERS = Column("ours: parameters", "count")
_FLOPS = (
    Column("ours: FLOPs", "flops"),
    Column("ours: FLOPs with attention", "flops"),
)
_LATENCY = (Column("ours: latency, ms", "milliseconds"), Column("device"))


def results_table(number: int, runs: Sequence[RunSummary]) -> Table:
    """Table 1, 2 or 3: every published line, with what our runs came to beside it.

    A line stands once for each way in which its runs were trained.
    """
    content = published.load()["tables"][str(number)]
    there = content["columns"]
    accuracies = [key for key in ("paper", "report") if key in there]
    parameters, flops, latency = (
        [key] if key in there else [] for key in ("parameters", "flops", "latency_ms")
    )
    columns = (
        Column("model"),
        Column("config"),
        *map(_column, accuracies),
        *_SCORES,
        *map(_column, parameters),
        _PARAMETERS,
        *map(_column, flops),
        *_FLOPS,
        *map(_column, latency),
        *_LATENCY,
    )
    footnotes = Footnotes()
    rows = []
    for line in content["lines"]:
        own = [r for r in runs if r.row is not None and r.row.name == line["row"]]
        for entry in gather(own) or [None]:

            def cells(keys: Sequence[str], line: Mapping[str, Any] = line):
                return [_published_cell(line, key, footnotes) for key in keys]

            rows.append(
                (
                    Cell(line["label"]),
                    Cell(line["row"]),
                    *cells(accuracies),
                    *_scores(entry, footnotes),
                    *cells(parameters),
                    Cell(entry.runs[0].parameters if entry else None),
                    *cells(flops),
                    *_flops(entry),
                    *cells(latency),
                    *_latency(entry, footnotes),
                )
            )
    sources = [
        f'Source of "{_PUBLISHED[key][0]}": {source}.' for key, source in there.items()
    ]
    notes = (*published.load()["notes"]["results"], *sources, *content["notes"])
    return Table(content["title"], columns, tuple(rows), tuple(footnotes.texts), notes)


def other_runs(runs: Sequence[RunSummary]) -> Table:
    """The runs that belong to no row: other data, other sizes, other models."""
    columns = (
        Column("run"),
        Column("data"),
        Column("model"),
        *_SCORES,
        _PARAMETERS,
        *_FLOPS,
        *_LATENCY,
    )
    footnotes = Footnotes()
    rows = []
    for entry in gather([run for run in runs if run.row is None]):
        fields = entry.runs[0].fields
        attention = fields.get("model.attention.name", fields.get("model.attention"))
        names = [str(name) for name in (fields.get("model.name"), attention) if name]
        rows.append(
            (
                Cell(", ".join(run.name for run in entry.runs)),
                Cell(str(fields.get("dataset.name"))),
                Cell(", ".join(names)),
                *_scores(entry, footnotes),
                Cell(entry.runs[0].parameters),
                *_flops(entry),
                *_latency(entry, footnotes),
            )
        )
    notes = (published.load()["notes"]["results"][0],)
    title = "Other runs: in no row of the published tables"
    return Table(title, columns, tuple(rows), tuple(footnotes.texts), notes)


def _column(key: str) -> Column:
    return Column(*_PUBLISHED[key])


def _published_cell(line: Mapping[str, Any], key: str, footnotes: Footnotes) -> Cell:
    source = line.get("sources", {}).get(key)
    return Cell(line.get(key), footnotes=footnotes.add([source] if source else []))


def _scores(entry: Entry | None, footnotes: Footnotes) -> list[Cell]:
    if entry is None:
        return [Cell()] * len(_SCORES)
    marks = footnotes.add(entry.footnotes)
    return [
        entry.accuracy(lambda run: run.best),
        entry.accuracy(lambda run: run.final),
        Cell(len(entry.runs)),
        Cell(max(run.epochs for run in entry.runs)),
        Cell(entry.status, footnotes=marks),
    ]


def _flops(entry: Entry | None) -> list[Cell]:
    bench = entry.bench if entry else None
    return [Cell(bench.flops_paper), Cell(bench.flops)] if bench else [Cell(), Cell()]


def _latency(entry: Entry | None, footnotes: Footnotes) -> list[Cell]:
    bench = entry.bench if entry else None
    if entry is None or bench is None or bench.latency_ms is None:
        return [Cell(), Cell()]
    others = [
        f"Another seed: {run.bench.latency_ms:.3f} ms on {run.bench.device}."
        for run in entry.runs
        if run.bench and run.bench.latency_ms and run.bench.device != bench.device
    ]
    return [Cell(bench.latency_ms, footnotes=footnotes.add(others)), Cell(bench.device)]
