"""Figures, numbers and the viewer of a run, from its workdir alone.

python -m attn_cnn_jax.analyze --workdir=runs/demo
python -m attn_cnn_jax.analyze --workdir=runs/demo --figure=query --query=1,2
python -m attn_cnn_jax.analyze --workdir=runs/demo --format=pdf --width=3.3 --font=serif
python -m attn_cnn_jax.analyze --figure=curves --workdirs='runs/*'
python -m attn_cnn_jax.analyze --workdir=runs/demo --watch
"""

import dataclasses
import functools
import math
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

from attn_cnn_jax import checkpoint, command_line, parallel, remote
from attn_cnn_jax import config as config_lib
from attn_cnn_jax.analysis import ablation, figures, plots
from attn_cnn_jax.analysis.figure_request import FigureRequest
from attn_cnn_jax.analysis.images import choose_images
from attn_cnn_jax.analysis.output import Output
from attn_cnn_jax.analysis.pictures import VARIANTS
from attn_cnn_jax.analysis.viewer.of_run import newest, write_viewer_of_run
from attn_cnn_jax.covered_offsets import COVERING_MASS
from attn_cnn_jax.errors import UserError, one_line
from attn_cnn_jax.results.curves import accuracies_by_step, run_curves
from attn_cnn_jax.run import Run

_ALL = "all"

