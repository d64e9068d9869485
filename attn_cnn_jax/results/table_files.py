"""The tables of runs as files: which of them, and in which formats."""

import os
import pathlib
from collections.abc import Callable, Iterable, Sequence

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.results.runs import read_runs
from attn_cnn_jax.results.table_latex import to_latex
from attn_cnn_jax.results.table_text import Table, to_csv, to_markdown
from attn_cnn_jax.results.tables import other_runs, table

FORMATS: dict[str, tuple[str, Callable[[Table], str]]] = {
    "markdown": ("md", to_markdown),
    "csv": ("csv", to_csv),
    "latex": ("tex", to_latex),
}
TABLES = ("1", "2", "3", "4", "other")


def write_tables(
    folder: str | os.PathLike,
    workdirs: Iterable[str | os.PathLike],
    tables: Sequence[str] = TABLES,
    formats: Sequence[str] = ("markdown", "csv"),
    only_measured: bool = False,
) -> list[pathlib.Path]:
    """Write table_1.md, table_1.csv, ..., other_runs.md, ... and return their paths.

    A table without a row is left out: that of other runs where all are of published
    rows, and with `only_measured`, which leaves out the lines that no run belongs to,
    those that no run is in. Warns of every folder that is no run. Raises a `UserError`
    where none is one, where no table is left, for a table or a format that there is
    not, or where `folder` cannot be written.
    """
    _check("table", tables, TABLES)
    _check("format", formats, list(FORMATS))
    runs = read_runs(workdirs)
    made: dict[str, Table] = {}
    for name in tables:
        if name == "other":
            made["other_runs"] = other_runs(runs)
        else:
            made[f"table_{name}"] = table(int(name), runs, only_measured)
    made = {name: one for name, one in made.items() if one.rows}
    if not made:
        raise UserError(f"none of these runs is in the tables {', '.join(tables)}.")
    paths = []
    try:
        pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
        for name, one in made.items():
            for suffix, text_of in (FORMATS[format] for format in formats):
                path = pathlib.Path(folder) / f"{name}.{suffix}"
                path.write_text(text_of(one), encoding="utf-8", newline="")
                paths.append(path)
    except OSError as error:
        raise UserError(f"the tables cannot be written: {error}.") from error
    return paths


def _check(what: str, names: Sequence[str], known: Sequence[str]) -> None:
    unknown = [repr(name) for name in names if name not in known]
    if unknown or not names:
        raise UserError(
            f"there is no {what} {', '.join(unknown) or 'to write'}; choose from "
            f"{', '.join(known)}."
        )
