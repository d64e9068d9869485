"""The runs of a sweep on this machine: one process a GPU, or one after the other."""

import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from attn_cnn_jax.errors import one_line
from attn_cnn_jax.sweep.manifest import PlannedRun

_AGAIN = (75, 128 + signal.SIGTERM)  # a peer was lost; asked to stop, and saved
_MOST_STARTS = 5


def gpus() -> list[str]:
    """Return the numbers of NVIDIA's GPUs on this machine, none without its driver."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    except OSError:
        return []
    return re.findall(r"^GPU (\d+):", listed.stdout, re.MULTILINE)


class LocalEngine:
    """Trains runs in processes of their own, as many at a time as it has places.

    A place is a GPU's number, or "" for whatever JAX finds. What a run prints goes to
    FOLDER/NAME.log. One that fails does not stop the others; one that was killed is
    started again. `say` is told a line at a time.
    """

    def __init__(self, places: Sequence[str], say: Callable[[str], None]) -> None:
        self._num_places, self._say = len(places), say
        self._places: queue.SimpleQueue[str] = queue.SimpleQueue()
        for place in places:
            self._places.put(place)
        self._running: set[subprocess.Popen] = set()
        self._lock, self._stopped = threading.Lock(), False

    def train(self, runs: Sequence[PlannedRun]) -> list[bool]:
        """Train all runs; returns which of them are complete.

        On Ctrl-C all are asked to save and to end, before it is raised.
        """
        with ThreadPoolExecutor(self._num_places) as pool:
            futures = [pool.submit(self._train, run) for run in runs]
            try:
                return [future.result() for future in futures]
            except BaseException:
                self._say("stopping: the runs save; the same command continues them")
                self._stop()
                raise

    def _stop(self) -> None:
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.send_signal(signal.SIGTERM)

    def _train(self, run: PlannedRun) -> bool:
        place = self._places.get()
        try:
            for start in range(_MOST_STARTS):
                status = self._run_once(run, place, again=start > 0)
                killed = status is not None and status < 0
                if not killed and status not in _AGAIN:
                    break
        finally:
            self._places.put(place)
        if status is None:
            return False
        if status == 0:
            self._say(f"{run.name}: complete")
        else:
            self._say(f"{run.name}: failed with status {status}: {_last_line(run)}")
        return status == 0

    def _run_once(self, run: PlannedRun, place: str, *, again: bool) -> int | None:
        """Return the exit status of a process; None where the sweep has stopped."""
        environment = dict(os.environ)
        if place:
            environment["CUDA_VISIBLE_DEVICES"] = place
        command = [sys.executable, "-m", "attn_cnn_jax.main", *run.flags]
        run.workdir.parent.mkdir(parents=True, exist_ok=True)
        with _log(run).open("ab") as log:
            with self._lock:
                if self._stopped:
                    return None
                process = subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C is for the sweep, which asks it
                )
                self._running.add(process)
            on = f" on GPU {place}" if place else ""
            begun = "goes on" if again else "begins"
            self._say(f"{run.name}: {begun}{on} (process {process.pid}, {_log(run)})")
            status = process.wait()
        with self._lock:
            self._running.discard(process)
            return None if self._stopped else status


def _log(run: PlannedRun):
    return run.workdir.with_name(f"{run.name}.log")


def _last_line(run: PlannedRun) -> str:
    lines = _log(run).read_text(encoding="utf-8", errors="replace").split("\n")
    return one_line(next(filter(None, reversed(lines)), "it said nothing"))
