"""Table 4: the hyper-parameters of our runs under the published ones."""

from collections.abc import Mapping, Sequence
from typing import Any

from attn_cnn_jax.results import published
from attn_cnn_jax.results.summaries import RunSummary
from attn_cnn_jax.results.tables.entries import Entry, gather
from attn_cnn_jax.results.tables.table import Cell, Column, Footnotes, Table

_FIELDS = {
    "epochs": "num_epochs",
    "batch size": "batch_size",
    "learning rate": "optimizer.learning_rate",
    "schedule": "schedule.name",
    "momentum": "optimizer.momentum",
    "weight decay": "optimizer.weight_decay",
}


def hyper_parameter_table(runs: Sequence[RunSummary]) -> Table:
    """Table 4: a published line, then one for each config of ours under it."""
    content = published.load()["tables"]["4"]
    columns = (
        Column("model"),
        Column("whose"),
        Column("runs", "count"),
        *(Column(name, "number") for name in _FIELDS),
        Column("warm-up or drop epochs"),
    )
    footnotes = Footnotes()
    rows = []
    for line in content["lines"]:
        fields = {**content["common"], **published.protocol(line)}
        whose = Cell(line.get("source", content["source"]))
        rows.append((Cell(line["label"]), whose, Cell(), *_values(fields)))
        for name in line["rows"]:
            own = [run for run in runs if run.row is not None and run.row.name == name]
            own = [run for run in own if _nearest(run, name, line)]
            for entry in gather(own) or [None]:
                label = Cell(line["label"])
                rows.append((label, *_ours(name, entry, footnotes)))
    return Table(
        content["title"],
        columns,
        tuple(rows),
        tuple(footnotes.texts),
        tuple(content["notes"]),
    )


def _nearest(run: RunSummary, name: str, line: Mapping[str, Any]) -> bool:
    """Whether, of the published lines of a row, this one is nearest to a run."""
    lines = published.load()["tables"]["4"]["lines"]
    same = [other for other in lines if name in other["rows"]]
    kind = published.schedule_kind(run.fields)
    alike = [other for other in same if other["schedule.name"] == kind]
    return (alike or same)[0] is line


def _ours(name: str, entry: Entry | None, footnotes: Footnotes) -> list[Cell]:
    whose = f"ours: {name}"
    if entry is None:
        return [Cell(whose), *([Cell()] * (len(_FIELDS) + 2))]
    marks = footnotes.add(entry.footnotes)
    values = _values(entry.runs[0].fields)
    return [Cell(whose, footnotes=marks), Cell(len(entry.runs)), *values]


def _values(fields: Mapping[str, Any]) -> list[Cell]:
    cells = [_cell(fields.get(field)) for field in _FIELDS.values()]
    multistep = published.schedule_kind(fields) == "multistep"
    last = "schedule.drop_epochs" if multistep else "schedule.warmup_epochs"
    return [*cells, _cell(fields.get(last), as_text=True)]


def _cell(value: Any, *, as_text: bool = False) -> Cell:
    if isinstance(value, list):
        return Cell(", ".join(map(str, value)))
    if as_text and isinstance(value, int | float):
        return Cell(f"{value:.6g}")
    known = value is None or isinstance(value, str | int | float)
    return Cell(value if known else str(value))
