"""Figures, numbers, tables and the viewer of runs, from their workdirs alone.

python -m attn_cnn_jax.analyze --workdir=runs/demo
python -m attn_cnn_jax.analyze --workdir=runs/demo --figure=query --query=1,2
python -m attn_cnn_jax.analyze --tables --workdirs='runs/*'
python -m attn_cnn_jax.analyze --workdir=runs/X --prune --output=runs/X_pruned
"""

import glob
import math
import os
import pathlib
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from absl import flags
from ml_collections import ConfigDict

from attn_cnn_jax import checkpoint, command_line, parallel
from attn_cnn_jax import config as config_lib
from attn_cnn_jax.analysis import ablation, figures, heads, plots, pruning
from attn_cnn_jax.analysis.averages import VARIANTS
from attn_cnn_jax.analysis.images import ChosenImages, choose_images
from attn_cnn_jax.analysis.lazy_maps import LazyMaps
from attn_cnn_jax.analysis.subject import Subject
from attn_cnn_jax.analysis.viewer import write_viewer
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.results.curves import run_curves
from attn_cnn_jax.results.tables import write_tables
from attn_cnn_jax.run import Run

_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run.")
_WORKDIRS = flags.DEFINE_multi_string(
    "workdirs", [], "Runs for --tables and --figure=curves; globs; may be repeated."
)
_FIGURE = flags.DEFINE_list(
    "figure",
    [],
    f"{', '.join(figures.FIGURES)}, curves, viewer, ablation; several with commas. "
    "Without it all that the run can show but ablation.",
)
_TABLES = flags.DEFINE_bool("tables", False, "Tables 1 to 4 of the runs.")
_PRUNE = flags.DEFINE_bool(
    "prune", False, "Write the run without its degenerate heads as the run --output."
)
_HEADS = flags.DEFINE_list(
    "heads", None, "For --prune: these heads instead, layer:head, both from 1."
)
_OUTPUT = flags.DEFINE_string(
    "output", None, "Folder to write to; default WORKDIR/analysis, or tables/."
)
_CHECKPOINT = flags.DEFINE_string("checkpoint", "last", "last, best, or a step.")
_IMAGES = flags.DEFINE_list(
    "images",
    ["0"],
    "Images to show: indices (3, 0-7) or records (test_00016) of the test set, image "
    "files, or names of CIFAR.",
)
_CIFAR_BATCHES = flags.DEFINE_string(
    "cifar_batches", None, "CIFAR's python version, for images by their file name."
)
_NUM_IMAGES = flags.DEFINE_integer(
    "num_images", None, "Test images for means and numbers (50), for ablation (1,000)."
)
_QUERY = flags.DEFINE_string("query", "", "row,column of the grid; default the middle.")
_BY_KEY = flags.DEFINE_bool(
    "by_key", False, "query: who attends to the pixel (the report's plots)."
)
_AVERAGE = flags.DEFINE_enum(
    "average", "query", VARIANTS, "average: which reading of the report's Eqn 4."
)
_LAYER = flags.DEFINE_integer("layer", 1, "centers_layer: which, from 1.")
_REORDER = flags.DEFINE_bool("reorder", False, "Heads by the offset they look at.")
_THRESHOLD = flags.DEFINE_float(
    "threshold", heads.COVERING_MASS, "heads: mass from which an offset is covered."
)
_VIEWER_MAX_MB = flags.DEFINE_float("viewer_max_mb", 100.0, "viewer: largest file, MB.")
_VIEWER_EPOCHS = flags.DEFINE_bool(
    "viewer_epochs", True, "viewer: all snapshots, not the checkpoint alone."
)
_DATA_DIR = flags.DEFINE_string(
    "data_dir", None, "TFDS data_dir in place of the run's."
)
command_line.define_variant_flag()


