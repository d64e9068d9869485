"""Workdirs in an object store: gs://BUCKET/RUN and s3://BUCKET/RUN.

A command works in a local copy, and what it adds is written back. For Orbax writes
arrays to gs:// but not to s3://, and an object cannot be appended to: on gs:// a file
that is opened to append begins anew, without a word. So all that is promised of a local
workdir holds of a remote one, up to the newest checkpoint in the store.
"""

import atexit
import contextlib
import os
import pathlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.remote.lease import Lease
from attn_cnn_jax.remote.local_copy import LocalCopy, checkpoints_in
from attn_cnn_jax.remote.store import Store, StoreError, check, matches, scheme
from attn_cnn_jax.remote.writer import Writer

__all__ = [
    "StoreError",
    "check",
    "close",
    "fetch",
    "has_own_copy",
    "in_users_words",
    "is_remote",
    "local",
    "matches",
    "newest_checkpoint",
    "training",
    "write_back",
]

_Result = TypeVar("_Result")

_copies: dict[str, LocalCopy] = {}  # that this process has open, by URL


def is_remote(path: str | os.PathLike) -> bool:
    """Tell if a folder is named by a URL."""
    return bool(scheme(os.fspath(path)))


def local(path: str) -> str:
    """Return the folder on this machine: itself, `~` expanded, or a copy of a remote.

    What is added to a copy is in the store after `write_back`, which every command does
    at its end. Raises a `UserError` where a package is missing, the store cannot be
    reached, or the URL is of another kind.
    """
    if not is_remote(path):
        return os.path.expanduser(path)
    url = path.rstrip("/")
    if url not in _copies:
        _copies[url] = LocalCopy(url)
    return str(_copies[url].path)


def fetch(path: pathlib.Path, part: str = "") -> None:
    """Fill the folder of a checkpoint if it is in a copy; with `part` not wholly."""
    for copy in _copies.values():
        if path.is_relative_to(copy.path):
            copy.fetch(path, part)


def has_own_copy(path: pathlib.Path) -> bool:
    """Tell if each process has a folder of its own for the same workdir."""
    return any(
        path.is_relative_to(copy.path) and not copy.is_shared
        for copy in _copies.values()
    )


def close() -> None:
    """Remove all copies."""
    for url in list(_copies):
        _copies.pop(url).close()


def newest_checkpoint(url: str) -> int | None:
    """Return the step of the newest checkpoint that is complete in the store."""
    complete = checkpoints_in(Store(url).sizes())
    steps = [int(step) for kind, step in complete if kind == "checkpoints"]
    return max(steps, default=None)


def write_back() -> None:
    """Write to their stores what was added to copies."""
    for copy in _copies.values():
        if not copy.training:  # which has a writer of its own
            copy.push()


def in_users_words(text: str) -> str:
    """Return a text with URLs in place of the folders of copies that do not last."""
    for url, copy in _copies.items():
        if not copy.is_kept:
            text = text.replace(str(copy.path), url)
    return text


atexit.register(close)


@contextlib.contextmanager
def training(workdir: str) -> Iterator[str]:
    """Give the folder to train in; what it gains is written to a remote while it does.

    Of several processes the first writes. Leaving waits until all is written; raises a
    `UserError` where that fails or where another process has the run.
    """
    if not is_remote(workdir):
        yield os.path.expanduser(workdir)
        return
    url = workdir.rstrip("/")
    with contextlib.ExitStack() as stack:
        lease = Lease(Store(url))
        stack.callback(lease.release)
        copy = _copies[url] = _copy_to_train_in(url, lease)
        if jax.process_index() != 0:
            yield str(copy.path)
            return
        writer = Writer(copy, lease)
        try:
            yield str(copy.path)
        except UserError:  # it says why the training ended
            with contextlib.suppress(UserError):
                writer.finish()
            raise
        except Exception:  # a signal, say: not to be called saved if it is not
            _finish(writer, copy)
            raise
        _finish(writer, copy)


def _copy_to_train_in(url: str, lease: Lease) -> LocalCopy:
    """Return a copy for process 0, which takes the lease, or a copy of the same path.

    Orbax wants one path in all processes, be it of one disk or of several.
    """
    first = jax.process_index() == 0

    def open_first() -> LocalCopy | None:
        if first:
            lease.acquire()
        return LocalCopy(url, training=True) if first else None

    def open_with(token: str) -> LocalCopy:
        copy = LocalCopy(url, training=True, token=token)
        if not copy.is_shared:
            (copy.path / "checkpoints").mkdir(exist_ok=True)  # which Orbax looks for
        return copy

    copy = _in_all_processes(open_first, url)
    if jax.process_count() == 1:
        assert copy is not None
        return copy
    sent = np.frombuffer((copy.token if copy else "-" * 16).encode(), np.uint8)
    received = np.asarray(multihost_utils.broadcast_one_to_all(sent), np.uint8)
    token = received.tobytes().decode()
    return _in_all_processes(lambda: copy or open_with(token), url)


def _in_all_processes(work: Callable[[], _Result], url: str) -> _Result:
    """Return `work()` once all processes have ended theirs, which may take minutes.

    Each second they tell each other how far they are, for computations of all devices
    do not wait for long. Raises a `UserError` if that of any process fails.
    """
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(work)
        while True:
            wait([future], timeout=1)
            failed = future.done() and future.exception() is not None
            states = [np.asarray([future.done(), failed])]
            if jax.process_count() > 1:
                states = multihost_utils.process_allgather(states[0])
            all_done, any_failed = np.all(states, 0)[0], np.any(states, 0)[1]
            if all_done or any_failed:
                break
    if any_failed and not failed:
        raise UserError(f"another process has no access to {url}; see its message.")
    return future.result()


def _finish(writer: Writer, copy: LocalCopy) -> None:
    try:
        writer.finish()
    except UserError as error:
        copy.keep()
        raise UserError(
            f"{error} What the store does not have is in {copy.path} "
            "on this machine; the same command continues from the newest checkpoint "
            "in the store."
        ) from error
