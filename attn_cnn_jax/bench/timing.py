"""The time and the memory that a compiled program takes."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax

FEWEST_STEPS = 3


def compiled(step: Any, *args: Any) -> tuple[Any, float]:
    """Compile the step and return it with the seconds that this took."""
    start = time.perf_counter()
    program = step.lower(*args).compile()
    return program, time.perf_counter() - start


def median_seconds(
    functions: list[Callable[[], Any]], steps: int, seconds: float
) -> list[float]:
    """Return the median time of each function to its result, called in turn.

    A first call of each is not timed. After `seconds` there are no more rounds, but
    there are FEWEST_STEPS.
    """
    for function in functions:
        jax.block_until_ready(function())
    times: list[list[float]] = [[] for _ in functions]
    begin = time.perf_counter()
    for done in range(steps):
        if done >= FEWEST_STEPS and time.perf_counter() - begin > seconds:
            break
        for function, own in zip(functions, times, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(function())
            own.append(time.perf_counter() - start)
    return [statistics.median(own) for own in times]


def peak_bytes(device: Any) -> int | None:
    """Return the most that a device ever held, where its allocator counts."""
    return (device.memory_stats() or {}).get("peak_bytes_in_use")


def memory(device: Any, program: Any, peak_before: int | None) -> tuple[int, str]:
    """Return the peak memory of a device in bytes, and who says so.

    The allocator's peak is that of this program only if it rose; else what the compiled
    program needs: its arguments, results and temporaries.
    """
    peak = peak_bytes(device)
    if peak is not None and peak_before is not None and peak > peak_before:
        return peak, "memory_stats"
    needs = program.memory_analysis()
    return (
        needs.argument_size_in_bytes
        + needs.output_size_in_bytes
        - needs.alias_size_in_bytes
        + needs.temp_size_in_bytes
    ), "memory_analysis"