_WORKDIR = command_line.define_folder("workdir", None, "Folder of the run.")
_WORKDIRS = flags.DEFINE_multi_string(
    "workdirs",
    [],
    "Runs for --figure=curves, or viewer: beside --workdir; globs; may be repeated.",
)
_FIGURE = flags.DEFINE_list(
    "figure",
    [],
    f"{', '.join(figures.ALL)}; several with commas. {_ALL}: whatever the run can "
    "show; without the flag that but ablation.",
)
_OUTPUT = command_line.define_folder(
    "output", None, "Folder to write to; default WORKDIR/analysis, or curves/."
)
_CHECKPOINT = flags.DEFINE_string("checkpoint", "last", "last, best, or a step.")
_IMAGES = flags.DEFINE_list(
    "images",
    ["0"],
    "Images to show: indices (3, 0-7) or records (test_00016) of the test set, image "
    "files, or names of CIFAR.",
)
_CIFAR_BATCHES = command_line.define_path(
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
_COMMON_SCALE = flags.DEFINE_bool(
    "common_scale", False, "Maps: one colour scale for all of a figure, not one each."
)
_TITLE = flags.DEFINE_enum(
    "title", None, ["on", "off"], "Headings; by default only PNGs (and TXTs) have them."
)
_WIDTH = flags.DEFINE_float(
    "width", plots.Style.width, "Width of a figure, inches; letters keep their size."
)
_DPI = flags.DEFINE_integer(
    "dpi", plots.Style.dpi, "Dots to an inch of PNGs and of heat maps."
)
_FORMAT = flags.DEFINE_list(
    "format",
    list(plots.Style.formats),
    f"Files of a figure: {', '.join(plots.FORMATS)}; several with commas.",
)
_FONT = flags.DEFINE_enum(
    "font", plots.Style.font, plots.FONTS, "Letters; serif goes with LaTeX."
)
_REORDER = flags.DEFINE_bool("reorder", False, "Heads by the offset they look at.")
_THRESHOLD = flags.DEFINE_float(
    "threshold", COVERING_MASS, "heads: mass from which an offset is covered."
)
_KERNELS = flags.DEFINE_list(
    "kernels", [], "closest_convolution: odd sizes, as in 1,3,5; default by the width."
)
_VIEWER_MAX_MB = flags.DEFINE_float("viewer_max_mb", 100.0, "viewer: largest file, MB.")
_VIEWER_EPOCHS = flags.DEFINE_bool(
    "viewer_epochs", True, "viewer: all snapshots, not the checkpoint alone."
)
_WATCH = flags.DEFINE_bool(
    "watch", False, "Rewrite the viewer while the run trains, until it is complete."
)
_DATA_DIR = command_line.define_path(
    "data_dir", None, "In place of the run's data_dir."
)
_MOVED = {
    "prune": "python -m attn_cnn_jax.prune --workdir=RUN --output=NEW_RUN",
    "heads": "python -m attn_cnn_jax.prune --workdir=RUN --output=NEW_RUN --heads=2:1",
    "tables": "python -m attn_cnn_jax.results --workdirs=RUNS",
}
flags.DEFINE_bool("prune", False, f"Is now {_MOVED['prune']}")
flags.DEFINE_bool("tables", False, f"Is now {_MOVED['tables']}")
flags.DEFINE_string("heads", None, f"Is now {_MOVED['heads']}")
command_line.define_variant_flag()


def main() -> None:
    """Draw and count what the flags ask for."""
    _check_flags()
    style = plots.Style(
        width=_WIDTH.value,
        font=_FONT.value,
        formats=tuple(_FORMAT.value),
        dpi=_DPI.value,
        title=None if _TITLE.value is None else _TITLE.value == "on",
    )
    with plots.use(style):
        _analyze()


def _analyze() -> None:
    names, workdir = _names(), remote.local(_WORKDIR.value or "")
    several = [workdir] if workdir else []
    several += command_line.folders(_WORKDIRS.value)
    if not workdir:
        if names != ["curves"] or not several:
            raise UserError(
                "--workdir=RUN is missing (or --figure=curves --workdirs=RUNS)."
            )
        _draw_curves(several, Output(_folder("curves"), _say))
        return
    which = command_line.checkpoint_named(_CHECKPOINT.value)
    run = Run(workdir, which, _DATA_DIR.value)
    if not _OUTPUT.value:
        checkpoint.refuse_links(run.workdir)
    folder = _folder(os.path.join(workdir, "analysis"))
    output = Output(folder, _say, brief=not names)
    with output:
        # Which alone needs no checkpoint.
        if "curves" in names or not (names or _WATCH.value):
            _draw_unless_refused("curves", output, _draw_curves, several, output)
        if names and set(names) == {"curves"}:
            return
        config_lib.check(run.config)
        parallel.set_arithmetic(run.config)
        if _WATCH.value:
            _watch(run, folder)
            return
        request = functools.cache(lambda: _request(run))
        chosen = names or figures.available(run)
        for name in chosen:
            if name == "ablation":
                if names or _FIGURE.value:  # it takes long
                    _draw_unless_refused(name, output, _draw_ablation, run, output)
            elif name not in ("curves", "viewer"):
                draw = functools.partial(_draw, request, output)
                _draw_unless_refused(name, output, draw, name)
    if "viewer" in chosen:  # last, as it is the file to open
        _draw_unless_refused("viewer", output, lambda: _write_viewer(request(), folder))
    if not (output.written or names):
        raise UserError(f"nothing of {workdir} could be drawn; see why above.")


def _names() -> list[str]:
    """Return the figures that the flag names, none where the run is to choose them."""
    return [] if _FIGURE.value == [_ALL] else _FIGURE.value


def _check_flags() -> None:
    """Refuse what moved or contradicts itself, before anything is read or computed."""
    for name, command in _MOVED.items():
        if flags.FLAGS[name].value:
            raise UserError(f"--{name} is a command of its own now: {command}")
    names = _names()
    for name in names:
        if name not in figures.ALL:
            raise UserError(
                f"there is no figure {name!r}; choose from {', '.join(figures.ALL)}."
            )
    if _WORKDIRS.value and names and not {"curves", "viewer"} & {*names}:
        raise UserError("--workdirs are for --figure=curves or viewer; drop them.")
    if _BY_KEY.value and ("query" not in names or "query_mean" in names):
        raise UserError("--by_key is for --figure=query and not for query_mean.")
    _check_watch()
    megabytes = _VIEWER_MAX_MB.value
    if not (megabytes > 0 and math.isfinite(1e6 * megabytes)):
        raise UserError(f"--viewer_max_mb={megabytes:g}; take a number above 0.")


def _check_watch() -> None:
    if not _WATCH.value:
        return
    if _FIGURE.value not in ([], ["viewer"]):
        raise UserError("--watch is for --figure=viewer; drop the other figures.")
    if _CHECKPOINT.value != "last":
        raise UserError("--watch shows the newest checkpoint; drop --checkpoint.")
    if remote.is_remote(_WORKDIR.value or ""):
        raise UserError("--watch needs a --workdir on this machine, not a URL.")


def _draw_unless_refused(
    name: str, output: Output, draw: Callable[..., None], *arguments: Any
) -> None:
    """Call `draw`; where the run is to show what it can, say what it cannot."""
    try:
        draw(*arguments)
    except UserError as error:
        if _names():
            raise
        _say(f"{name}: not drawn: {one_line(error)}")
    else:
        output.done(name)


def _draw(request: Callable[[], FigureRequest], output: Output, name: str) -> None:
    output.draw(name, request())


def _draw_curves(workdirs: Sequence[str], output: Output) -> None:
    curves = run_curves(dict.fromkeys(workdirs))
    output.save(plots.learning_curves(curves), "curves")


def _draw_ablation(run: Run, output: Output) -> None:
    output.ablation(ablation.ablate(run, _num_images(run, 1000)), run.title)


def _request(run: Run) -> FigureRequest:
    shown = choose_images(run.dataset, _IMAGES.value, _CIFAR_BATCHES.value)
    for note in shown.notes:
        print(note)
    sample = choose_images(run.dataset, [f"0-{_num_images(run, 50) - 1}"])
    return FigureRequest(
        run,
        shown,
        sample,
        query=_QUERY.value,
        by_key=_BY_KEY.value,
        average=_AVERAGE.value,
        layer=_LAYER.value,
        reorder=_REORDER.value,
        threshold=_THRESHOLD.value,
        kernel_sizes=_kernel_sizes(),
        common_scale=_COMMON_SCALE.value,
    )


def _kernel_sizes() -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in _KERNELS.value)
    except ValueError as error:
        text = ",".join(_KERNELS.value)
        raise UserError(f"--kernels={text}; take odd numbers, as in 1,3,5.") from error


