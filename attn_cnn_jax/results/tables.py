"""Tables 1 to 4 from our own runs, beside the paper's and the report's numbers.

    runs = read_runs(["runs/resnet18_seed1", "runs/resnet18_seed2"])
    print(to_markdown(table(1, runs)))

What was published stands in `published.json`; all else comes from workdirs.
"""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.results import published
from attn_cnn_jax.results.entries import Entry, gather
from attn_cnn_jax.results.runs import ScoredRun
from attn_cnn_jax.results.table_text import Cell, Column, Footnotes, Kind, Table

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
    Column("95 % interval over"),
    Column("runs", "count"),
    Column("epochs", "number"),
    Column("goodput", "percent"),
    Column("status"),
    Column("logs"),
)
_PARAMETERS = Column("ours: parameters", "count")
_FLOPS = (
    Column("ours: FLOPs", "flops"),
    Column("ours: FLOPs with attention", "flops"),
)
_LATENCY = (Column("ours: latency, ms", "milliseconds"), Column("device"))
# Fields of the published hyper-parameters by their heading.
_HYPER_PARAMETERS = {
    "epochs": "num_epochs",
    "batch size": "batch_size",
    "learning rate": "optimizer.learning_rate",
    "schedule": "schedule.name",
    "momentum": "optimizer.momentum",
    "weight decay": "optimizer.weight_decay",
}


def table(number: int, runs: Sequence[ScoredRun], only_measured: bool = False) -> Table:
    """Return table `number` of the report, 1 to 4, filled with what `runs` came to.

    1 and 2: accuracy, size and cost with 9 and with 16 heads; 3: normal and
    Hierarchical Attention; 4: hyper-parameters. Runs of no row are left out, and with
    `only_measured` the lines that no run belongs to.
    """
    nothing: list[Entry | None] = [] if only_measured else [None]
    if number in (1, 2, 3):
        return _results(number, runs, nothing)
    if number == 4:
        return _hyper_parameters(runs, nothing)
    raise UserError(f"there is no table {number}; choose 1, 2, 3 or 4.")


def other_runs(runs: Sequence[ScoredRun]) -> Table:
    """Return the runs that belong to no row: other data, other sizes, other models."""
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
        data, *network = published.data_and_network(entry.runs[0].config)
        rows.append(
            (
                Cell(", ".join(run.name for run in entry.runs)),
                Cell(data),
                Cell(", ".join(filter(None, network))),
                *_scores(entry, footnotes),
                Cell(entry.runs[0].parameters),
                *_flops(entry),
                *_latency(entry, footnotes),
            )
        )
    notes = tuple(published.load()["notes"]["results"][:3])  # that are not of rows
    title = "Other runs: in no row of the published tables"
    return Table(title, columns, tuple(rows), tuple(footnotes.texts), notes)


def _results(
    number: int, runs: Sequence[ScoredRun], nothing: Sequence[Entry | None]
) -> Table:
    """Return Table 1, 2 or 3: every published line, and our runs' numbers beside it.

    A line stands once for each way in which its runs were trained, and for `nothing`
    where there are none.
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
        own = [run for run in runs if run.row and run.row.name == line["row"]]
        for entry in gather(own) or nothing:

            def cells(keys: Sequence[str], line: Mapping[str, Any] = line):
                return [_published_cell(line, key, footnotes) for key in keys]

            row = entry.runs[0].row if entry else None
            rows.append(
                (
                    Cell(line["label"]),
                    Cell(row.config_name if row else line["row"]),
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


def _column(key: str) -> Column:
    return Column(*_PUBLISHED[key])


def _published_cell(line: Mapping[str, Any], key: str, footnotes: Footnotes) -> Cell:
    texts = []
    if key in line.get("sources", {}):
        texts.append(line["sources"][key])
    if key in line.get("measured_with", {}):
        other = line["measured_with"][key]
        texts.append(
            f"Measured with the report's own code: here config {other}, not config "
            f"{line['row']}."
        )
    return Cell(line.get(key), footnotes=footnotes.add(texts))


def _scores(entry: Entry | None, footnotes: Footnotes) -> list[Cell]:
    if entry is None:
        return [Cell()] * len(_SCORES)
    marks = footnotes.add(entry.footnotes)
    departures = footnotes.add(entry.departures)
    goodputs = [run.goodput for run in entry.runs if run.goodput is not None]
    accuracies = [
        entry.accuracy(lambda run: run.best),
        entry.accuracy(lambda run: run.final),
    ]
    return [
        *(
            cell
            if cell.value is None
            else dataclasses.replace(cell, footnotes=departures)
            for cell in accuracies
        ),
        Cell(entry.interval),
        Cell(len(entry.runs)),
        Cell(max(run.epochs for run in entry.runs)),
        Cell(statistics.fmean(goodputs) if goodputs else None),
        Cell(entry.status, footnotes=marks),
        Cell(entry.digests),
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


def _hyper_parameters(
    runs: Sequence[ScoredRun], nothing: Sequence[Entry | None]
) -> Table:
    """Return Table 4: a published line, then one for each config of ours under it."""
    content = published.load()["tables"]["4"]
    columns = (
        Column("model"),
        Column("whose"),
        Column("runs", "count"),
        *(Column(name, "number") for name in _HYPER_PARAMETERS),
        Column("warm-up or drop epochs"),
    )
    footnotes = Footnotes()
    rows = []
    for line in content["lines"]:
        label = Cell(line["label"])
        whose = Cell(line.get("source", content["source"]))
        values = _protocol({**content["common"], **line})
        ours = [
            (label, *_ours(name, entry, footnotes))
            for name in line["configs"]
            for entry in gather(
                [run for run in runs if run.row and run.row.config_name == name]
            )
            or nothing
        ]
        rows += [(label, whose, Cell(), *values), *ours] if ours else []
    return Table(
        content["title"],
        columns,
        tuple(rows),
        tuple(footnotes.texts),
        tuple(content["notes"]),
    )


def _ours(name: str, entry: Entry | None, footnotes: Footnotes) -> list[Cell]:
    if entry is None:
        return [Cell(f"ours: {name}"), *([Cell()] * (len(_HYPER_PARAMETERS) + 2))]
    whose = Cell(f"ours: {name}", footnotes=footnotes.add(entry.footnotes))
    values = _protocol(entry.runs[0].settings)
    return [whose, Cell(len(entry.runs)), *values]


def _protocol(fields: Mapping[str, Any]) -> list[Cell]:
    """Return the cells of Table 4 for these config fields."""
    cells = [_cell(fields.get(field)) for field in _HYPER_PARAMETERS.values()]
    multistep = fields.get("schedule.name") == "multistep"
    last = fields.get(f"schedule.{'drop' if multistep else 'warmup'}_epochs")
    if isinstance(last, int | float):
        return [*cells, Cell(f"{last:.6g}")]
    return [*cells, _cell(last)]


def _cell(value: Any) -> Cell:
    if isinstance(value, list | tuple):
        return Cell(", ".join(map(str, value)))
    known = value is None or isinstance(value, str | int | float)
    return Cell(value if known else str(value))
