"""The copy of a workdir in an object store, and the lease of who trains there."""

import itertools
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time

import numpy as np
import pytest
from object_store import (
    Server,
    complete,
    connects,
    free_port,
    in_part,
    is_at,
    start_quietly,
    wait_until,
)

from attn_cnn_jax import checkpoint, remote
from attn_cnn_jax import config as config_lib
from attn_cnn_jax.checkpoint import folder
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.remote import lease as lease_lib
from attn_cnn_jax.remote import store as store_lib
from attn_cnn_jax.remote.lease import Lease
from attn_cnn_jax.remote.local_copy import LocalCopy
from attn_cnn_jax.remote.store import Store, StoreError

pytest.importorskip("s3fs", reason="requirements-dev.txt has s3fs")
pytest.importorskip("localbucket", reason="requirements-dev.txt has localbucket")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("store"))
    yield server
    server.kill()


@pytest.fixture
def bucket(server, monkeypatch):
    """The server, for this process."""
    is_at(server.port, monkeypatch)
    store_lib._system.cache_clear()
    yield server
    remote.close()
    store_lib._system.cache_clear()


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("ftp://host/run", "begins with s3:// or gs://"),
        ("s3://bucket", "name a bucket and a folder"),
        ("s3://bucket/../run", "name a bucket and a folder"),
        ("s3://bucket//run", "name a bucket and a folder"),
    ],
)
def test_a_url_that_names_no_folder_is_refused(path, complaint):
    with pytest.raises(UserError, match=complaint):
        remote.local(path)


@pytest.mark.parametrize(("kind", "package"), store_lib.PACKAGES.items())
def test_a_package_that_is_missing_is_named(kind, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=f"pip install {package}"):
        remote.local(f"{kind}://bucket/runs/without")


def test_keys_that_lead_out_of_the_folder_are_left_out(bucket):
    store = Store("s3://bucket/runs/hostile")
    store.write("config.json", b"{}")
    listed = {
        f"bucket/runs/hostile/{name}": {"size": 2}
        for name in ("config.json", "../../up", "/etc/passwd", "a//b", "x/", "./c")
    }
    store._system = type("System", (), {"find": lambda *_, **__: listed})()
    assert store.sizes() == {"config.json": 2}