def main() -> int:
    """Draw, count or tabulate what the flags ask for; returns the exit status."""
    _check_flags()
    workdir = os.path.expanduser(_WORKDIR.value or "")
    several = [workdir] if workdir else []
    several += _matching(_WORKDIRS.value)
    if _TABLES.value:
        return _tables(several or _matching(["runs/*"]))
    names = _FIGURE.value
    if not workdir:
        if names == ["curves"] and several:
            _save_curves(several, _folder("curves"))
            return 0
        raise UserError("--workdir=RUN is missing (or --tables --workdirs=RUNS).")
    if _PRUNE.value:
        return _prune(workdir)
    config, folder = _read_config(workdir), os.path.join(workdir, "analysis")
    drawn = False
    if not names or "curves" in names:  # which alone needs no checkpoint
        drawn = _drawn("curves", _save_curves, several, _folder(folder))
    if names and set(names) == {"curves"}:
        return 0
    run = _open_run(workdir, config)
    subject: Subject | None = None
    for name in names or figures.available(run):
        if name == "ablation":
            _save_ablation(run, _folder(folder))
        elif name != "curves":
            subject = subject or _subject(run)
            drawn |= _drawn(name, _draw, name, subject, _folder(folder))
    if not (drawn or names):
        raise UserError(f"nothing of {workdir} could be drawn; see why above.")
    return 0


def _check_flags() -> None:
    """Refuse what contradicts itself, before anything is read or computed."""
    known = (*figures.FIGURES, "curves", "viewer", "ablation")
    for name in _FIGURE.value:
        if name not in known:
            raise UserError(
                f"there is no figure {name!r}; choose from {', '.join(known)}."
            )
    if sum(map(bool, (_TABLES.value, _PRUNE.value, _FIGURE.value))) > 1:
        raise UserError("--tables, --prune and --figure: give one of them.")
    if _HEADS.value and not _PRUNE.value:
        raise UserError("--heads names the heads that --prune removes; add --prune.")
    if _WORKDIRS.value and (
        _PRUNE.value or (_FIGURE.value and "curves" not in _FIGURE.value)
    ):
        raise UserError("--workdirs are for --tables and --figure=curves; drop them.")
    if _BY_KEY.value and (
        "query" not in _FIGURE.value or "query_mean" in _FIGURE.value
    ):
        raise UserError("--by_key is for --figure=query and not for query_mean.")
    megabytes = _VIEWER_MAX_MB.value
    if not (megabytes > 0 and math.isfinite(1e6 * megabytes)):
        raise UserError(f"--viewer_max_mb={megabytes:g}; take a number above 0.")


def _drawn(name: str, draw: Callable[..., None], *arguments: Any) -> bool:
    """Call `draw`; without --figure, what a run cannot show is a note and False."""
    try:
        draw(*arguments)
    except UserError as error:
        if _FIGURE.value:
            raise
        print(f"{name}: not drawn: {error}")
        return False
    return True


def _draw(name: str, subject: Subject, folder: pathlib.Path) -> None:
    if name == "viewer":
        _write_viewer(subject, folder)
        return
    for file, figure in figures.draw(name, subject):
        _saved(plots.save(figure, folder, file))
    if name == "heads":
        _write_numbers(subject.numbers, folder)


def _read_config(workdir: str) -> ConfigDict:
    config = checkpoint.read_config(workdir)
    if config is None:
        raise UserError(f"{workdir} is not the workdir of a run.")
    return config


def _open_run(workdir: str, config: ConfigDict) -> Run:
    config_lib.check(config)
    parallel.enable_x64_for(config)
    data_dir = _DATA_DIR.value and os.path.expanduser(_DATA_DIR.value)
    return Run(workdir, _checkpoint(), data_dir)


def _checkpoint() -> str | int:
    name = _CHECKPOINT.value
    return int(name) if re.fullmatch("[0-9]{1,18}", name) else name


def _subject(run: Run) -> Subject:
    shown = choose_images(run.dataset, _IMAGES.value, _CIFAR_BATCHES.value)
    for note in shown.notes:
        print(note)
    return Subject(
        run,
        shown,
        _first_images(run, 50),
        query=_QUERY.value,
        by_key=_BY_KEY.value,
        average=_AVERAGE.value,
        layer=_LAYER.value,
        reorder=_REORDER.value,
        threshold=_THRESHOLD.value,
    )


