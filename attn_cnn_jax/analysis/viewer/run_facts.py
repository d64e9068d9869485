"""What the viewer says of a run beside its maps: predictions, labels, accuracy."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from attn_cnn_jax.analysis.images import ChosenImages
from attn_cnn_jax.run import Run

_GUESSES = 3  # classes of an image that the page knows


@dataclasses.dataclass(frozen=True)
class RunFacts:
    """A run's model, data and results; whatever is not known is left empty.

    `labels` are indices of `class_names`, one for each image, None for an image that is
    not of the test set. `predictions` are the probabilities of the classes
    [images, classes] and `accuracies` the right answers on the test set, in [0, 1],
    None where they are not known: one of each for each checkpoint. `notes` are
    sentences.
    """

    about: str = ""
    class_names: tuple[str, ...] = ()
    labels: tuple[int | None, ...] = ()
    predictions: Sequence[Float[np.ndarray, "B classes"]] = ()
    accuracies: Sequence[float | None] = ()
    notes: tuple[str, ...] = ()

    def guesses(self, checkpoint: int, image: int) -> list[tuple[int, float]]:
        """Return the (class, probability) of the likeliest classes, likeliest first."""
        probabilities = self.predictions[checkpoint][image]
        likeliest = np.argsort(-probabilities, kind="stable")[:_GUESSES]
        return [(int(c), round(float(probabilities[c]), 5)) for c in likeliest]


def run_facts(
    runs: Sequence[Run], shown: ChosenImages, accuracies: Sequence[float | None]
) -> RunFacts:
    """Return the facts of runs of one data set, each at a checkpoint."""
    run, notes = runs[-1], ()
    models = {one.name: one.model_name for one in runs}
    about = run.model_name
    if len(models) > 1:
        about = "; ".join(f"{name}: {model}" for name, model in models.items())
    if any(one.config.evaluate_in_training_mode for one in runs):
        notes = (
            "Maps and predictions are those of evaluation mode, the test accuracy is "
            "that of training mode.",
        )
    test = run.dataset.test
    return RunFacts(
        about=f"{about} on {run.config.dataset.name}",
        class_names=tuple(run.dataset.class_names),
        labels=tuple(
            int(test.labels[index]) if index < len(test) else None
            for index in shown.indices
        ),
        predictions=[_predictions(one, shown) for one in runs],
        accuracies=accuracies,
        notes=notes,
    )


def _predictions(run: Run, shown: ChosenImages) -> Float[np.ndarray, "B classes"]:
    """Return the probabilities of the classes, a batch of one size at a time."""
    variables: Any = jax.device_put(run.variables)
    count = len(shown.images)
    size = min(count, run.config.eval_batch_size)
    indices = np.asarray(shown.indices, np.int32)
    parts = []
    for start in range(0, count, size):
        rows = np.resize(np.arange(start, min(start + size, count)), size)
        parts.append(run.predict(variables, shown.images[rows], indices[rows]))
    return np.concatenate(parts).astype(np.float32)[:count]
