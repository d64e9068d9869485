"""Who trains a workdir in a store: an object whose content changes while it does."""

import contextlib
import json
import os
import pathlib
import secrets
import signal
import socket
import threading
import time
from typing import Any

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.remote.store import Store, StoreError

NAME = "run.lease"
SECONDS_BETWEEN_BEATS = 10.0
# A holder whose beats are late by more is gone: a killed one, or one cut off.
_SECONDS_UNCHANGED = 60.0


class Lease:
    """The right to write a workdir in a store, held while a thread renews it.

    There are no locks in a store. A second process reads the object until it changes
    (the first is alive) or long enough has not (it is gone). A holder that was taken
    for dead and comes back finds another name there: `lost` is set, and SIGTERM asks
    the training to end.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._mine = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "machine": _machine(),
            "process_start": _process_start(os.getpid()),
            "since": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "token": secrets.token_hex(8),
        }
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self.lost = False

    def acquire(self) -> None:
        """Take the lease, or raise a `UserError` that names the one who has it."""
        content = self._store.read(NAME)
        if content is not None and not _is_dead_here(_parsed(content)):
            print(
                f"{self._store.url} is marked as trained by {_named(content)}; "
                f"waiting up to {_SECONDS_UNCHANGED:.0f} s to see if it still is.",
                flush=True,
            )
            self._refuse_living(content)
        # Not every store keeps to `anew`; who comes at the same time is seen below.
        written = self._write(0, anew=content is None)
        if not written or not self.is_held():
            raise self._refusal(self._store.read(NAME) or b"")
        self._thread.start()

    def _refuse_living(self, content: bytes) -> None:
        deadline = time.monotonic() + _SECONDS_UNCHANGED
        while time.monotonic() < deadline:
            time.sleep(1)
            now = self._store.read(NAME)
            if now is None:
                return
            if now != content:
                raise self._refusal(now)

    def _refusal(self, content: bytes) -> UserError:
        return UserError(
            f"{self._store.url} is being trained by {_named(content)}; wait for its "
            "end, stop it, or name another --workdir."
        )

    def _write(self, beat: int, *, anew: bool = False) -> bool:
        content = json.dumps({**self._mine, "beat": beat}).encode()
        return self._store.write(NAME, content, anew=anew)

    def _holder(self) -> Any:
        content = self._store.read(NAME)
        return None if content is None else _parsed(content).get("token")

    def _renew(self) -> None:
        beat = 0
        while not self._stop.wait(SECONDS_BETWEEN_BEATS):
            beat += 1
            with contextlib.suppress(StoreError):  # away; it is tried again
                if not self.is_held():
                    os.kill(os.getpid(), signal.SIGTERM)
                    return
                self._write(beat)

    def is_held(self) -> bool:
        """Tell if nobody else has taken the lease, by asking the store."""
        self.lost = self.lost or self._holder() not in (self._mine["token"], None)
        return not self.lost

    def release(self) -> None:
        """Stop renewing and remove the object, if this has it and can reach it."""
        if self._thread.ident is None:
            return
        self._stop.set()
        self._thread.join(timeout=10)
        with contextlib.suppress(StoreError):
            if self._holder() == self._mine["token"]:
                self._store.remove([NAME])


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _named(content: bytes) -> str:
    """Return the holder in words; its text comes from outside."""
    held = _parsed(content)
    host, since = (ascii(str(held.get(k, "?")))[1:-1][:100] for k in ("host", "since"))
    pid = held.get("pid") if type(held.get("pid")) is int else "?"
    return f"process {pid} on {host} since {since}"


def _is_dead_here(held: dict[str, Any]) -> bool:
    """Tell if the holder ran on this very machine and does no more: no need to wait."""
    pid, start = held.get("pid"), held.get("process_start")
    here = held.get("machine") == _machine() and _machine() is not None
    return here and type(pid) is int and _process_start(pid) != start


def _machine() -> str | None:
    """Return what this boot and this container's process ids are known by."""
    try:
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _process_start(pid: int) -> str | None:
    """Return when a process of this machine started, in ticks; None if it is gone."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()[19]