def _first_images(run: Run, default: int) -> ChosenImages:
    count = min(_num_images(default), len(run.dataset.test))
    return choose_images(run.dataset, [f"0-{count - 1}"])


def _num_images(default: int) -> int:
    count = default if _NUM_IMAGES.value is None else _NUM_IMAGES.value
    if count < 1:
        raise UserError(f"--num_images={count}; take 1 or more.")
    return count


def _save_curves(workdirs: Sequence[str], folder: pathlib.Path) -> None:
    figure = plots.learning_curves(run_curves(dict.fromkeys(workdirs)))
    _saved(plots.save(figure, folder, "curves"))


def _save_ablation(run: Run, folder: pathlib.Path) -> None:
    result = ablation.ablate(run, min(_num_images(1000), len(run.dataset.test)))
    figure = plots.ablated_accuracy(
        [np.array(layer, float) for layer in result.accuracies],
        baseline=result.accuracy,
        standard_errors=[np.array(layer, float) for layer in result.standard_errors],
        num_images=result.num_images,
        title=run.title,
        layers=result.layers,
    )
    _saved(plots.save(figure, folder, "ablation"))
    ablation.write_csv(result, folder / "ablation.csv")
    ablation.write_json(result, folder / "ablation.json")
    largest = max((e for layer in result.standard_errors for e in layer), default=0.0)
    print(
        f"{folder / 'ablation.csv'}, ablation.json: accuracy {result.accuracy:.4f} "
        f"with all heads, standard error {result.standard_error:.4f} "
        f"(n = {result.num_images:,} images); standard error of a head's change at "
        f"most {largest:.4f}"
    )


def _prune(workdir: str) -> int:
    if not _OUTPUT.value:
        raise UserError("--prune needs --output=NEW_WORKDIR.")
    removal = pruning.prune(
        workdir, os.path.expanduser(_OUTPUT.value), _checkpoint(), _HEADS.value
    )
    print(removal)
    return 0


def _write_viewer(subject: Subject, folder: pathlib.Path) -> None:
    run, path = subject.run, folder / "viewer.html"
    runs = figures.checkpoints(run) if _VIEWER_EPOCHS.value else [run]
    size = write_viewer(
        path,
        LazyMaps(runs, subject.shown),
        title=run.name,
        max_bytes=round(_VIEWER_MAX_MB.value * 1e6),
    )
    print(
        f"{path} ({size / 1e6:.1f} MB, {len(subject.shown.images)} images, "
        f"{len(runs)} checkpoints): open it in a browser"
    )


def _write_numbers(table: heads.HeadTable, folder: pathlib.Path) -> None:
    heads.write_csv(table, folder / "heads.csv")
    heads.write_json(table, folder / "heads.json")
    print(heads.as_text(table))
    print(f"{folder / 'heads.csv'}, heads.json")


def _tables(workdirs: Sequence[str]) -> int:
    folder = pathlib.Path(os.path.expanduser(_OUTPUT.value or "tables"))
    for path in write_tables(folder, workdirs):
        if path.suffix == ".md":
            print(path.read_text(encoding="utf-8"))
    print(f"written to {folder}")
    return 0


def _matching(patterns: Sequence[str]) -> list[str]:
    """Folders that the patterns name, each once; a pattern without any is an error."""
    found: dict[str, None] = {}
    for pattern in patterns:
        paths = sorted(glob.glob(os.path.expanduser(pattern)))
        if not paths:
            raise UserError(f"no folder matches {pattern}.")
        found.update(dict.fromkeys(path for path in paths if os.path.isdir(path)))
    return list(found)


def _folder(default: str) -> pathlib.Path:
    folder = pathlib.Path(os.path.expanduser(_OUTPUT.value or default))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error}.") from error
    return folder


def _saved(paths: tuple[pathlib.Path, ...]) -> None:
    print(f"{paths[0]}, {paths[1].name}")
    sys.stdout.flush()


if __name__ == "__main__":
    command_line.run(main)
