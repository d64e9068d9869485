"""A process with one variant of a step: it takes a step when it is told to.

Its argument is a JSON object, the step to make; a line of stdin is a command ("step",
"finish"), answered by a line of JSON. A side's library is imported here alone, so that
the memory of the process is that of one side.
"""

import contextlib
import ctypes
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_WARMUP_STEPS = 2
_PRODUCTS = 8  # the fastest counts


def main() -> None:
    """Answer until stdin ends, or until there was an error to tell."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries may print; the answers must be alone

    def answer(fields: Mapping[str, Any]) -> None:
        print(json.dumps(fields), file=answers, flush=True)

    try:
        step = _made(json.loads(sys.argv[1]))
        answer(step.facts())
        for line in sys.stdin:
            answer(_COMMANDS[line.strip()](step))
    except ModuleNotFoundError as error:
        answer({"error": f"the package {error.name} is missing: make peers"})
    except Exception as error:  # whatever it is, the others go on
        lines = [line for line in str(error).splitlines() if line.strip()]
        reason = lines[0].strip() if lines else "no reason given"
        answer({"error": f"{type(error).__name__}: {reason}"[:300]})


def _made(spec: Mapping[str, Any]) -> Any:
    if spec.get("cpus"):
        os.sched_setaffinity(0, spec["cpus"])
    if spec["side"] == "ours":
        from benchmarks.our_step import Step
    else:
        from benchmarks.torch_step import Step
    step = Step(spec)
    for _ in range(_WARMUP_STEPS):
        step()
    _forget_peak()
    return step


def _forget_peak() -> None:
    """Give back what compiling took, and begin the peak anew: it is the steps' one."""
    with contextlib.suppress(OSError, AttributeError):  # not of every system
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")


def _step(step: Any) -> dict[str, float]:
    start = time.perf_counter()
    step()
    return {"seconds": time.perf_counter() - start}


def _finish(step: Any) -> dict[str, Any]:
    """Return the peak memory of the steps and the rate of a large product."""
    peak, source = step.peak_bytes(), "allocator"
    if peak is None:
        peak, source = _resident_peak(), "resident set"
    operations, multiply = step.product()
    times = []
    for _ in range(_PRODUCTS):
        start = time.perf_counter()
        multiply()
        times.append(time.perf_counter() - start)
    ceiling = operations / min(times)
    return {"peak_bytes": peak, "memory_source": source, "ceiling_flops": ceiling}


def _resident_peak() -> int | None:
    """Return the peak of the process' memory in bytes, where the system is Linux."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    return None


_COMMANDS = {"step": _step, "finish": _finish}


if __name__ == "__main__":
    main()
