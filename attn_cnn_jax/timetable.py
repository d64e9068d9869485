"""The order of a run: batches, learning rates, and the work due after a step."""

import functools

import jax
import numpy as np
from jaxtyping import Array, Float, Int
from ml_collections import ConfigDict

from attn_cnn_jax import data, optim
from attn_cnn_jax.errors import UserError


class Timetable:
    """The order of a run of `config` on `num_images` training images.

    A step is an update; `step` is the number of those that are done, so that what is
    due "at" a step is due after it. Raises a `UserError` where there is not one whole
    batch, or more steps than can be counted.
    """

    def __init__(self, config: ConfigDict, num_images: int) -> None:
        self._config = config
        self.num_images = num_images
        self.steps_per_epoch = num_images // config.batch_size
        if self.steps_per_epoch == 0:
            raise UserError(
                f"config.batch_size={config.batch_size} is more than the "
                f"{num_images} training images."
            )
        if config.num_epochs * (self.steps_per_epoch + 1) >= 2**31:
            raise UserError(
                f"config.num_epochs={config.num_epochs} of {self.steps_per_epoch} "
                "updates each are more than can be counted; set it to at most "
                f"{(2**31 - 1) // (self.steps_per_epoch + 1)}."
            )
        self.num_steps = config.num_epochs * self.steps_per_epoch
        self.longest_block = min(config.steps_per_dispatch, self.steps_per_epoch)
        self.schedule = optim.make_schedule(
            config.schedule,
            config.optimizer.learning_rate,
            config.num_epochs,
            self.steps_per_epoch,
        )
        self._epoch_rows = functools.lru_cache(maxsize=1)(self._draw_rows)
        self._compiled_schedule = jax.jit(jax.vmap(self.schedule))
        # A record may be written when the next epoch has begun.
        self._epoch_rates = functools.lru_cache(maxsize=2)(self._compute_rates)

    def learning_rate(self, step: int) -> float:
        """Return the rate of update `step` = 1, 2, ..."""
        epoch, index = divmod(step - 1, self.steps_per_epoch)
        return float(np.asarray(self._epoch_rates(epoch))[index])

    def next_rows(self, step: int) -> Int[np.ndarray, "steps B"]:
        """Return the rows of the batches that are dispatched together after `step`.

        They are `steps_per_dispatch`, or fewer where an epoch ends (and with it all
        that is counted in epochs) or a checkpoint is due before.
        """
        count, every = self.longest_block, self._config.checkpoint_every_steps
        if every:
            count = min(count, every - step % every)
        epoch, first = divmod(step, self.steps_per_epoch)
        self._epoch_rates(epoch)  # ahead of the epoch's steps, which it would wait for
        return self._epoch_rows(epoch)[first : first + count]

    def _draw_rows(self, epoch: int) -> Int[np.ndarray, "steps B"]:
        seed, batch_size = self._config.seed, self._config.batch_size
        return data.epoch_rows(seed, epoch, self.num_images, batch_size)

    def _compute_rates(self, epoch: int) -> Float[Array, "steps"]:
        """Begin to compute the rates of an epoch's updates, in one go."""
        first = epoch * self.steps_per_epoch
        counts = np.arange(first, first + self.steps_per_epoch, dtype=np.int32)
        return self._compiled_schedule(counts)

    def last_record(self, step: int) -> int:
        """Return the step of the last training record up to `step`."""
        at_the_end = step == self.num_steps
        return step if at_the_end else step - step % self._config.log_every_steps

    def evaluation(self, step: int) -> bool:
        """Return whether the held-out images are scored at `step`."""
        return step == self.num_steps or self._epochs_end(
            step, self._config.eval_every_epochs
        )

    def checkpoint(self, step: int) -> bool:
        """Return whether the state is saved at `step`, even if it is not the best."""
        every = self._config.checkpoint_every_steps
        return step == self.num_steps or (every > 0 and step % every == 0)

    def snapshot(self, step: int) -> bool:
        """Return whether the variables are kept for the figures at `step`."""
        return self._epochs_end(step, self._config.snapshot_every_epochs)

    def snapshots_after(self, step: int) -> int:
        """Return how many snapshots are due after `step`."""
        every = self._config.snapshot_every_epochs * self.steps_per_epoch
        return self.num_steps // every - step // every if every > 0 else 0

    def heads(self, step: int) -> bool:
        """Return whether the offsets that heads cover are logged at `step`."""
        every = self._config.log_heads_every_epochs
        return step > 0 and self._epochs_end(step, every)

    def _epochs_end(self, step: int, every_epochs: int) -> bool:
        return every_epochs > 0 and step % (every_epochs * self.steps_per_epoch) == 0
