"""Runs in an object store: killed, on a slow way, and with the store killed."""

import itertools
import json
import pathlib
import random
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from object_store import (
    Server,
    SlowWay,
    complete,
    free_port,
    in_part,
    variables_of,
    wait_until,
)
from processes import FLAGS, ROOT, events, training_steps

from attn_cnn_jax import checkpoint, records

pytest.importorskip("s3fs", reason="s3fs of requirements-dev.txt is not installed")
pytest.importorskip("localbucket", reason="localbucket is not installed")

NUM_STEPS = 28


def start(port: int, *arguments: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env=variables_of(port),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def train(port: int, workdir: str) -> subprocess.Popen:
    flags = (*FLAGS, "--config.num_epochs=2", f"--workdir={workdir}")
    return start(port, "attn_cnn_jax.main", *flags)


def ended(process: subprocess.Popen, status: int = 0) -> str:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == status, output
    return output


def evaluations(workdir: pathlib.Path) -> list[dict]:
    return [line for line in records.read(workdir) if line["split"] == "test"]


def assert_ended_alike(stored: pathlib.Path, whole: pathlib.Path) -> None:
    """What lies in the bucket is what a local run leaves in its folder."""
    a, b = checkpoint.load(stored), checkpoint.load(whole)
    assert a.step == b.step == NUM_STEPS
    jax.tree.map(np.testing.assert_array_equal, a.variables, b.variables)
    assert checkpoint.steps(stored) == checkpoint.steps(whole)
    assert training_steps(stored) == list(range(1, NUM_STEPS + 1))
    assert evaluations(stored) == evaluations(whole) != []


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("store"))
    yield server
    server.kill()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A function that waits for the workdir of a local run, which begins at once."""
    workdir = tmp_path_factory.mktemp("whole")
    process = train(0, str(workdir))

    def wait() -> pathlib.Path:
        if process.stdout is not None and not process.stdout.closed:
            ended(process)
        return workdir

    yield wait
    wait()


def test_a_run_in_a_bucket_through_kills(server, whole):
    """Killed on a slow way; then the store is killed in a save; then read."""
    url, stored = "s3://bucket/runs/killed", server.workdir("killed")
    way = SlowWay(server.port, 0.01)
    process = train(way.port, url)
    wait_until(lambda: complete(stored), process)
    process.kill()
    process.communicate()
    way.close()
    newest = complete(stored)[-1]
    assert 0 < newest < NUM_STEPS
    assert training_steps(stored)[:newest] == list(range(1, newest + 1))
    assert {("train/loss", step) for step in range(1, newest + 1)} <= {*events(stored)}
    assert checkpoint.load(stored, newest).step == newest

    process = train(server.port, url)
    wait_until(lambda: complete(stored)[-1] > newest, process)
    wait_until(lambda: in_part(stored) or process.poll() is not None)
    server.kill()
    time.sleep(1)
    server.start()
    output = ended(process)
    assert f"{url} continues after step {newest}" in output
    assert output.count("cannot be reached") <= 1, output
    assert "attn_cnn_jax_copy" not in output
    assert_ended_alike(stored, whole())
    assert not (stored / "run.lease").exists()

    workdir, figures = f"--workdir={url}", "--figure=curves,heads"
    scores = start(server.port, "attn_cnn_jax.main", "--mode=evaluate", workdir)
    drawing = start(server.port, "attn_cnn_jax.analyze", workdir, figures)
    assert json.loads(ended(scores).splitlines()[0])["workdir"] == url
    assert f"{url}/analysis/heads.csv" in ended(drawing)
    drawn = {path.name for path in (stored / "analysis").iterdir()}
    assert {"curves.png", "curves.pdf", "heads.png", "heads.json"} <= drawn


def test_a_store_that_is_not_there_is_said_in_a_line(server):
    process = train(free_port(), "s3://bucket/runs/nowhere")
    other = train(server.port, "s3://no-bucket/runs/a")
    reading, said = ended(process, 2).splitlines()
    assert reading.startswith("s3://bucket/runs/nowhere: reading ")
    assert said.startswith("error: s3://bucket/runs/nowhere cannot be reached: ")
    assert ended(other, 2).splitlines()[1:] == [
        "error: s3://no-bucket/runs/a: there is no bucket no-bucket."
    ]


@pytest.mark.soak
def test_two_processes_with_disks_of_their_own(server, whole, tmp_path):
    """Both are killed; the same command continues, while no lease is in the way."""
    url, stored = "s3://bucket/runs/two", server.workdir("two")

    disk, mount = tmp_path / "disk", 'mount -t tmpfs none "$0" && exec "$@"'
    own_disk = ["unshare", "--mount", "sh", "-c", mount, str(disk)]
    disk.mkdir()
    if subprocess.run([*own_disk, "true"], capture_output=True).returncode:
        pytest.skip("this user may not mount disks")

    def start_both() -> list[subprocess.Popen]:
        many = ["--multi_host", f"--coordinator_address=127.0.0.1:{free_port()}"]
        flags = [*FLAGS, "--config.num_epochs=2", f"--workdir={url}", *many]
        main = [*own_disk, sys.executable, "-m", "attn_cnn_jax.main", *flags]
        return [
            subprocess.Popen(
                [*main, "--num_processes=2", f"--process_id={number}"],
                cwd=ROOT,
                env=variables_of(server.port) | {"TMPDIR": str(disk)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for number in (0, 1)
        ]

    both = start_both()
    wait_until(lambda: complete(stored), both[0])
    for process in both:
        process.kill()
        process.communicate()
    newest = complete(stored)[-1]
    both = start_both()
    outputs = [process.communicate(timeout=300)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], "\n".join(outputs)
    assert f"{url} continues after step {newest}" in outputs[0]
    assert checkpoint.load(stored).step == NUM_STEPS
    assert training_steps(stored) == list(range(1, NUM_STEPS + 1))
    assert checkpoint.steps(stored) == checkpoint.steps(whole())


@pytest.mark.soak
def test_many_kills_of_runs_and_of_the_store(whole, tmp_path):
    server, dice = Server(tmp_path), random.Random(0)
    url, stored = "s3://bucket/runs/soak", server.workdir("soak")
    way = SlowWay(server.port, 0.005)
    for kill in itertools.count():
        process = train(way.port, url)
        longest = 15.0 if kill < 20 else 600.0
        try:
            process.wait(dice.uniform(0.5, longest))
            if process.returncode == 0:
                ended(process)
                break
        except subprocess.TimeoutExpired:
            if dice.random() < 0.5:
                server.kill()
                time.sleep(dice.uniform(0, 2))
                server.start()
                time.sleep(dice.uniform(0, 5))
            process.kill()
        process.communicate()
        for step in complete(stored):
            assert checkpoint.load(stored, step).step == step
    assert_ended_alike(stored, whole())
    server.kill()
    way.close()


@pytest.mark.soak
def test_a_store_that_stays_away_at_the_end(whole, tmp_path):
    server = Server(tmp_path)
    url, stored = "s3://bucket/runs/away", server.workdir("away")
    process = train(server.port, url)
    wait_until(lambda: complete(stored), process)
    server.kill()
    output = ended(process, 2)
    assert output.count("training goes on, and it is tried again") == 1
    last = output.splitlines()[-1]
    assert last.startswith(f"error: {url} cannot be reached: ")
    kept = last.partition("What the store does not have is in ")[2].split()[0]
    assert checkpoint.load(kept).step == NUM_STEPS
    server.start()
    ended(train(server.port, url))
    assert_ended_alike(stored, whole())
    server.kill()
