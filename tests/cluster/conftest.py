"""A tiny training in several processes: started, watched, ended."""

import os
import pathlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import jax
import numpy as np
import pytest

from attn_cnn_jax import checkpoint

ROOT = pathlib.Path(__file__).parents[2]


class Processes:
    """Starts the processes of a training of 56 steps on eight devices in all."""

    python = sys.executable
    root = ROOT
    steps = 56
    flags = (
        f"--config={ROOT}/configs/quickstart.py",
        "--config.batch_size=100",
        "--config.eval_every_epochs=1",
        "--config.model.width=16",
        "--config.model.mlp_dim=16",
        "--config.model.patch_size=2",
        "--config.model.num_layers=1",
        "--config.num_epochs=4",
        "--config.schedule.warmup_epochs=1",
        "--config.snapshot_every_epochs=0",
        "--config.log_every_steps=4",
        # Masks of dropout are the same on all devices; sums are not.
        "--config.model.dropout_rate=0",
        "--config.model.attention.dropout_rate=0",
        "--config.checkpoint_every_steps=2",
    )
    endless = ("--config.num_epochs=100000",)

    def __init__(self) -> None:
        self._started: list[subprocess.Popen] = []

    def start(
        self, command: Sequence[str], devices: int, **environment: str
    ) -> subprocess.Popen:
        """Start a command whose processes have so many devices each."""
        user = dict(os.environ)
        del user["JAX_DISABLE_MOST_OPTIMIZATIONS"]
        user |= {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
            "PYTHON": sys.executable,
            **environment,
        }
        process = subprocess.Popen(
            command,
            env=user,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._started.append(process)
        return process

    def train(
        self, workdir: pathlib.Path, *extra: str, processes: int = 2
    ) -> subprocess.Popen:
        """Train through launch/local.sh, or without it in one process."""
        command = ["bash", str(ROOT / "launch/local.sh"), str(processes)]
        if processes == 1:
            command = [sys.executable, "-m", "attn_cnn_jax.main"]
        command += [*self.flags, f"--workdir={workdir}", *extra]
        return self.start(command, 8 // processes, PORT=self.free_port())

    @staticmethod
    def free_port() -> str:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            return str(free.getsockname()[1])

    @staticmethod
    def until(ready: Callable[[], bool], *running: subprocess.Popen) -> None:
        """Wait until `ready()`; none of the processes may end before."""
        deadline = time.monotonic() + 300
        while not ready():
            assert time.monotonic() < deadline
            for process in running:
                assert process.poll() is None, process.communicate()[0]
            time.sleep(0.05)

    def until_saved(
        self, workdir: pathlib.Path, *running: subprocess.Popen, beyond: int = 0
    ) -> int:
        """Wait until a training has saved a step beyond the given one; return it."""
        self.until(lambda: (checkpoint.last_resumable(workdir) or 0) > beyond, *running)
        return checkpoint.last_resumable(workdir) or 0

    @staticmethod
    def end(process: subprocess.Popen, status: int = 0, seconds: float = 300) -> str:
        """Wait for a process that ends by itself; return what it printed."""
        output, _ = process.communicate(timeout=seconds)
        assert process.returncode == status, output
        return output

    @staticmethod
    def error(output: str) -> str:
        """Return the one line that speaks of an error; no traceback, no abort."""
        lines = [line for line in output.splitlines() if "error" in line.lower()]
        assert len(lines) == 1, output
        assert "traceback" not in output.lower() and "abort" not in output.lower()
        return lines[0]

    @staticmethod
    def assert_alike(one: pathlib.Path, other: pathlib.Path) -> None:
        """Both have ended with the same parameters, but for the order of sums."""

        def close(a: np.ndarray, b: np.ndarray) -> None:
            scale = max(np.abs(a).max(), 1e-30)
            assert np.abs(a - b).max() <= 1e-5 * scale

        a, b = checkpoint.load(one), checkpoint.load(other)
        assert a.step == b.step == Processes.steps
        jax.tree.map(close, a.variables, b.variables)

    def kill_all(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def processes():
    started = Processes()
    yield started
    started.kill_all()


@pytest.fixture(scope="package")
def alone(tmp_path_factory):
    """The workdir of the training that one process did."""
    workdir = tmp_path_factory.mktemp("alone")
    started = Processes()
    started.end(started.train(workdir, processes=1))
    return workdir
