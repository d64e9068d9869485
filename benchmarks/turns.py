"""Processes that take turns, so that all variants meet the same machine."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.variants import VARIANTS

_ROOT = Path(__file__).parent.parent
_REST_SECONDS = 0.05  # for the threads of the step before, which wait for more work


class Worker:
    """A `benchmarks.worker` process; after an `error` it is asked no more."""

    def __init__(
        self, spec: Mapping[str, Any], environment: Mapping[str, str] | None = None
    ) -> None:
        self.variant: str = spec["variant"]
        self.error: str | None = None
        self.seconds: list[float] = []
        self._log = tempfile.TemporaryFile("w+", errors="replace")
        spec = {**spec, "side": VARIANTS[self.variant].side}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker", json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=_ROOT,
            env={
                **os.environ,
                # All share a GPU: each takes what it needs and not three quarters.
                "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
                **(environment or {}),
            },
        )
        self.facts = self._answer()

    def step(self) -> None:
        """Take a step and keep its seconds."""
        if self.error is None:
            answer = self._ask("step")
            if self.error is None:
                self.seconds.append(answer["seconds"])

    def finish(self) -> dict[str, Any]:
        """Return peak memory and the rate of a large product; {} after an error."""
        return {} if self.error else self._ask("finish")

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream:
                with contextlib.suppress(OSError):
                    stream.close()

    def _ask(self, command: str) -> dict[str, Any]:
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            print(command, file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": self._last_words()}
        self.error = answer.get("error")
        return {} if self.error else answer

    def _last_words(self) -> str:
        """Say how a process ended that could not say it itself."""
        status = self._process.wait()
        self._log.seek(0)
        lines = [line.strip() for line in self._log if line.strip()]
        ended = f"signal {-status}" if status < 0 else f"status {status}"
        if status == -9:
            ended += ", as where memory runs out"
        return ": ".join([f"the process ended with {ended}", *lines[-1:]])[:300]


@contextlib.contextmanager
def working(specs: Sequence[Mapping[str, Any]]) -> Iterator[list[Worker]]:
    """Yield a worker for each spec, made one after the other and ended in the end."""
    workers: list[Worker] = []
    try:
        for spec in specs:
            print(f"preparing {spec['variant']}", file=sys.stderr, flush=True)
            workers.append(Worker(spec))
        yield workers
    finally:
        for worker in workers:
            worker.close()


def take_turns(workers: Sequence[Any], steps: int, seconds: float, fewest: int) -> None:
    """Let each worker take a step, then each the next one, `steps` times.

    After `seconds` there are no more rounds, but there are `fewest`.
    """
    begin = time.perf_counter()
    for done in range(steps):
        if done >= fewest and time.perf_counter() - begin > seconds:
            break
        for worker in workers:
            time.sleep(_REST_SECONDS)
            worker.step()
