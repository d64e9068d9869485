"""What a config comes to on a dataset: model, optimizer, state and training step."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax import struct
from jax.sharding import Mesh
from ml_collections import ConfigDict

from attn_cnn_jax import data, models, optim, parallel
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.metrics import Sums


class TrainState(struct.PyTreeNode):
    """All that a training step changes; pytrees of arrays."""

    step: Any  # updates so far
    variables: Any  # {"params": ..., and "batch_stats" where the model has them}
    opt_state: Any


@dataclasses.dataclass(frozen=True)
class Task:
    """What a config comes to on this data: the parts of a training run."""

    config: ConfigDict
    dataset: data.Dataset
    model: nn.Module
    schedule: optax.Schedule
    optimizer: optax.GradientTransformation
    steps_per_epoch: int

    @classmethod
    def of(cls, config: ConfigDict, dataset: data.Dataset) -> "Task":
        """Build the model and the optimizer of `config` for `dataset`."""
        steps_per_epoch = len(dataset.train) // config.batch_size
        if steps_per_epoch == 0:
            raise UserError(
                f"config.batch_size={config.batch_size} is more than the "
                f"{len(dataset.train)} training images."
            )
        if config.num_epochs * (steps_per_epoch + 1) >= 2**31:
            raise UserError(
                f"config.num_epochs={config.num_epochs} of {steps_per_epoch} updates "
                "each are more than can be counted; set it to at most "
                f"{(2**31 - 1) // (steps_per_epoch + 1)}."
            )
        rate = config.optimizer.learning_rate
        schedule = optim.make_schedule(
            config.schedule, rate, config.num_epochs, steps_per_epoch
        )
        return cls(
            config=config,
            dataset=dataset,
            model=models.build(config.model, dataset.num_classes),
            schedule=schedule,
            optimizer=optim.make_optimizer(config.optimizer, schedule),
            steps_per_epoch=steps_per_epoch,
        )

    @property
    def num_steps(self) -> int:
        """Updates of the whole training."""
        return self.config.num_epochs * self.steps_per_epoch

    def learning_rate(self, step: int) -> float:
        """The rate of update `step` = 1, 2, ..."""
        return float(np.asarray(self.schedule(step - 1)))

    def initial_state(self) -> TrainState:
        """The state before the first step, from `config.seed` alone."""
        rng = jax.random.fold_in(_rngs(self.config.seed)[0], 0)
        variables = models.initial_variables(self.model, rng, self.dataset.image_shape)
        return self.start_of(variables)

    def start_of(self, variables: Mapping[str, Any]) -> TrainState:
        """The state before the first step with these variables."""
        opt_state = self.optimizer.init(variables["params"])
        return TrainState(jnp.zeros((), jnp.int32), variables, opt_state)

    def make_train_step(self, mesh: Mesh) -> Callable[..., tuple[TrainState, Sums]]:
        """Compile `train_step(state, source) -> (state, Sums of the batch before it)`.

        What is random in it comes from the seed and `state.step`.
        """
        dataset, fields = self.dataset, self.config.dataset
        run_rng = _rngs(self.config.seed)[1]

        def train_step(state: TrainState, source) -> tuple[TrainState, Sums]:
            rng = jax.random.fold_in(run_rng, state.step)
            augment_rng, model_rng = jax.random.split(rng)
            images, labels = parallel.gather(source, mesh)
            images = data.augment(
                images,
                augment_rng,
                crop_padding=fields.crop_padding,
                flip=fields.flip,
            )
            images = data.normalize(images, dataset.mean, dataset.std)
            images = parallel.split_batch(images, mesh)
            params = state.variables["params"]
            others = {k: v for k, v in state.variables.items() if k != "params"}

            def mean_loss(params):
                logits, others_after = self.model.apply(
                    {"params": params, **others},
                    images,
                    train=True,
                    rngs={"dropout": model_rng, "class_token": model_rng},
                    mutable=list(others),
                )
                sums = Sums.of(
                    logits, labels, label_smoothing=self.config.label_smoothing
                )
                return sums.loss / sums.count, (sums, others_after)

            gradient = jax.grad(mean_loss, has_aux=True)
            grads, (sums, others) = gradient(params)
            updates, opt_state = self.optimizer.update(grads, state.opt_state, params)
            params = optax.apply_updates(params, updates)
            variables = {"params": params, **others}
            return TrainState(state.step + 1, variables, opt_state), sums

        return parallel.compile_step(train_step, mesh, donate_state=True)


def _rngs(seed: int) -> jax.Array:
    """Keys of the initialisation and of the steps."""
    return jax.random.split(jax.random.key(seed))
