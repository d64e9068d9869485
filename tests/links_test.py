"""A link in a workdir leads no write out of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attn_cnn_jax import checkpoint
from attn_cnn_jax.checkpoint.lock import WorkdirLock
from attn_cnn_jax.errors import UserError

ROOT = Path(__file__).parent.parent
LINKS = [
    *("config.json", "config.json.new", "metrics.jsonl", "environment.jsonl"),
    *("run.lock", "bench.jsonl", "checkpoints", "tensorboard", "analysis"),
    *("analysis/heads.csv", "checkpoints/5"),
]


def _linked(workdir: Path, name: str, victim: Path) -> None:
    (workdir / name).parent.mkdir(parents=True, exist_ok=True)
    (workdir / name).symlink_to(victim)


@pytest.mark.parametrize("name", LINKS)
def test_no_training_begins_over_a_link(name, tiny_config, tmp_path):
    workdir, victim = tmp_path / "run", tmp_path / "victim"
    _linked(workdir, name, victim)
    for begin in (
        lambda: WorkdirLock(workdir),
        lambda: checkpoint.write_config(workdir, tiny_config()),
    ):
        with pytest.raises(UserError, match=f"{name} leads to {victim}, outside"):
            begin()
    assert not victim.exists()


def test_links_of_a_users_own_are_followed(tiny_config, tmp_path):
    """A workdir on another disk, and links inside of it."""
    (tmp_path / "disk" / "old").mkdir(parents=True)
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    (tmp_path / "run" / "new").symlink_to("old")
    checkpoint.write_config(tmp_path / "run", tiny_config())
    assert (tmp_path / "disk" / "config.json").is_file()


def test_no_figure_is_drawn_over_a_file_of_the_user(tiny_config, tmp_path):
    """By the real command; curves need no checkpoint."""
    workdir, victim = tmp_path / "run", tmp_path / "victim.txt"
    victim.write_text("mine")
    checkpoint.write_config(workdir, tiny_config())
    (workdir / "metrics.jsonl").write_text(
        '{"step": 1, "epoch": 1.0, "split": "test", "loss": 1.0, "accuracy": 0.5}\n'
    )
    command = "-m attn_cnn_jax.analyze --figure=curves --workdir".split()

    def draw() -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, *command, str(workdir)],
            cwd=ROOT,
            env={**os.environ, "XLA_FLAGS": ""},
            capture_output=True,
            text=True,
        )

    drawn = draw()
    assert drawn.returncode == 0, drawn.stderr
    for path in (workdir / "analysis").iterdir():
        path.unlink()
        path.with_name(f"{path.name}.new").symlink_to(victim)
    result = draw()
    assert result.returncode == 2 and result.stderr.count("\n") == 1
    assert f"leads to {victim}, outside of the workdir" in result.stderr
    assert victim.read_text() == "mine"
