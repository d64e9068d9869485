"""A real training under what happens to real ones: two at once, no room, a hang-up."""

import contextlib
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
from processes import (
    FLAGS,
    NUM_STEPS,
    ROOT,
    as_a_user,
    events,
    kill_when,
    resumable,
    run,
    start,
    training_steps,
)

from attn_cnn_jax import checkpoint, records

LONG = "--config.num_epochs=200"  # longer than any test waits


def wait_for(ready, process) -> None:
    deadline = time.monotonic() + 300
    while not ready():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)


@contextlib.contextmanager
def on_a_terminal(workdir):
    """A training in a terminal of its own; yields the process and `hang_up()`."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", IN_SESSION, *FLAGS, LONG, f"--workdir={workdir}"],
        cwd=ROOT,
        env=as_a_user(),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)

    def read() -> None:  # else it would wait for its output to be taken
        with contextlib.suppress(OSError):
            while os.read(master, 4096):
                pass

    reader = threading.Thread(target=read, daemon=True)
    reader.start()

    def hang_up() -> None:
        os.close(master)

    try:
        yield process, hang_up
    finally:
        process.kill()
        process.wait()


# Takes the terminal as its own, as a shell does, and becomes the training.
IN_SESSION = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "attn_cnn_jax.main", *sys.argv[1:]])
"""


def test_one_workdir_has_one_writer_and_many_readers_and_survives_a_hang_up(tmp_path):
    workdir = tmp_path / "run"
    command = (*FLAGS, LONG, f"--workdir={workdir}")
    with on_a_terminal(workdir) as (process, hang_up):
        wait_for(lambda: len(resumable(workdir)) >= 2, process)
        second = run(*command)
        assert second.returncode == 2 and "saved" not in second.stdout
        (line,) = second.stderr.splitlines()
        assert f"is being written by process {process.pid} on " in line
        scored = run("--mode=evaluate", f"--workdir={workdir}")
        assert scored.returncode == 0 and scored.stderr == ""
        last = 0
        for _ in range(40):  # saves and removals go on meanwhile
            best = checkpoint.load(workdir, "best").step
            found = checkpoint.load(workdir).step
            assert best <= found >= last
            last = found
        steps = training_steps(workdir)
        assert steps == list(range(1, len(steps) + 1)) and len(steps) >= last > 2
        assert process.poll() is None
        hang_up()
        assert process.wait(60) == 128 + signal.SIGHUP
    newest = resumable(workdir)[-1]
    assert newest >= last
    assert records.read(workdir)[-1]["step"] == newest  # saved after its last step

    process = start(workdir, LONG)
    kill_when(process, lambda: resumable(workdir)[-1] >= newest + 4)
    killed_at = resumable(workdir)[-1]
    scalars = events(workdir)
    lost = [n for n in range(1, killed_at + 1) if ("train/loss", n) not in scalars]
    assert lost == []  # of TensorBoard's, up to the checkpoint

    shutil.move(workdir / "checkpoints", tmp_path / "aside")
    lost = run(*command)
    assert lost.returncode == 2
    assert "holds metrics.jsonl and snapshots of a run, but its checkpoints" in (
        lost.stderr
    )
    assert len(records.read(workdir)) >= killed_at  # nothing was dropped
    shutil.move(tmp_path / "aside", workdir / "checkpoints")
    refused = run(*command, "--restart")
    assert refused.returncode == 2 and "has checkpoints. Leave it out" in refused.stderr
    shutil.rmtree(workdir / "checkpoints")
    short = [flag for flag in command if flag != LONG]
    anew = run(*short, "--restart")
    assert anew.returncode == 0 and anew.stderr == ""
    assert "begins of" in anew.stdout
    assert training_steps(workdir) == list(range(1, NUM_STEPS + 1))


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of its own of 8 MB: `fill()` and `make_room()`."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount).returncode:
        pytest.skip("only root may mount a disk")
    ballast = folder / "ballast"

    def fill() -> None:
        with contextlib.suppress(OSError):  # to the last byte
            ballast.write_bytes(bytes(9_000_000))

    yield folder, fill, ballast.unlink
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_is_said_and_costs_nothing_once_there_is_room(small_disk):
    folder, fill, make_room = small_disk
    workdir = folder / "run"
    short = "--config.num_epochs=12"  # 168 steps
    full = start(workdir, short)
    wait_for(lambda: len(resumable(workdir)) >= 2, full)
    fill()
    output, _ = full.communicate(timeout=300)
    assert full.returncode == 2 and "complete:" not in output
    safe = resumable(workdir)[-1]
    told = [line for line in output.splitlines() if line.startswith(("warn", "err"))]
    assert told[-1].startswith("error: the state after step 168 could not be saved (")
    assert f"step {safe} is safe" in told[-1] and 0 < safe < 168
    assert len(told) < 9 and "Traceback" not in output
    assert len(output.splitlines()) < 30

    make_room()
    resumed = start(workdir, short, "--config.log_every_steps=2")
    wait_for(lambda: resumable(workdir)[-1] > safe, resumed)
    fill()
    resumed.send_signal(signal.SIGTERM)
    output, _ = resumed.communicate(timeout=300)
    assert resumed.returncode == 2 and ", saved" not in output
    assert "Make room, and the same command continues" in output.splitlines()[-1]

    make_room()
    ended = run(*FLAGS, short, f"--workdir={workdir}")
    assert ended.returncode == 0 and ended.stderr == ""
    steps = training_steps(workdir)
    assert steps[:safe] == list(range(1, safe + 1)) and steps[-1] == 168
    assert checkpoint.load(workdir).step == 168


def test_a_disk_that_is_too_small_is_refused_at_the_start(small_disk):
    folder, _, _ = small_disk
    keep = "--config.checkpoints_to_keep=30"
    refused = run(*FLAGS, keep, f"--workdir={folder / 'run'}")
    assert refused.returncode == 2
    assert re.search(r"will take up to 0\.01\d? GB, of 0\.008", refused.stderr)
    assert "config.checkpoints_to_keep lower" in refused.stderr
