"""The figures of a run by name: from a checkpoint and images to matplotlib figures."""

from collections.abc import Callable, Iterator

import numpy as np

from attn_cnn_jax import checkpoint as checkpoint_lib
from attn_cnn_jax.analysis import parameters, plots
from attn_cnn_jax.analysis.averages import average_attention, tap_maps
from attn_cnn_jax.analysis.heads import HeadStatistics
from attn_cnn_jax.analysis.queries import (
    key_attention,
    mean_query_attention,
    query_attention,
)
from attn_cnn_jax.analysis.subject import Subject
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.run import Run

Named = Iterator[tuple[str, plots.Figure]]
_CLASS_TOKEN = "class token dropped"


def available(run: Run) -> tuple[str, ...]:
    """The figures that a run can show, in the order of `FIGURES`."""
    layer = getattr(run.model, "attention_layer", None)
    names = ["curves"]
    if run.layers:
        taps = run.layers[0][1].ndim == 5
        names += ["taps"] if taps else ["query", "query_mean", "average"]
        names += ["heads", "viewer"]
    if hasattr(layer, "gaussians"):
        names += ["centers", "centers_end", "centers_layer"]
    if hasattr(layer, "offset_scores"):
        names += ["positions"]
    return tuple(name for name in (*FIGURES, "curves", "viewer") if name in names)


def draw(name: str, subject: Subject) -> Named:
    """(file name, figure) of everything that the named figure consists of.

    Raises a `UserError` for a figure that the run's model does not have.
    """
    if name not in FIGURES:
        names = ", ".join((*FIGURES, "curves", "viewer", "ablation"))
        raise UserError(f"there is no figure {name!r}; choose from {names}.")
    if name not in available(subject.run):
        raise UserError(
            f"{subject.run.name} has no figure {name!r}; it can show "
            f"{', '.join(available(subject.run))}."
        )
    yield from FIGURES[name](subject)


def _query(subject: Subject) -> Named:
    maps = subject.maps
    query = subject.grid_query(maps)
    pick = key_attention if subject.by_key else query_attention
    notes = [_CLASS_TOKEN] if maps.class_mass else []
    notes += ["column of the pixel: who attends to it"] if subject.by_key else []
    for index, name, suffix in _shown(subject):
        yield (
            f"query{suffix}",
            plots.attention_at_query(
                [pick(_of_image(probs, index), query) for probs in maps.probs],
                query=query,
                title=subject.title,
                layers=maps.layers,
                image=maps.images[index],
                image_name=name,
                note="; ".join(notes),
                order=subject.order,
            ),
        )


def _query_mean(subject: Subject) -> Named:
    first = next(iter(subject.batches))
    query = subject.grid_query(first)
    notes = [f"mean over {len(subject.many.images)} test images"]
    notes += [_CLASS_TOKEN] if first.class_mass else []
    yield (
        "query_mean",
        plots.attention_at_query(
            list(mean_query_attention(subject.batches, query)),
            query=query,
            title=subject.title,
            layers=first.layers,
            note="; ".join(notes),
            order=subject.order,
        ),
    )


def _average(subject: Subject) -> Named:
    maps = subject.maps
    for index, name, suffix in _shown(subject):
        averages = [
            average_attention(_of_image(probs, index), subject.average)
            for probs in maps.probs
        ]
        finite = [np.where(np.isfinite(a), a, np.nan) for a in averages]
        yield (
            f"average{suffix}",
            plots.average_attention(
                finite,
                variant=subject.average,
                title=subject.title,
                layers=maps.layers,
                image=maps.images[index],
                image_name=name,
                note=_CLASS_TOKEN if maps.class_mass else "",
                order=subject.order,
            ),
        )


def _taps(subject: Subject) -> Named:
    maps = subject.maps
    for index, name, suffix in _shown(subject):
        yield (
            f"taps{suffix}",
            plots.tap_weights(
                [tap_maps(weights[index : index + 1])[0] for weights in maps.probs],
                title=subject.title,
                layers=maps.layers,
                image=maps.images[index],
                image_name=name,
                note="" if maps.softmaxed else "raw weights, no softmax",
            ),
        )