class FailingStore(Store):
    """A store that goes away at the n-th change, in the middle of an upload."""

    def __init__(self, url: str, changes: float) -> None:
        super().__init__(url)
        self._left = changes

    def _change(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise StoreError("away")

    def write(self, name, content, *, anew=False):
        self._change()
        return super().write(name, content, anew=anew)

    def upload(self, files):
        for name, path in files.items():
            self._change()
            super().upload({name: path})

    def remove(self, names):
        for name in names:
            self._change()
            super().remove([name])


def check_push_that_fails(
    server: Server, saved: pathlib.Path, changes: int
) -> tuple[bool, int]:
    """Let checkpoints 3 and 4 take the places of 1 and 2, up to the n-th change.

    Returns whether it failed, and the newest checkpoint that was whole then.
    """
    url = f"s3://bucket/runs/failing_{changes}"
    copy = LocalCopy(url, training=True)
    take(saved, copy, 1, 2)
    copy.push()
    copy.store = FailingStore(url, changes)
    take(saved, copy, 3, 4)
    for step in ("1", "2"):
        shutil.rmtree(copy.path / "checkpoints" / step)
    failed = False
    try:
        copy.push()
    except StoreError:
        failed = True
    after = LocalCopy(url, training=True)  # as one that is started again
    found = checkpoint.load(after.path)
    assert found.step == found.variables["params"]["step"][0] >= 2
    lines = (after.path / "metrics.jsonl").read_text().split()
    assert len(lines) >= found.step
    stored = server.workdir(f"failing_{changes}")
    assert complete(stored) and not in_part(stored)
    copy.store = Store(url)  # it is back
    copy.push()
    assert complete(stored) == [3, 4] and not in_part(stored)
    copy.close()
    after.close()
    return failed, found.step


def take(saved: pathlib.Path, copy: LocalCopy, *steps: int) -> None:
    with (copy.path / "metrics.jsonl").open("a") as file:
        for step in steps:
            file.write(f"{step}\n")
            name = f"checkpoints/{step}"
            shutil.copytree(saved / name, copy.path / name)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> pathlib.Path:
    """A folder with the checkpoints 1 to 4 of a run."""
    workdir, config = tmp_path_factory.mktemp("saved"), config_lib.base_config()
    checkpoint.write_config(workdir, config)
    for step in range(1, 5):
        variables = {"params": {"step": np.full(3, step, np.float32)}}
        path = workdir / "checkpoints" / str(step)
        folder.save_variables(path, config, step, variables)
    return workdir


def test_a_push_that_fails_leaves_whole_checkpoints(bucket, saved):
    found = [check_push_that_fails(bucket, saved, n) for n in (0, 1, 9, 14, 26, 99)]
    assert found == [(True, 2)] * 2 + [(True, 2), (True, 3), (True, 4), (False, 4)]


@pytest.mark.soak
def test_a_push_that_fails_at_any_change(bucket, saved):
    for changes in itertools.count():
        if not check_push_that_fails(bucket, saved, changes)[0]:
            break
    assert changes > 30


def test_reading_fetches_the_checkpoint_that_is_asked_for(bucket, saved):
    url = "s3://bucket/runs/lazy"
    copy = LocalCopy(url, training=True)
    take(saved, copy, 1, 2)
    copy.push()
    copy.close()
    local = pathlib.Path(remote.local(url))
    assert checkpoint.steps(local) == [1, 2]
    assert checkpoint.load(local).step == checkpoint.load(url).step == 2
    assert not list((local / "checkpoints/1").iterdir())
    assert remote.local(url + "/") == str(local)
    assert [remote.local(found) for found in remote.matches("s3://bucket/runs/laz*")]
    remote.write_back()
    assert complete(bucket.workdir("lazy")) == [1, 2]


def test_a_lease_is_held_by_one(bucket, monkeypatch, capsys):
    monkeypatch.setattr(lease_lib, "SECONDS_BETWEEN_BEATS", 0.2)
    monkeypatch.setattr(lease_lib, "_SECONDS_UNCHANGED", 3.0)
    store = Store("s3://bucket/runs/leased")
    first, second = Lease(store), Lease(store)
    first.acquire()
    with pytest.raises(UserError, match=f"is being trained by process {os.getpid()}"):
        second.acquire()
    assert first.is_held()
    first.release()
    second.acquire()
    second.release()
    assert store.read(lease_lib.NAME) is None

    # One that was killed, on this machine and on another.
    begin = time.monotonic()
    dead = {**first._mine, "process_start": "1"}
    store.write(lease_lib.NAME, json.dumps(dead).encode())
    first = Lease(store)
    first.acquire()
    assert time.monotonic() - begin < 3.0 and first.is_held()
    first.release()
    store.write(lease_lib.NAME, json.dumps({**dead, "machine": "another"}).encode())
    second = Lease(store)
    second.acquire()
    assert time.monotonic() - begin > 3.0
    assert "waiting up to 3 s" in capsys.readouterr().out

    # It is taken from one that could not be heard of: who then knows.
    monkeypatch.setattr(lease_lib.os, "kill", lambda *_: None)
    store.write(lease_lib.NAME, json.dumps({**dead, "token": "other"}).encode())
    assert not second.is_held()
    second.release()
    assert store.read(lease_lib.NAME) is not None


def test_a_process_on_the_same_disk_shares_the_copy(bucket, saved):
    url = "s3://bucket/runs/shared"
    first = LocalCopy(url, training=True)
    take(saved, first, 1)
    peer = LocalCopy(url, training=True, token=first.token)
    assert peer.is_shared and peer.path == first.path
    peer.close()
    assert checkpoint.steps(first.path) == [1]
    first.close()
    assert not first.path.exists()


def test_what_killed_processes_left_is_removed(bucket, saved, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    url = "s3://bucket/runs/left"
    killed, alive = LocalCopy(url), LocalCopy(url)
    os.close(killed._lock)  # as the kernel does
    kept = LocalCopy(url)
    kept.keep()
    kept.close()
    last = LocalCopy(url)
    assert not killed.path.exists()
    assert alive.path.exists() and kept.path.exists()
    alive.close()
    last.close()


def test_google_cloud_storage(saved, monkeypatch, tmp_path):
    """The same through gcsfs, where it and an emulator are installed."""
    pytest.importorskip("gcsfs", reason="gcsfs is not installed")
    pytest.importorskip("gcp_storage_emulator", reason="no emulator is installed")
    port = free_port()
    start = f"-m gcp_storage_emulator start --host=127.0.0.1 --port={port} --in-memory"
    server = start_quietly(*start.split(), "--default-bucket=bucket")
    try:
        wait_until(lambda: connects(port))
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        url = "gs://bucket/runs/a"
        lease = Lease(Store(url))
        lease.acquire()
        copy = LocalCopy(url, training=True)
        take(saved, copy, 1, 2)
        copy.push()
        shutil.rmtree(copy.path / "checkpoints/1")
        take(saved, copy, 3)
        copy.push()
        lease.release()
        after = LocalCopy(url, training=True)
        assert checkpoint.steps(after.path) == [2, 3]
        assert checkpoint.load(after.path).step == 3
        assert (after.path / "metrics.jsonl").read_text() == "1\n2\n3\n"
        assert Store(url).read("run.lease") is None
        assert remote.matches("gs://bucket/runs/*") == [url]
        with pytest.raises(StoreError, match="there is no bucket no-bucket"):
            LocalCopy("gs://no-bucket/runs/a")
        copy.close()
        after.close()
    finally:
        server.kill()
        server.wait()
