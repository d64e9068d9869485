"""The log of a training: metrics file, TensorBoard, a progress bar or lines."""

import contextlib
import itertools
import math
import pathlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict
from tqdm import tqdm

from attn_cnn_jax import models, parallel, records, signals
from attn_cnn_jax.covered_offsets import Coverage
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.goodput import Goodput
from attn_cnn_jax.metrics import Sums
from attn_cnn_jax.records import Records
from attn_cnn_jax.timetable import Timetable

_SECONDS_BETWEEN_LINES = 15.0
_SECONDS_UNREAD = 5.0  # after which a loss that is not finite is noticed at the latest


class TrainLog:
    """The records of a training, to files and to a person; a context manager.

    It keeps the sums of the steps until they are computed, adds up those of an interval
    (`interval`: of the steps since the last record) and measures images/s. Opened at
    the step that a run continues from, with the `mark` that its checkpoint has of the
    records, and the time that was spent so far. Only process 0 writes and prints.
    """

    def __init__(
        self,
        workdir: pathlib.Path,
        config: ConfigDict,
        due: Timetable,
        step: int,
        interval: Sums,
        mark: Mapping[str, Any] | None = None,
        goodput: Goodput | None = None,
    ) -> None:
        self.interval = interval
        self.goodput = goodput or Goodput()
        self._workdir, self._config, self._due = workdir, config, due
        self._step = self._recorded = step  # of the last sums read; of the last record
        self._unread: list[tuple[list[Sums], int]] = []
        self._first = True
        self._time = self._last_line = self._last_read = time.perf_counter()
        self._enabled = jax.process_index() == 0
        self._records = Records(workdir, step, mark, enabled=self._enabled)
        self._bar = tqdm(
            total=due.num_steps,
            initial=step,
            unit="step",
            disable=not (self._enabled and sys.stderr.isatty()),
            dynamic_ncols=True,
            smoothing=0.1,
        )

    def __enter__(self) -> "TrainLog":
        return self

    def __exit__(self, *unused: object) -> None:
        self._bar.close()
        self._records.close()

    def begin(self, variables: Mapping[str, Any], mesh: Mesh, room: str) -> None:
        """Say what is trained, on what, from which step on, in how much `room`."""
        devices = mesh.devices.ravel()
        begun = f"continues after step {self._step}" if self._step else "begins"
        self.say(
            f"{self._config.model.name} with {models.count_parameters(variables):,} "
            f"parameters on {len(devices)} x {devices[0].device_kind} in "
            f"{parallel.arithmetic(self._config, mesh)}: {self._workdir} {begun} of "
            f"{self._due.num_steps}; checkpoints take {room}"
        )
        self.goodput.turn_to("compiling")

    def add(self, sums: list[Sums], count: int) -> None:
        """Take the sums of the next `count` steps, which may still be computed.

        Where a logging interval ended before them, or nothing was read for some time,
        what was added earlier is read while the device has these to compute.
        """
        if self._first:  # the first call compiled, which is not training
            self._first, self._time = False, time.perf_counter()
            self._bar.unpause()  # else its time left would count that in every step
            self.goodput.turn_to("training")
        begin = self._step + sum(count for _, count in self._unread)
        waited = time.perf_counter() - self._last_read
        if self._due.last_record(begin) > self._step or waited > _SECONDS_UNREAD:
            self.read()
        self._unread.append((sums, count))

    def read(self) -> None:
        """Fetch all sums; write a record where an interval ends.

        Records that are read together have one speed. Raises a `UserError` where a loss
        is not finite.
        """
        unread, self._unread = self._unread, []
        self._last_read = time.perf_counter()
        fetched = jax.device_get([sums for sums, _ in unread])
        last = self._due.last_record(self._step + sum(count for _, count in unread))
        rate = self._images_per_second(last) if last > self._step else 0.0
        for sums, (_, count) in zip(fetched, unread, strict=True):
            steps = itertools.chain.from_iterable(part.of_steps() for part in sums)
            for of_step in itertools.islice(steps, count):
                self._read_step(of_step, rate)

    def _images_per_second(self, step: int) -> float:
        """Return the speed from the last record to the one of `step`, just computed."""
        now, steps = time.perf_counter(), step - self._recorded
        rate = steps * self._config.batch_size / max(now - self._time, 1e-9)
        self._recorded, self._time = step, now
        return rate

    def _read_step(self, sums: Sums, rate: float) -> None:
        self._step += 1
        if not math.isfinite(sums.loss):
            raise UserError(
                f"the loss of step {self._step} is {sums.loss}; the run stops. Its "
                "checkpoints are from before; lower config.optimizer.learning_rate."
            )
        self.interval += sums
        if self._due.last_record(self._step) != self._step:
            return
        means, self.interval = self.interval.means(), Sums.zero()
        values = {
            "epoch": self._step / self._due.steps_per_epoch,
            **means,
            "learning_rate": self._due.learning_rate(self._step),
            "images_per_second": rate,
        }
        self._records.write(self._step, "train", values)
        self._bar.set_postfix_str(
            f"loss {means['loss']:.3f}, accuracy {means['accuracy']:.3f}, "
            f"{rate:.3g} images/s"
        )
        self._bar.update(self._step - self._bar.n)
        silent = time.perf_counter() - self._last_line
        if silent > _SECONDS_BETWEEN_LINES and self._bar.disable:
            left = (self._due.num_steps - self._step) * self._config.batch_size / rate
            self.say(
                f"{self._where(self._step)}: loss {means['loss']:.4f}, accuracy "
                f"{means['accuracy']:.4f}, {rate:.3g} images/s, "
                f"{tqdm.format_interval(left)} left"
            )

    def evaluated(
        self, step: int, results: Mapping[str, dict[str, int | float]]
    ) -> dict[str, int | float]:
        """Tell the result of each split; return that which chooses the best checkpoint.

        A run that was complete before, and has its records, writes none again.
        """
        for split, result in results.items():
            if not self._first:
                values = {"epoch": step / self._due.steps_per_epoch, **result}
                self._records.write(step, split, values)
            self.say(
                f"{self._where(step)}: {split} accuracy {result['accuracy']:.4f}, "
                f"loss {result['loss']:.4f} ({result['images']:,} images)"
            )
        return results.get("validation", results["test"])

    def heads(self, step: int, layers: Sequence[Coverage]) -> None:
        """Write and tell how many offsets each layer covers, and its largest kernel."""
        values: dict[str, int | float] = {"epoch": step / self._due.steps_per_epoch}
        for one in layers:
            name = one.layer.replace(" ", "_")
            values[f"{name}/covered_offsets"] = len(one.covered)
            values[f"{name}/largest_kernel"] = one.kernel_size
        self._records.write(step, records.HEADS, values)
        kernels = ", ".join(
            f"{one.layer} {one.kernel_size} x {one.kernel_size}"
            if one.kernel_size
            else f"{one.layer} none"
            for one in layers
        )
        self.say(f"{self._where(step)}: largest kernel covered: {kernels}")

    def end(self, best: tuple[float, int]) -> None:
        """Say that all steps are done, and the best accuracy and its step."""
        self.say(
            f"complete: {self._due.num_steps} steps; best accuracy {best[0]:.4f} after "
            f"step {best[1]}; {self.goodput}; results in {self._workdir}"
        )
        if not self._first:
            seconds = self.goodput.seconds
            self._records.write(self._due.num_steps, records.GOODPUT, seconds)

    def sync(self) -> dict[str, Any]:
        """Bring all records to the disk; return what a checkpoint keeps of them."""
        self._records.sync()
        return self._records.mark()

    def say(self, line: str) -> None:
        """Print a line above the bar, if there is still somebody who can read it."""
        if self._enabled:
            self._last_line = time.perf_counter()
            with self._bar.external_write_mode(file=sys.stdout):
                signals.tell(line)

    @contextlib.contextmanager
    def paused(self, activity: str) -> Iterator[None]:
        """Read all sums, then stop the clock: the activity is no training."""
        self.read()
        begin = time.perf_counter()
        with self.goodput.during(activity):
            yield
        self._time += time.perf_counter() - begin
        self._bar.unpause()

    def _where(self, step: int) -> str:
        return f"epoch {step / self._due.steps_per_epoch:.4g}, step {step}"