def _heads(subject: Subject) -> Named:
    table = subject.numbers
    layers = []
    for layer in table.layers:
        heads: list[HeadStatistics] = [h for h in table.heads if h.layer == layer.layer]
        layers.append(
            plots.LayerOffsets(
                name=layer.layer,
                best=np.array([h.best_offset for h in heads], int).reshape(-1, 2),
                masses=np.array([h.best_mass for h in heads], float),
                covered=np.array([h.covers for h in heads], bool),
                kernel_size=layer.kernel_size,
                reach=layer.radius,
                content_dependence=np.array(
                    [h.content_dependence for h in heads], float
                ),
                entropies=np.array([h.entropy for h in heads], float),
                distances=np.array([h.mean_distance for h in heads], float),
                num_keys=layer.num_keys,
                uniform_distance=layer.uniform_distance,
            )
        )
    images = f"{table.num_images} test images, covered from mass {table.threshold:g}"
    title = f"{subject.title}; {images}"
    if table.left_out:
        title += f"; grid too small for numbers: {', '.join(table.left_out)}"
    noun = "plane" if subject.run.layers[0][1].ndim == 5 else "head"
    yield "heads", plots.convolution_layers(layers, title=title, noun=noun)


def checkpoints(run: Run) -> list[Run]:
    """The run at its snapshots and at its last checkpoint, oldest first."""
    steps = sorted({*checkpoint_lib.snapshots(run.workdir), run.step})
    return [run if step == run.step else run.at(step) for step in steps]


def _centers(subject: Subject) -> Named:
    runs = checkpoints(subject.run)
    heads = [_gaussians(run) for run in runs]
    yield (
        "centers",
        plots.centers_over_training(
            [list(of_run.values()) for of_run in heads],
            title=_name(subject.run),
            checkpoint_names=[f"epoch {run.epoch:.4g}" for run in runs],
            layers=list(heads[0]),
        ),
    )


def _centers_end(subject: Subject) -> Named:
    heads = _gaussians(subject.run)
    yield (
        "centers_end",
        plots.centers_of_layers(
            list(heads.values()), title=subject.title, layers=list(heads)
        ),
    )


def _centers_layer(subject: Subject) -> Named:
    runs = checkpoints(subject.run)
    heads = [list(_gaussians(run).items()) for run in runs]
    if not 1 <= subject.layer <= len(heads[0]):
        raise UserError(
            f"--layer={subject.layer}: the layers are 1 to {len(heads[0])}."
        )
    name = heads[0][subject.layer - 1][0]
    yield (
        f"centers_layer_{subject.layer}",
        plots.centers_of_layer(
            [of_run[subject.layer - 1][1] for of_run in heads],
            title=_name(subject.run),
            layer=name,
            checkpoint_names=[f"epoch {run.epoch:.4g}" for run in runs],
        ),
    )


def _name(run: Run) -> str:
    return f"{run.name} ({run.model_name})"


def _gaussians(run: Run) -> dict[str, plots.GaussianHeads]:
    return parameters.quadratic_heads(run.model, run.variables)


def _positions(subject: Subject) -> Named:
    run = subject.run
    grid = run.layers[0][1].shape[2:4]
    tables = parameters.position_scores(run.model, run.variables, grid)
    yield (
        "positions",
        plots.position_scores(
            list(tables.values()),
            title=subject.title,
            layers=list(tables),
            softmaxed=False,
            order=subject.order if len(tables) > 1 else None,
        ),
    )


FIGURES: dict[str, Callable[[Subject], Named]] = {
    "centers": _centers,
    "centers_end": _centers_end,
    "centers_layer": _centers_layer,
    "query": _query,
    "query_mean": _query_mean,
    "average": _average,
    "taps": _taps,
    "positions": _positions,
    "heads": _heads,
}


def _shown(subject: Subject) -> Iterator[tuple[int, str, str]]:
    """(index, name, suffix of the file) of the images whose maps differ."""
    maps = subject.maps
    if all(subject.batches.position_only):
        yield 0, f"{maps.names[0]}; these maps are the same for all images", ""
        return
    alone = len(maps.names) == 1
    for index, name in enumerate(maps.names):
        yield index, name, "" if alone else f"_{index + 1}"


def _of_image(probs: np.ndarray, index: int) -> np.ndarray:
    return probs[0 if len(probs) == 1 else index]
