"""A workdir's own `data_dir` is followed inside the user's, and nowhere else."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attn_cnn_jax import checkpoint
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.run import Run

ROOT = Path(__file__).parents[2]


@pytest.fixture
def users(tmp_path, monkeypatch):
    """The folder where TFDS looks by itself."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "users"))
    (tmp_path / "users").mkdir()
    return tmp_path / "users"


def _run(workdir, config, data_dir, name="mnist", given=None) -> Run:
    config.dataset.update(name=name, data_dir=str(data_dir))
    checkpoint.write_config(workdir, config)
    return Run(workdir, data_dir=given)


@pytest.mark.filterwarnings("ignore:.*was never verified")
def test_a_folder_of_others_is_read_on_demand_alone(
    users, tfds_set, tiny_config, tmp_path
):
    elsewhere = tmp_path / "elsewhere"
    for root in (elsewhere, users / "more"):
        tfds_set(root, shape=(8, 8, 1))
    run = _run(tmp_path / "run", tiny_config(), elsewhere)
    with pytest.raises(UserError, match=f"add --data_dir='{elsewhere}'") as error:
        run.evaluate()
    assert "\n" not in str(error.value) and str(users) in str(error.value)
    assert len(Run(run.workdir, data_dir=str(elsewhere)).dataset.test) == 12
    inside = _run(tmp_path / "run", tiny_config(), users / "more")
    assert len(inside.dataset.test) == 12


def _climb(users, other):
    return users / ".." / other.name


def _link(users, other):
    (users / "link").symlink_to(other)
    return users / "link"


def _relative(users, other):
    return os.path.relpath(other)


def _beside(users, other):
    return f"{users}_of_others"


@pytest.mark.parametrize("disguise", [_climb, _link, _relative, _beside])
def test_no_disguise_leads_outside(disguise, users, tiny_config, tmp_path):
    (tmp_path / "other").mkdir()
    path = disguise(users, tmp_path / "other")
    run = _run(tmp_path / "run", tiny_config(), path)
    with pytest.raises(UserError, match=f"names data outside of {users}"):
        run.evaluate()


def test_data_that_ship_come_from_nowhere_else(users, tiny_config, tmp_path):
    run = _run(tmp_path / "run", tiny_config(), "/elsewhere", name="digits_8x8")
    assert len(run.dataset.test) == 360


def test_a_class_in_a_workdir_is_not_imported(tiny_config, tmp_path):
    """By the real command, which stands in the folder that holds the runs."""
    workdir = tmp_path / "runs" / "evil"
    folder = workdir / "data" / "pwn" / "1.0.0"
    folder.mkdir(parents=True)
    (workdir / "payload.py").write_text("open('ran', 'w')")
    features = {"pythonClassName": "runs.evil.payload.Text", "text": {}}
    (folder / "features.json").write_text(json.dumps(features))
    info = {"name": "pwn", "version": "1.0.0", "fileFormat": "array_record"}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    config = tiny_config()
    config.dataset.update(name="pwn", data_dir="runs/evil/data")
    checkpoint.write_config(workdir, config)
    command = "-m attn_cnn_jax.main --mode=evaluate --workdir=runs/evil".split()
    result = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
    )
    assert not (tmp_path / "ran").exists() and result.returncode == 2
    assert "names data outside of" in result.stderr
    assert result.stderr.count("\n") == 1
