"""The figures of a run by name: from a checkpoint and images to matplotlib figures."""

from collections.abc import Callable, Iterator

import numpy as np

from attn_cnn_jax.analysis import learned_positions, pictures, plots
from attn_cnn_jax.analysis.ablation import can_ablate
from attn_cnn_jax.analysis.figure_request import (
    EPOCHS_KERNEL,
    FigureRequest,
    checkpoints,
    gaussian_heads,
)
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.run import Run

Named = Iterator[tuple[str, plots.Figure]]
_CLASS_TOKEN = "class token dropped"


def available(run: Run) -> tuple[str, ...]:
    """Return the names of what a run can show, in the order of `ALL`."""
    layer = getattr(run.model, "attention_layer", None)
    names = ["curves"]
    if run.layers:
        names += ["taps"] if _has_taps(run) else ["query", "average"]
        names += ["heads", "closest_convolution", "convolution_epochs", "viewer"]
    if run.layers and not (_has_taps(run) or _is_position_only(run)):
        names += ["query_mean"]
    if can_ablate(run):
        names += ["ablation"]
    if hasattr(layer, "gaussians"):
        names += ["centers", "centers_end", "centers_layer"]
    if hasattr(layer, "offset_scores"):
        names += ["positions"]
    return tuple(name for name in ALL if name in names)


def draw(name: str, request: FigureRequest) -> Named:
    """Yield (file name, figure) of all that the named figure consists of.

    Raises a `UserError` for a figure that the run's model does not have.
    """
    run = request.run
    if name not in FIGURES or name not in available(run):
        text = f"{run.name} has no figure {name!r}; it can show "
        if name == "query_mean" and run.layers and _is_position_only(run):
            text = (
                f"{run.name} attends by position alone, so that its mean over images "
                "is --figure=query; it can show "
            )
        raise UserError(f"{text}{', '.join(available(run))}.")
    yield from FIGURES[name](request)


def _query(request: FigureRequest) -> Named:
    maps = request.maps
    query = request.grid_query(maps)
    pick = pictures.key_attention if request.by_key else pictures.query_attention
    notes = [_CLASS_TOKEN] if maps.class_mass else []
    notes += ["column of the pixel: who attends to it"] if request.by_key else []
    grids = [probs.shape[2:4] for probs in maps.probs]
    queries = [pictures.on_grid(query, grids[0], grid) for grid in grids]
    for index, name, suffix in _shown(request):
        yield (
            f"query{suffix}",
            plots.attention_at_query(
                [
                    pick(_of_image(probs, index), of_layer)
                    for probs, of_layer in zip(maps.probs, queries, strict=True)
                ],
                query=query,
                title=request.run.title,
                layers=maps.layers,
                image=maps.images[index],
                image_name=name,
                note="; ".join(notes),
                order=request.order,
                common_scale=request.common_scale,
            ),
        )


def _query_mean(request: FigureRequest) -> Named:
    first = next(iter(request.batches))
    query = request.grid_query(first)
    notes = [f"mean over {len(request.sample.images)} test images"]
    notes += [_CLASS_TOKEN] if first.class_mass else []
    yield (
        "query_mean",
        plots.attention_at_query(
            list(pictures.mean_query_attention(request.batches, query)),
            query=query,
            title=request.run.title,
            layers=first.layers,
            note="; ".join(notes),
            order=request.order,
            common_scale=request.common_scale,
        ),
    )


def _average(request: FigureRequest) -> Named:
    maps = request.maps
    for index, name, suffix in _shown(request):
        averages = [
            pictures.average_attention(_of_image(probs, index), request.average)
            for probs in maps.probs
        ]
        yield (
            f"average{suffix}",
            plots.average_attention(
                [np.where(np.isfinite(one), one, np.nan) for one in averages],
                variant=request.average,
                title=request.run.title,
                layers=maps.layers,
                image=maps.images[index],
                image_name=name,
                note=_CLASS_TOKEN if maps.class_mass else "",
                order=request.order,
                common_scale=request.common_scale,
            ),
        )


def _taps(request: FigureRequest) -> Named:
    maps = request.maps
    taps = [pictures.tap_maps(weights) for weights in maps.probs]
    for index, name, suffix in _shown(request):
        yield (
            f"taps{suffix}",
            plots.tap_weights(
                [_of_image(layer, index) for layer in taps],
                title=request.run.title,
                layers=maps.layers,
                image=maps.images[index],
                image_name=name,
                note="" if maps.softmaxed else "raw weights, no softmax",
                common_scale=request.common_scale,
            ),
        )


