"""What a person sees of a run: a progress bar, or lines where there is no terminal."""

import sys
import time
from collections.abc import Mapping

from tqdm import tqdm

_SECONDS_BETWEEN_LINES = 15.0


class Bar:
    """Progress of a training in steps, with loss, accuracy, images/s and time left."""

    def __init__(
        self,
        step: int,
        num_steps: int,
        steps_per_epoch: int,
        batch_size: int,
        *,
        enabled: bool,
    ) -> None:
        self._steps_per_epoch = steps_per_epoch
        self._num_steps = num_steps
        self._batch_size = batch_size
        self._enabled = enabled
        self._step = step
        self._time = self._paused = self._last_line = time.perf_counter()
        self._bar = tqdm(
            total=num_steps,
            initial=step,
            unit="step",
            disable=not (enabled and sys.stderr.isatty()),
            dynamic_ncols=True,
            smoothing=0.1,
        )

    def advance(self, step: int, means: Mapping[str, float]) -> dict[str, float]:
        """Show the means up to `step`; returns {"images_per_second"} since the last."""
        now = time.perf_counter()
        steps, seconds = step - self._step, now - self._time
        rate = steps * self._batch_size / max(seconds, 1e-9)
        self._bar.set_postfix_str(
            f"loss {means['loss']:.3f}, accuracy {means['accuracy']:.3f}, "
            f"{rate:.3g} images/s"
        )
        self._bar.update(steps)
        if now - self._last_line > _SECONDS_BETWEEN_LINES and self._bar.disable:
            left = (self._num_steps - step) * seconds / max(steps, 1)
            self.say(
                f"{self._where(step)}: loss {means['loss']:.4f}, accuracy "
                f"{means['accuracy']:.4f}, {rate:.3g} images/s, "
                f"{tqdm.format_interval(left)} left"
            )
        self._step, self._time = step, now
        return {"images_per_second": rate}

    def say_evaluation(
        self, step: int, split: str, result: Mapping[str, int | float]
    ) -> None:
        """A line with the result of an evaluation."""
        self.say(
            f"{self._where(step)}: {split} accuracy {result['accuracy']:.4f}, "
            f"loss {result['loss']:.4f} ({result['images']:,} images)"
        )

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        if self._enabled:
            self._last_line = time.perf_counter()
            self._bar.write(line, file=sys.stdout)
            sys.stdout.flush()

    def pause(self) -> None:
        """Stop the clock of the rate: compiling, evaluating and saving do not count."""
        self._paused = time.perf_counter()

    def resume(self) -> None:
        """Let the clock go on."""
        self._time += time.perf_counter() - self._paused

    def close(self) -> None:
        """Leave the bar on the screen as it is."""
        self._bar.close()

    def _where(self, step: int) -> str:
        return f"epoch {step / self._steps_per_epoch:.4g}, step {step}"
