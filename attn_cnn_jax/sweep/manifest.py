"""The list of a sweep's runs: a text file with the flags of one run on each line.

It is the file of runs that launch/slurm.sbatch takes for an array, and any scheduler
can take line N for its task N.
"""

import dataclasses
import itertools
import pathlib
import re
from collections.abc import Iterable, Sequence

from attn_cnn_jax import config as config_lib
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.results import published


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """A run as `attn_cnn_jax.main` takes it."""

    workdir: pathlib.Path
    flags: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of its workdir."""
        return self.workdir.name


def rows_of_table(number: str) -> list[str]:
    """Return the names of the configs in a published table, "1", "2" or "3"."""
    tables = published.load()["tables"]
    if number not in ("1", "2", "3"):
        raise UserError(f"--table={number}: take 1, 2 or 3.")
    return list(dict.fromkeys(line["row"] for line in tables[number]["lines"]))


def plan(
    configs: Iterable[str],
    seeds: Iterable[int],
    folder: pathlib.Path,
    flags: Sequence[str] = (),
) -> list[PlannedRun]:
    """Return a run of each config, as behind --config=, with each seed.

    Its workdir is FOLDER/<config>[_<options>]_seed<n>. `flags` are those of all runs.
    Raises a `UserError` for a config that cannot be read, and for text that a line of
    the file cannot hold.
    """
    runs = []
    for config, seed in itertools.product(dict.fromkeys(configs), dict.fromkeys(seeds)):
        path, colon, options = config.partition(":")
        config_lib.check(config_lib.read_file(path, options if colon else None))
        name = "_".join(
            [pathlib.Path(path).stem, *filter(None, options.split(",")), f"seed{seed}"]
        )
        workdir = folder / name
        given = (f"--config={config}", f"--config.seed={seed}", f"--workdir={workdir}")
        runs.append(PlannedRun(workdir, (*given, *flags)))
    for text in itertools.chain.from_iterable(run.flags for run in runs):
        if re.search(r"\s", text):
            raise UserError(f"{text!r}: the flags of a sweep have no spaces.")
    if len({run.workdir for run in runs}) < len(runs):
        raise UserError("two of these configs have one name; their runs would meet.")
    return runs


def write(runs: Sequence[PlannedRun], path: pathlib.Path) -> None:
    """Write the list, or refuse where another list has that name.

    Raises a `UserError`; runs that begin at different times are to be the same ones.
    """
    text = "".join(f"{' '.join(run.flags)}\n" for run in runs)
    if path.exists():
        if path.read_text(encoding="utf-8") != text:
            raise UserError(
                f"{path} is the list of other runs; remove it, or name another --name."
            )
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
