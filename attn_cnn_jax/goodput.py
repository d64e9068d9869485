"""How much of a run's wall time since its first start was training that counts."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

# The steps that count; reading data and restoring; the first step; scoring; waiting for
# a save; steps that a kill took back; and no process at all.
ACTIVITIES = (
    "training",
    "starting",
    "compiling",
    "evaluating",
    "saving",
    "repeating",
    "waiting",
)


class Goodput:
    """The seconds of each activity, over all processes of a run.

    `before` is what `state` returned for the checkpoint that a run continues from, and
    `last_sign` the time of the last sign of life of the process that wrote it: until
    then it did what is done again, and from then on nobody did anything. This process
    `started` when it began to read what it needs.
    """

    def __init__(
        self,
        before: Mapping[str, Any] | None = None,
        last_sign: float = 0.0,
        started: float | None = None,
    ) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(ACTIVITIES, 0.0)
        self._activity, self._since = "starting", started or time.time()
        if before is None:
            return
        self.seconds.update(before["seconds"])
        gap = max(self._since - before["until"], 0.0)
        lost = min(max(last_sign - before["until"], 0.0), gap)
        self.seconds["repeating"] += lost
        self.seconds["waiting"] += gap - lost

    def turn_to(self, activity: str) -> str:
        """Count from now on for this activity; return the one before."""
        now, before = time.time(), self._activity
        self.seconds[before] += max(now - self._since, 0.0)  # a clock may be set back
        self._activity, self._since = activity, now
        return before

    @contextlib.contextmanager
    def during(self, activity: str) -> Iterator[None]:
        """Count for this activity, and then again for the one before."""
        before = self.turn_to(activity)
        try:
            yield
        finally:
            self.turn_to(before)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        self.turn_to(self._activity)
        return {"seconds": dict(self.seconds), "until": self._since}

    def shares(self) -> dict[str, float]:
        """Return the share of each activity in the wall time so far; they sum to 1."""
        self.turn_to(self._activity)
        total = max(sum(self.seconds.values()), 1e-9)
        return {name: value / total for name, value in self.seconds.items()}

    def __str__(self) -> str:
        """Return a line such as "goodput 93 % of 1:02:10: saving 4 %, starting 3 %"."""
        shares = self.shares()
        total = round(sum(self.seconds.values()))
        others = sorted(ACTIVITIES[1:], key=lambda name: -shares[name])
        rest = ", ".join(
            f"{name} {shares[name]:.0%}" for name in others if shares[name] >= 0.005
        )
        clock = f"{total // 3600}:{total // 60 % 60:02}:{total % 60:02}"
        text = f"goodput {shares['training']:.0%} of {clock}"
        return f"{text} ({rest})" if rest else text
