"""The command from end to end: train, then score again from the workdir alone."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from attn_cnn_jax import checkpoint, records
from attn_cnn_jax import config as config_lib

ROOT = Path(__file__).parent.parent
QUICKSTART = ROOT / "configs" / "quickstart.py"
OVERRIDES = [
    "--config.num_epochs=2",
    "--config.schedule.warmup_epochs=1",
    "--config.batch_size=200",
    "--config.eval_every_epochs=1",
    "--config.model.patch_size=2",
    "--config.model.width=16",
    "--config.model.num_layers=1",
    "--config.model.mlp_dim=16",
    "--config.model.compute_dtype=float64",
    "--config.snapshot_every_epochs=0",
]
# As `python -m`, and then which of the heavy libraries are there. PyTorch is not to be
# found even where it is installed for benchmarks/: tensorboardX would import it.
TRAIN = """
import runpy, sys
class NoTorch:
    def find_spec(name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, NoTorch)
try:
    runpy.run_module("attn_cnn_jax.main", run_name="__main__", alter_sys=True)
except SystemExit as status:
    print("status", status.code)
print("heavy", sorted({"tensorflow", "torch", "matplotlib"} & set(sys.modules)))
"""


def python(folder: Path, *arguments: str) -> str:
    """What a command prints; it has to succeed, and without a traceback or warning."""
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": ""},  # one device
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr and "Warning" not in result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("main")


@pytest.fixture(scope="module")
def trained(folder) -> str:
    """What training prints; the run lies where the command puts it by itself."""
    return python(folder, "-c", TRAIN, f"--config={QUICKSTART}", *OVERRIDES)


def workdir(folder: Path) -> Path:
    [path] = (folder / "runs").iterdir()
    return path


def test_training_leaves_a_run_in_its_default_workdir(trained, folder):
    name = workdir(folder).name
    assert re.fullmatch(r"quickstart_batch_size=200_.*_[0-9a-f]{8}_seed42", name)
    assert checkpoint.steps(workdir(folder)) == [7, 14]  # 1,437 // 200 steps an epoch
    config = checkpoint.read_config(workdir(folder))
    assert config is not None and config.model.width == 16
    for leaf in jax.tree.leaves(checkpoint.load(workdir(folder)).variables):
        assert leaf.dtype == np.float64
    splits = [(line["step"], line["split"]) for line in records.read(workdir(folder))]
    scored = [(7, "test"), (10, "train"), (14, "train"), (14, "test")]
    assert splits == [*scored, (14, "goodput")]
    assert "epoch 2, step 14: test accuracy" in trained
    assert "status 0" in trained


@pytest.mark.parametrize(
    "named, overrides, expected",
    [
        ("quickstart", {}, "quickstart_seed42"),
        ("configs/quickstart.py:digits", {"seed": 3}, "quickstart_digits_seed3"),
        ("vit:short,digits", {"log_every_steps": 1}, "vit_short_digits_seed42"),
        (
            "vit",
            {"num_epochs": 3, "schedule.drop_epochs": (1, 2), "batch_size": 32},
            "vit_num_epochs=3_schedule.drop_epochs=-1-2-_seed42",
        ),
    ],
)
def test_the_default_workdir_says_what_was_overridden(named, overrides, expected):
    """Only what changes a number: vit's batches are of 32 anyway."""
    written, config = (config_lib.read_file(*named.split(":")) for _ in range(2))
    config.update_from_flattened_dict(overrides)
    changes = config_lib.changes(written, config)
    workdir = config_lib.default_workdir(named, changes, config.seed)
    assert workdir == f"runs/{expected}"
    other = config_lib.default_workdir(named, changes, config.seed, "runs/a")
    assert other == f"{workdir}_init_a"


def test_training_imports_neither_tensorflow_nor_torch(trained):
    assert "heavy []" in trained


def test_evaluation_needs_the_workdir_alone(trained, folder):
    command = ("-m", "attn_cnn_jax.main", "--mode=evaluate")
    moved, place = folder / "elsewhere", workdir(folder)
    place.rename(moved)
    try:
        printed = python(folder, *command, f"--workdir={moved}").splitlines()
    finally:
        moved.rename(place)
    result = json.loads(printed[0])
    last = records.read(workdir(folder))[-2]  # before the goodput of the run
    assert result["step"] == last["step"] == 14
    assert result["images"] == 360
    assert result["accuracy"] == last["accuracy"]
    assert result["loss"] == last["loss"]  # to the last of its float64 digits
    assert f"test accuracy {last['accuracy']:.4f}" in printed[1]
