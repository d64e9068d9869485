"""A run that is killed, at any moment, ends as if it had not been."""

import itertools
import pathlib
import random
import shutil
import subprocess

import jax
import numpy as np
import pytest
from processes import (
    FLAGS,
    NUM_STEPS,
    kill_when,
    resumable,
    run,
    start,
    training_steps,
)

from attn_cnn_jax import checkpoint, records


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
    ended = run(*FLAGS, f"--workdir={workdir}")
    assert ended.returncode == 0, ended.stderr
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
@pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="there is no GPU")
def test_a_killed_run_on_a_gpu_continues_to_the_same_parameters(tmp_path, monkeypatch):
    """As long as the compiled programs are kept, in which kernels were chosen."""
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert run(*FLAGS, f"--workdir={whole}").returncode == 0
    kill_when(start(killed), lambda: len(resumable(killed)) >= 2)
    assert run(*FLAGS, f"--workdir={killed}").returncode == 0
    assert_ended_alike(killed, whole)


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
