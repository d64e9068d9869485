"""`analyze --watch` beside a training: it follows to the end, and stops by Ctrl-C."""

import json
import signal
import subprocess
import sys
import time

import processes
import pytest
from viewer_page import description


def watch(workdir, *flags):
    """The process of the command, with its lines as they are written."""
    command = [sys.executable, "-m", "attn_cnn_jax.analyze", f"--workdir={workdir}"]
    return subprocess.Popen(
        [*command, "--watch", "--images=0-1", *flags],
        cwd=processes.ROOT,
        env=processes.as_a_user(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of three epochs, and what a watch that began before its end said."""
    workdir = tmp_path_factory.mktemp("watched") / "run"
    flags = ["--config.snapshot_every_epochs=1", "--config.checkpoint_every_steps=14"]
    training = processes.start(workdir, *flags)
    while not (workdir / "config.json").exists():
        assert training.poll() is None, training.communicate()
        time.sleep(0.1)
    watching = watch(workdir)
    said = watching.communicate(timeout=200)[0]
    of_training = training.communicate(timeout=200)[0]
    assert training.returncode == 0, of_training
    return workdir, watching.returncode, said.splitlines()


def test_the_viewer_is_rewritten_until_the_run_is_complete(trained):
    workdir, status, lines = trained
    assert status == 0 and lines[-1] == "run is complete", lines
    page = (workdir / "analysis/viewer.html").read_text("ascii", "ignore")
    steps = [one["step"] for one in description(page)["checkpoints"]]
    assert steps == [0, 14, 28, 42]
    assert "4 checkpoints up to epoch 3)" in lines[-2]
    assert all("viewer.html (" in line for line in lines[1:-1])


def test_ctrl_c_ends_it_in_order(trained):
    """Of a run that has epochs left, as its config says."""
    workdir, *_ = trained
    path = workdir / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "num_epochs": 9}))
    watching = watch(workdir)
    line = watching.stdout.readline()
    assert "4 checkpoints up to epoch 3)" in line
    watching.send_signal(signal.SIGINT)
    rest = watching.communicate(timeout=60)[0]
    assert watching.returncode == 0
    assert rest == "stopped; the same command watches run again\n"


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--figure=heads"], "--watch is for --figure=viewer; drop the other figures."),
        (["--checkpoint=best"], "--watch shows the newest checkpoint; drop"),
        (["--workdir=s3://bucket/run"], "--watch needs a --workdir on this machine"),
    ],
)
def test_what_cannot_be_watched_is_one_line_and_status_2(tmp_path, flags, message):
    watching = watch(tmp_path, *flags)
    said = watching.communicate(timeout=60)[0]
    assert watching.returncode == 2
    assert len(said.splitlines()) == 1 and message in said