def _num_images(run: Run, default: int) -> int:
    count = default if _NUM_IMAGES.value is None else _NUM_IMAGES.value
    if count < 1:
        raise UserError(f"--num_images={count}; take 1 or more.")
    return min(count, len(run.dataset.test))


def _watch(run: Run, folder: pathlib.Path) -> None:
    """Write the viewer whenever the run has saved something new."""
    request: FigureRequest | None = None
    try:
        if not checkpoint.steps(run.workdir):
            print(f"waiting for the first checkpoint of {run.name}", flush=True)
        for at_newest in newest(run):
            request = request or _request(at_newest)
            request = dataclasses.replace(request, run=at_newest)
            _write_viewer(request, folder)
        print(f"{run.name} is complete", flush=True)
    except KeyboardInterrupt:
        print(f"stopped; the same command watches {run.name} again", flush=True)


def _write_viewer(request: FigureRequest, folder: pathlib.Path) -> None:
    line = write_viewer_of_run(
        request,
        folder / "viewer.html",
        accuracies=accuracies_by_step,
        snapshots=_VIEWER_EPOCHS.value,
        max_bytes=round(_VIEWER_MAX_MB.value * 1e6),
        others=_others(request.run) if "viewer" in _FIGURE.value else (),
    )
    print(line, flush=True)


def _say(text: str) -> None:
    print(text, flush=True)


def _others(run: Run) -> list[Run]:
    """Return the runs to show beside another."""
    found = command_line.folders(_WORKDIRS.value)
    others = [Run(workdir, "last", _DATA_DIR.value) for workdir in found]
    return [other for other in others if other.workdir != run.workdir]


def _folder(default: str) -> pathlib.Path:
    folder = pathlib.Path(remote.local(_OUTPUT.value or default))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error}.") from error
    return folder


if __name__ == "__main__":
    command_line.run(main)
