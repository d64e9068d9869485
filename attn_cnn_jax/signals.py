"""Stopping a run in order: SIGTERM, Ctrl-C and the end of its terminal (SIGHUP)."""

import contextlib
import os
import signal
import sys
from typing import Any

import jax
from jax.experimental import multihost_utils


def tell(line: str) -> None:
    """Print a line, or nothing any more where the terminal or pipe is gone."""
    try:
        print(line, flush=True)
    except OSError:  # a run goes on, and its end must not fail on what is left to write
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Stopped(Exception):
    """A signal asked the run to stop; its state has been saved."""

    def __init__(self, signal_number: int, step: int) -> None:
        name = signal.Signals(signal_number).name
        super().__init__(f"stopped by {name} after step {step}")
        self.signal_number = signal_number
        self.step = step


class StopSignals:
    """SIGTERM, SIGHUP and Ctrl-C as a flag, read after each block of steps.

    With several processes JAX's own notice of SIGTERM makes all of them stop after the
    same block; the others are passed on to it. Where SIGHUP is ignored (nohup) it
    stays so.
    """

    def __enter__(self) -> "StopSignals":
        self._received = self._asked = 0
        self._many = jax.process_count() > 1
        self._before = {}
        numbers = [signal.SIGINT]
        if not self._many:
            numbers.append(signal.SIGTERM)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        for number in numbers:
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *unused: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, unused_frame: Any) -> None:
        if self._many:
            os.kill(os.getpid(), signal.SIGTERM)
        elif self._received == number == signal.SIGINT:
            raise KeyboardInterrupt  # asked twice: do not wait for the save
        self._received = number

    def received(self) -> int:
        """Return the number of the signal to stop for now, 0 if none.

        All processes have to ask equally often.
        """
        self._asked += 1
        if self._many:
            stop = multihost_utils.reached_preemption_sync_point(self._asked)
            return signal.SIGTERM if stop else 0
        return self._received
