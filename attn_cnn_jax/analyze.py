"""Figures, numbers, tables and the viewer of runs, from their workdirs alone.

python -m attn_cnn_jax.analyze --workdir=runs/demo
python -m attn_cnn_jax.analyze --workdir=runs/demo --figure=query --query=1,2
python -m attn_cnn_jax.analyze --tables --workdirs='runs/*'
python -m attn_cnn_jax.analyze --workdir=runs/X --prune --output=runs/X_pruned
"""

import glob
import os
import pathlib
import sys
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from absl import flags

from attn_cnn_jax import checkpoint, command_line
from attn_cnn_jax import config as config_lib
from attn_cnn_jax.analysis import ablation, figures, heads, plots, pruning
from attn_cnn_jax.analysis.attention_maps import AttentionMaps, attention_maps
from attn_cnn_jax.analysis.averages import VARIANTS
from attn_cnn_jax.analysis.curves import run_curves
from attn_cnn_jax.analysis.images import ChosenImages, choose_images
from attn_cnn_jax.analysis.runs import Run
from attn_cnn_jax.analysis.subject import Subject
from attn_cnn_jax.analysis.tables import write_tables
from attn_cnn_jax.analysis.viewer import write_viewer
from attn_cnn_jax.errors import UserError

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
_TABLES = flags.DEFINE_bool("tables", False, "Tables 1 to 4 of the --workdirs.")
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
    if _TABLES.value:
        return _tables(_matching(_WORKDIRS.value or ["runs/*"]))
    if not _WORKDIR.value:
        if _FIGURE.value == ["curves"] and _WORKDIRS.value:
            _save_curves(_matching(_WORKDIRS.value), _folder("curves"))
            return 0
        raise UserError("--workdir=RUN is missing (or --tables --workdirs=RUNS).")
    if _PRUNE.value:
        return _prune()
    run = _open_run(os.path.expanduser(_WORKDIR.value))
    names = _FIGURE.value or figures.available(run)
    folder = _folder(os.path.join(_WORKDIR.value, "analysis"))
    subject: Subject | None = None
    for name in names:
        if name == "curves":
            _save_curves([str(run.workdir), *_matching(_WORKDIRS.value)], folder)
            continue
        if name == "ablation":
            _save_ablation(run, folder)
            continue
        subject = subject or _subject(run)
        if name == "viewer":
            _write_viewer(subject, folder)
        else:
            for file, figure in figures.draw(name, subject):
                _saved(plots.save(figure, folder, file))
        if name == "heads":
            _write_numbers(subject.numbers, folder)
    return 0


def _open_run(workdir: str) -> Run:
    config = checkpoint.read_config(workdir)
    if config is None:
        raise UserError(f"{workdir} is not the workdir of a run.")
    config_lib.check(config)
    if config.model.compute_dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    name = _CHECKPOINT.value
    which = int(name) if name.isdigit() else name
    return Run(workdir, which, _DATA_DIR.value and os.path.expanduser(_DATA_DIR.value))


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
        title=f"{run.name}, step {run.step:,} (epoch {run.epoch:g})",
        layers=result.layers,
    )
    _saved(plots.save(figure, folder, "ablation"))
    ablation.write_csv(result, folder / "ablation.csv")
    ablation.write_json(result, folder / "ablation.json")
    print(
        f"{folder / 'ablation.csv'}, ablation.json: accuracy {result.accuracy:.4f} "
        f"with all heads on {result.num_images:,} images"
    )


def _prune() -> int:
    if not _OUTPUT.value:
        raise UserError("--prune needs --output=NEW_WORKDIR.")
    name = _CHECKPOINT.value
    removal = pruning.prune(
        os.path.expanduser(_WORKDIR.value or ""),
        os.path.expanduser(_OUTPUT.value),
        int(name) if name.isdigit() else name,
        _HEADS.value,
    )
    print(removal)
    return 0


def _write_viewer(subject: Subject, folder: pathlib.Path) -> None:
    run, path = subject.run, folder / "viewer.html"
    runs = figures.checkpoints(run) if _VIEWER_EPOCHS.value else [run]
    size = write_viewer(
        path,
        _LazyMaps(runs, subject.shown),
        title=run.name,
        max_bytes=round(_VIEWER_MAX_MB.value * 1e6),
    )
    print(
        f"{path} ({size / 1e6:.1f} MB, {len(subject.shown.images)} images, "
        f"{len(runs)} checkpoints): open it in a browser"
    )


class _LazyMaps(Sequence[AttentionMaps]):
    """The maps of a run at several checkpoints, one in memory at a time."""

    def __init__(self, runs: Sequence[Run], chosen: ChosenImages) -> None:
        self._runs, self._chosen = runs, chosen
        self._kept: tuple[int, AttentionMaps] | None = None

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, index):
        index = range(len(self._runs))[index]
        if self._kept is None or self._kept[0] != index:
            chosen = self._chosen
            maps = attention_maps(
                self._runs[index],
                chosen.images,
                names=chosen.names,
                indices=chosen.indices,
            )
            self._kept = index, maps
        return self._kept[1]

    def __iter__(self) -> Iterator[AttentionMaps]:
        return (self[index] for index in range(len(self)))


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