def _heads(request: FigureRequest) -> Named:
    table = request.numbers
    images = f"{table.num_images} test images, covered from mass {table.threshold:g}"
    title = f"{request.run.title}; {images}"
    if table.left_out:
        title += f"; grid too small for numbers: {', '.join(table.left_out)}"
    noun = "plane" if _has_taps(request.run) else "head"
    yield "heads", plots.convolution_layers(table, title=title, noun=noun)


def _closest_convolution(request: FigureRequest) -> Named:
    table, title = request.convolutions, request.run.title
    yield "closest_convolution", plots.closest_convolution(table, title=title)


def _convolution_epochs(request: FigureRequest) -> Named:
    tables, title = request.convolution_epochs, _name(request.run)
    figure = plots.convolution_epochs(tables, kernel_size=EPOCHS_KERNEL, title=title)
    yield "convolution_epochs", figure


def _centers(request: FigureRequest) -> Named:
    runs = checkpoints(request.run)
    heads = [gaussian_heads(run) for run in runs]
    yield (
        "centers",
        plots.centers_over_training(
            [list(of_run.values()) for of_run in heads],
            title=_name(request.run),
            checkpoint_names=_epochs(runs),
            layers=list(heads[0]),
        ),
    )


def _centers_end(request: FigureRequest) -> Named:
    heads = gaussian_heads(request.run)
    yield (
        "centers_end",
        plots.centers_of_layers(
            list(heads.values()), title=request.run.title, layers=list(heads)
        ),
    )


def _centers_layer(request: FigureRequest) -> Named:
    number, layers = request.layer, list(gaussian_heads(request.run))
    if not 1 <= number <= len(layers):
        raise UserError(f"--layer={number}: the layers are 1 to {len(layers)}.")
    runs, layer = checkpoints(request.run), layers[number - 1]
    yield (
        f"centers_layer_{number}",
        plots.centers_of_layer(
            [gaussian_heads(run)[layer] for run in runs],
            title=_name(request.run),
            layer=layer,
            checkpoint_names=_epochs(runs),
        ),
    )


def _positions(request: FigureRequest) -> Named:
    run = request.run
    grid = run.layers[0][1].shape[2:4]
    scores = learned_positions.position_scores(run.model, run.variables, grid)
    one_for_all = len(scores) < len(run.layers)  # of shared weights
    yield (
        "positions",
        plots.position_scores(
            list(scores.values()),
            title=run.title,
            layers=list(scores),
            order=None if one_for_all else request.order,
            common_scale=request.common_scale,
        ),
    )


FIGURES: dict[str, Callable[[FigureRequest], Named]] = {
    "centers": _centers,
    "centers_end": _centers_end,
    "centers_layer": _centers_layer,
    "query": _query,
    "query_mean": _query_mean,
    "average": _average,
    "taps": _taps,
    "positions": _positions,
    "heads": _heads,
    "closest_convolution": _closest_convolution,
    "convolution_epochs": _convolution_epochs,
}
ALL = (*FIGURES, "curves", "viewer", "ablation")  # what there is to show of runs


def _shown(request: FigureRequest) -> Iterator[tuple[int, str, str]]:
    """Yield (index, name, suffix of the file) of the images whose maps differ."""
    maps = request.maps
    if all(request.batches.position_only):
        yield 0, f"{maps.names[0]}; these maps are the same for all images", ""
        return
    for index, name in enumerate(maps.names):
        yield index, name, f"_{request.shown.stems[index]}"


def _of_image(arrays: np.ndarray, index: int) -> np.ndarray:
    return arrays[0 if len(arrays) == 1 else index]


def _is_position_only(run: Run) -> bool:
    """Return whether all maps are the same for all images, and so is their mean."""
    return all(shape.shape[0] == 1 for _, shape in run.layers)


def _has_taps(run: Run) -> bool:
    return run.layers[0][1].ndim == 5


def _name(run: Run) -> str:
    return f"{run.name} ({run.model_name})"


def _epochs(runs: list[Run]) -> list[str]:
    return [f"epoch {run.epoch:.4g}" for run in runs]
