"""Stopping a run in order: SIGTERM and Ctrl-C."""

import os
import signal
from typing import Any

import jax
from jax.experimental import multihost_utils


class Stopped(Exception):
    """A signal asked the run to stop; its state has been saved."""

    def __init__(self, signal_number: int, step: int) -> None:
        name = signal.Signals(signal_number).name
        super().__init__(f"stopped by {name} after step {step}")
        self.signal_number = signal_number
        self.step = step


class StopSignals:
    """SIGTERM and Ctrl-C as a flag that the loop reads after each block of steps.

    With several processes JAX's own notice makes all of them stop after the same block;
    Ctrl-C is passed on to it.
    """

    def __enter__(self) -> "StopSignals":
        self._received = self._asked = 0
        self._many = jax.process_count() > 1
        self._before = {}
        for number in (
            (signal.SIGINT,) if self._many else (signal.SIGINT, signal.SIGTERM)
        ):
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
