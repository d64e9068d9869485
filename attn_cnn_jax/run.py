"""A run: a workdir that was trained, its checkpoint, data, model and forward pass."""

import os
import pathlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from jaxtyping import Array
from ml_collections import ConfigDict

from attn_cnn_jax import checkpoint as checkpoint_lib
from attn_cnn_jax import data, models, parallel, remote
from attn_cnn_jax.errors import UserError, one_line
from attn_cnn_jax.evaluate import (
    evaluate,
    forward,
    make_eval_step,
    sown_by_layers,
)


class Run:
    """A workdir that was trained, at one of its checkpoints; all is read when needed.

    The workdir is a folder, or the URL of one in an object store.

    `config` is that of `config.json`, with `data_dir` in place of its own where that is
    given: data that a workdir names outside of the user's are not read. `step` and
    `variables` (NumPy) are those of the checkpoint (last, best or a step). Raises a
    `UserError` where the folder is not the workdir of a run.
    """

    def __init__(
        self,
        workdir: str | os.PathLike,
        checkpoint: str | int = "last",
        data_dir: str | None = None,
    ) -> None:
        self.workdir = pathlib.Path(remote.local(os.fspath(workdir))).absolute()
        self.name = one_line(self.workdir.name)
        config = checkpoint_lib.read_config(self.workdir)
        if config is None:
            raise UserError(f"{workdir} is not the workdir of a run.")
        self.config = config
        self._own_data_dir = data_dir is None
        if data_dir is not None and isinstance(config.get("dataset"), ConfigDict):
            config.dataset.data_dir = data_dir
        self._which = checkpoint

    @cached_property
    def checkpoint(self) -> checkpoint_lib.Checkpoint:
        """The checkpoint itself, read and verified."""
        return checkpoint_lib.load(self.workdir, self._which)

    @property
    def step(self) -> int:
        """The updates up to the checkpoint."""
        return self.checkpoint.step

    @property
    def variables(self) -> dict[str, Any]:
        """The variables of the checkpoint, as NumPy arrays."""
        return self.checkpoint.variables

    @cached_property
    def dataset(self) -> data.Dataset:
        """The data that the run was trained on."""
        self._refuse_data_of_others()
        return data.load(self.config.dataset)

    def _refuse_data_of_others(self) -> None:
        """Refuse a folder that `config.json` alone names: it may come with the run."""
        recorded = self.config.dataset.data_dir
        entry = data.DATASETS.get(self.config.dataset.name)
        if not (self._own_data_dir and recorded) or (entry and entry.bundled):
            return
        users = data.default_data_dir()
        place = pathlib.Path(os.path.realpath(recorded))
        if not place.is_relative_to(os.path.realpath(users)):
            raise UserError(
                f"{self.workdir} names data outside of {users}; where you trust them, "
                f"add --data_dir={os.path.abspath(recorded)!r}."
            )

    @cached_property
    def model(self) -> nn.Module:
        """The network of the config."""
        return models.build(self.config.model, self.dataset.num_classes)

    @property
    def model_name(self) -> str:
        """The network in a title, such as "self_attention, learned_w_content"."""
        fields = self.config.model
        attention = fields.get("attention", "")
        if not isinstance(attention, str):
            attention = attention.name
        sharing = "shared weights" if fields.get("share_weights") else ""
        return ", ".join(filter(None, (fields.name, attention, sharing)))

    @property
    def title(self) -> str:
        """Run, model and checkpoint; and the mode where scores are of another one."""
        text = (
            f"{self.name} ({self.model_name}), step {self.step:,} "
            f"(epoch {self.epoch:.4g})"
        )
        if self.config.evaluate_in_training_mode:
            text += ", in evaluation mode (its scores: in training mode)"
        return text

    @property
    def epoch(self) -> float:
        """Epochs trained up to the checkpoint."""
        steps = len(self.dataset.train) // self.config.batch_size
        return self.step / max(steps, 1)

    def at(self, checkpoint: str | int) -> "Run":
        """Return the run at another checkpoint, which shares data and program."""
        other = Run(self.workdir, checkpoint, self.config.dataset.data_dir)
        for name in ("dataset", "model", "capture", "predict", "layers"):
            setattr(other, name, getattr(self, name))
        return other

    @cached_property
    def capture(self) -> Any:
        """Compiled `(variables, images, indices) -> arrays`, one of each of `layers`.

        uint8 images [B, H, W, C] and their indices int32 [B] in the test set.
        """
        return jax.jit(lambda *batch: [probs for _, probs in self.sown(*batch)])

    @cached_property
    def predict(self) -> Any:
        """Compiled `(variables, images, indices) -> probabilities [B, classes]`.

        It takes what `capture` takes, and is in evaluation mode as well.
        """
        return jax.jit(lambda *batch: jax.nn.softmax(self.forward(*batch)))

    @cached_property
    def layers(self) -> list[tuple[str, jax.ShapeDtypeStruct]]:
        """The (name, shape) that each layer sows for two images, none computed."""
        images = np.zeros((2, *self.dataset.image_shape), np.uint8)
        indices = np.zeros(2, np.int32)
        names: list[str] = []

        def sown(*batch: Any) -> list[Array]:
            named = self.sown(*batch)
            names.extend(name for name, _ in named)
            return [probs for _, probs in named]

        shapes = jax.eval_shape(sown, self.variables, images, indices)
        return list(zip(names, shapes, strict=True))

    def sown(
        self, variables: Any, images: Array, indices: Array, **collection: str
    ) -> list[tuple[str, Any]]:
        """Return what every attention layer sows: `evaluate.sown_by_layers`."""
        return sown_by_layers(
            self.config,
            self.model,
            self.dataset,
            variables,
            images,
            indices,
            **collection,
        )

    def forward(
        self, variables: Any, images: Array, indices: Array, **options: Any
    ) -> Any:
        """Apply the model to test images in evaluation mode: `evaluate.forward`."""
        return forward(
            self.model,
            self.dataset,
            self.config.seed,
            variables,
            images,
            indices,
            **options,
        )

    def evaluate(self) -> dict[str, int | float]:
        """Score the test set again.

        Returns the step of the checkpoint, the mean loss, the accuracy and the number
        of images.
        """
        rng, shape = jax.random.key(0), self.dataset.image_shape
        wanted = jax.eval_shape(
            lambda: models.initial_variables(self.model, rng, shape)
        )
        checkpoint_lib.refuse_other_shapes(
            wanted, self.variables, "the checkpoint does not fit its config and data"
        )
        mesh = parallel.make_mesh()
        result = evaluate(
            make_eval_step(self.config, self.model, self.dataset, mesh),
            parallel.replicate(self.variables, mesh),
            parallel.Feed(self.dataset.test, mesh, self.config.dataset.placement),
            self.config.eval_batch_size,
        )
        return {"step": self.step, **result}


def refuse_misfits(
    config: ConfigDict, variables: Mapping[str, Any], complaint: str
) -> None:
    """Refuse variables that the config's network does not have, with the complaint.

    Of a dataset that is not in the table the shapes are unknown; evaluation checks.
    """
    entry = data.DATASETS.get(config.dataset.name)
    if entry is None:
        return
    model = models.build(config.model, entry.num_classes)
    rng, shape = jax.random.key(0), entry.image_shape
    wanted = jax.eval_shape(lambda: models.initial_variables(model, rng, shape))
    checkpoint_lib.refuse_other_shapes(wanted, variables, complaint)
