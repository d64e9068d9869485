"""Rows of the published tables with several seeds, and the tables of them.

attn-cnn sweep --table=1 --seeds=0,1,2
attn-cnn sweep --configs=vit:short --configs=resnet18:short --seeds=0,1
attn-cnn sweep --table=1 --seeds=0,1,2 --status
sbatch --nodes=1 --array=1-27 launch/slurm.sbatch runs/table_1.txt
"""

import contextlib
import pathlib
import signal
import sys
from collections.abc import Iterator

from absl import flags

from attn_cnn_jax import checkpoint, command_line
from attn_cnn_jax.errors import UserError, one_line
from attn_cnn_jax.results.runs import read_run
from attn_cnn_jax.results.table_files import write_tables
from attn_cnn_jax.sweep import local, manifest
from attn_cnn_jax.sweep.manifest import PlannedRun

_TABLE = flags.DEFINE_string("table", None, "All rows of a published table: 1, 2 or 3.")
_CONFIGS = flags.DEFINE_multi_string(
    "configs", [], "A config as train takes it, vit:digits for example; repeat it."
)
_OPTIONS = flags.DEFINE_string(
    "options", "", "Options of all rows of --table, with commas: digits,short."
)
_SEEDS = flags.DEFINE_list("seeds", ["42"], "Seeds, with commas.")
_FOLDER = command_line.define_path("folder", "runs", "Where the workdirs lie.")
_NAME = flags.DEFINE_string(
    "name", None, "Name of the list of runs; default table_<n> or sweep."
)
_DATA_DIR = command_line.define_path("data_dir", None, "As of train, for all runs.")
_PARALLEL = flags.DEFINE_integer(
    "parallel", 0, "Runs at a time; 0: one a GPU, one without a GPU.", lower_bound=0
)
_ENGINE = flags.DEFINE_enum(
    "engine", "local", ["local", "list"], "Train here, or only write the list of runs."
)
_STATUS = flags.DEFINE_bool("status", False, "Only say how far the runs are.")
command_line.define_variant_flag()


def main() -> int:
    """Plan the runs, and train or list them; returns the exit status."""
    runs = _planned()
    if _STATUS.value:
        print("\n".join(map(_state, runs)))
        return 0
    path = pathlib.Path(_FOLDER.value) / f"{_name()}.txt"
    manifest.write(runs, path)
    left = [run for run in runs if not _is_complete(run)]
    print(
        f"{len(runs)} runs in {path}, {len(runs) - len(left)} of them complete",
        flush=True,
    )
    if _ENGINE.value == "list":
        print(f"one task a run: sbatch --nodes=1 --array=1-{len(runs)} ", end="")
        print(f"launch/slurm.sbatch {path}")
        return 0
    with _sigterm_as_interrupt():
        engine = local.LocalEngine(_places(), lambda line: print(line, flush=True))
        complete = engine.train(left)
    whole = [str(run.workdir) for run in runs if _is_complete(run)]
    if whole:
        folder = pathlib.Path(_FOLDER.value) / f"{_name()}_tables"
        for table in write_tables(folder, whole, only_measured=True):
            if table.suffix == ".md":
                print(f"\n{table.read_text(encoding='utf-8')}", end="")
        print(f"\ntables in {folder}")
    failed = complete.count(False)
    if failed:
        print(f"error: {failed} of {len(runs)} runs failed; see above", file=sys.stderr)
    return 1 if failed else 0


def _planned() -> list[PlannedRun]:
    configs = list(_CONFIGS.value)
    if _TABLE.value is not None:
        options = f":{_OPTIONS.value}" if _OPTIONS.value else ""
        configs += [f"{row}{options}" for row in manifest.rows_of_table(_TABLE.value)]
    if not configs:
        raise UserError("name runs: --table=1, or --configs=NAME, once for each.")
    try:
        seeds = [int(seed) for seed in _SEEDS.value]
    except ValueError as error:
        raise UserError(f"--seeds={','.join(_SEEDS.value)}: take numbers.") from error
    given = [f"--data_dir={_DATA_DIR.value}"] if _DATA_DIR.value else []
    given += [f"--variant={path}" for path in flags.FLAGS["variant"].value or []]
    return manifest.plan(configs, seeds, pathlib.Path(_FOLDER.value), given)


def _name() -> str:
    return _NAME.value or (f"table_{_TABLE.value}" if _TABLE.value else "sweep")


def _places() -> list[str]:
    found = local.gpus() or [""]
    count = _PARALLEL.value or len(found)
    return [found[place % len(found)] for place in range(count)]


def _is_complete(run: PlannedRun) -> bool:
    if checkpoint.read_config(run.workdir) is None:
        return False
    with contextlib.suppress(UserError):
        return read_run(run.workdir).finished
    return False


def _state(run: PlannedRun) -> str:
    """Return a line on how far a run is."""
    if checkpoint.read_config(run.workdir) is None:
        return f"{run.name}: not begun"
    try:
        scored = read_run(run.workdir)
    except UserError as error:
        return f"{run.name}: {one_line(error)}"
    said = f"{run.name}: epoch {scored.epochs:.4g} of {scored.num_epochs}"
    if scored.best:
        said += f", best test accuracy {scored.best.accuracy:.4f}"
    return f"{said}, complete" if scored.finished else said


@contextlib.contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Let SIGTERM and a lost terminal save the runs, as Ctrl-C does."""

    def interrupt(number: int, unused: object) -> None:
        raise KeyboardInterrupt

    before = {n: signal.signal(n, interrupt) for n in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    command_line.run(main)
