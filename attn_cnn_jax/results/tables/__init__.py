"""Tables 1 to 4 from our own runs, beside the paper's and the report's numbers.

    runs = read_runs(["runs/resnet18_seed1", "runs/resnet18_seed2"])
    print(to_markdown(table(1, runs)))

What was published stands in `results/published.json`; all else comes from workdirs.
"""

import os
import pathlib
from collections.abc import Iterable, Sequence

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.results.summaries import RunSummary, read_run, read_runs
from attn_cnn_jax.results.tables.hyper_parameters import hyper_parameter_table
from attn_cnn_jax.results.tables.results import other_runs, results_table
from attn_cnn_jax.results.tables.table import (
    Cell,
    Column,
    Table,
    to_csv,
    to_markdown,
)

__all__ = [
    "Cell",
    "Column",
    "RunSummary",
    "Table",
    "other_runs",
    "read_run",
    "read_runs",
    "table",
    "to_csv",
    "to_markdown",
    "write_tables",
]


def table(number: int, runs: Sequence[RunSummary]) -> Table:
    """Table `number` of the report, 1 to 4, filled with what `runs` came to.

    1 and 2: accuracy, size and cost with 9 and with 16 heads; 3: normal and
    Hierarchical Attention; 4: hyper-parameters. Runs of no row are left out.
    """
    if number in (1, 2, 3):
        return results_table(number, runs)
    if number == 4:
        return hyper_parameter_table(runs)
    raise UserError(f"there is no table {number}; choose 1, 2, 3 or 4.")


def write_tables(
    folder: str | os.PathLike, workdirs: Iterable[str | os.PathLike]
) -> list[pathlib.Path]:
    """The files written: table_1.md, table_1.csv, ... and other_runs where there are.

    Warns of every folder that is no run. Raises a `UserError` where none is one, or
    where `folder` cannot be written.
    """
    runs = read_runs(workdirs)
    tables = {f"table_{number}": table(number, runs) for number in (1, 2, 3, 4)}
    others = other_runs(runs)
    if others.rows:
        tables["other_runs"] = others
    paths = []
    try:
        pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
        for name, made in tables.items():
            for suffix, text in ((".md", to_markdown(made)), (".csv", to_csv(made))):
                path = pathlib.Path(folder) / f"{name}{suffix}"
                path.write_text(text, encoding="utf-8", newline="")
                paths.append(path)
    except OSError as error:
        raise UserError(f"the tables cannot be written: {error}.") from error
    return paths
