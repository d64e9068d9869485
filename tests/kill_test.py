"""A run that is killed, at any moment, ends as if it had not been."""

import itertools
import os
import pathlib
import random
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from attn_cnn_jax import checkpoint, records

ROOT = pathlib.Path(__file__).parent.parent
NUM_STEPS = 42
FLAGS = [
    f"--config={ROOT}/configs/quickstart.py",
    "--config.batch_size=100",
    "--config.model.width=16",
    "--config.model.mlp_dim=16",
    "--config.model.num_layers=1",
    "--config.model.patch_size=2",
    "--config.dataset.crop_padding=1",
    "--config.num_epochs=3",
    "--config.schedule.warmup_epochs=1",
    "--config.log_every_steps=1",
    "--config.checkpoint_every_steps=2",
]


def as_a_user() -> dict[str, str]:
    """The environment with XLA's optimisations, and with one device."""
    ours = ("XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS")
    return {name: value for name, value in os.environ.items() if name not in ours}


def start(workdir: pathlib.Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "attn_cnn_jax.main", *FLAGS, f"--workdir={workdir}"],
        cwd=ROOT,
        env=as_a_user(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(workdir: pathlib.Path) -> None:
    process = start(workdir)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output


def kill_when(process: subprocess.Popen, ready) -> None:
    """SIGKILL as soon as `ready()`; the run must not have ended before."""
    deadline = time.monotonic() + 300
    while not ready():
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    process.kill()
    process.communicate()


def training_steps(workdir: pathlib.Path) -> list[int]:
    return [line["step"] for line in records.read(workdir) if line["split"] == "train"]


def resumable(workdir: pathlib.Path) -> list[int]:
    folder = workdir / "checkpoints"
    return sorted(int(path.name) for path in folder.glob("*") if path.name.isdigit())


def assert_ended_alike(killed: pathlib.Path, whole: pathlib.Path) -> None:
    a, b = checkpoint.load(killed), checkpoint.load(whole)
    assert a.step == b.step == NUM_STEPS
    jax.tree.map(np.testing.assert_array_equal, a.variables, b.variables)
    assert training_steps(killed) == list(range(1, NUM_STEPS + 1))
    evaluations = [line for line in records.read(killed) if line["split"] == "test"]
    assert evaluations == [m for m in records.read(whole) if m["split"] == "test"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> pathlib.Path:
    workdir = tmp_path_factory.mktemp("whole")
    run(workdir)
    return workdir


def test_a_killed_run_continues_to_the_same_parameters(whole, tmp_path):
    process = start(tmp_path)
    kill_when(process, lambda: len(resumable(tmp_path)) >= 2)
    at_kill = resumable(tmp_path)
    assert len(at_kill) >= 2 and 0 < at_kill[-1] < NUM_STEPS  # it had saved twice
    resumed = start(tmp_path)
    output, _ = resumed.communicate(timeout=300)
    assert resumed.returncode == 0, output
    assert f"continues after step {at_kill[-1]}" in output
    assert_ended_alike(tmp_path, whole)


@pytest.mark.soak
def test_many_kills_at_random_moments(whole, tmp_path):
    """Kills anywhere: while importing, compiling, training, saving, cleaning up."""
    dice = random.Random(0)
    for kill in itertools.count():
        process = start(tmp_path)
        longest = 12.0 if kill < 30 else 600.0
        try:
            process.wait(dice.uniform(0.5, longest))
        except subprocess.TimeoutExpired:
            process.kill()
        output, _ = process.communicate()
        if process.returncode == 0:
            break
        assert process.returncode == -9, output
    assert_ended_alike(tmp_path, whole)
