"""Several processes as one run: how they join, and how they notice that one is gone.

When a process dies, JAX's runtime aborts the others in C++ without a word on what is
safe. So each process keeps writing a sign of life to the key-value store that process 0
has for JAX, and reads those of the others. Where one stays away, the others say so and
end with the status `RUN_AGAIN`, long before JAX's own heartbeat would notice.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
from jax._src import clusters, distributed  # JAX has no public name for what we need

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models import ModelError

RUN_AGAIN = 75  # EX_TEMPFAIL of sysexits.h
_SIGNS = "attn_cnn_jax/signs/"
_DONE, _FAILED = "done", "failed "  # a process's last sign; a failed one's has a status
_SECONDS_TO_ARRIVE = 300
_SECONDS_TO_LOOK = 5.0  # a workdir on a network that is down may never answer


class Cluster:
    """The processes of a run; a context manager around all that they do together.

    A process without a sign of life for `timeout` seconds counts as gone: this one then
    says so, and what `outcome()` tells of the run, and ends with the status
    `RUN_AGAIN`. When one ends with an error, the others end with its status.
    """

    def __init__(self, timeout: float, outcome: Callable[[], str]) -> None:
        self._timeout = timeout
        self._interval = timeout / 10
        self._outcome = outcome
        self._id = 0
        self._last_sign = ""
        self._leaving = threading.Event()
        self._over = threading.Event()
        self._may_abort = threading.Event()
        self._aborted: float | None = None  # since when a library wants to
        self._signs: dict[int, tuple[str, float]] = {}  # and since when each is there
        self._answered: float | None = None  # when process 0 last did; None: not joined

    def join(
        self, address: str | None, num_processes: int | None, process_id: int | None
    ) -> "Cluster":
        """Join the other processes, before JAX makes its first array.

        JAX finds out what is None: in Slurm, Kubernetes, MPI and on TPU pods. Raises a
        `UserError` where it does not.
        """
        address = address or os.environ.get("JAX_COORDINATOR_ADDRESS")
        try:
            found: Any = clusters.ClusterEnv.auto_detect_unset_distributed_params(
                address, num_processes, process_id, None, None, _SECONDS_TO_ARRIVE
            )
            address, num_processes, process_id, _ = found
            _start(self._watch, address)
            jax.distributed.initialize(
                _relay(address) if address and process_id else address,
                num_processes,
                process_id,
                # JAX's own limits abort the process, so ours have to come first.
                initialization_timeout=2 * _SECONDS_TO_ARRIVE,
                heartbeat_timeout_seconds=int(max(100, 4 * self._timeout)),
            )
        except (RuntimeError, ValueError) as error:
            self._over.set()
            raise UserError(
                f"JAX found no cluster ({error}); give --coordinator_address, "
                "--num_processes and --process_id."
            ) from error
        self._id, now = jax.process_index(), time.monotonic()
        others = set(range(jax.process_count())) - {self._id}
        self._signs = {peer: ("", now) for peer in sorted(others)}
        self._answered = now
        self._talker = _start(self._talk)
        if jax.default_backend() == "cpu":
            self._hold_aborts()
        return self

    def _hold_aborts(self) -> None:
        """Keep a thread that aborts this process waiting until `_watch` knows why.

        When a process is killed Gloo, which joins CPUs, aborts some of the others.
        """

        def hold(unused: int) -> None:
            self._aborted = self._aborted or time.monotonic()
            self._may_abort.wait()

        # A handler of Python's own would run later, in the main thread.
        self._handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(hold)
        ctypes.CDLL(None).signal(int(signal.SIGABRT), self._handler)

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, unused: Any) -> None:
        """Leave: with all the others, or, after telling them so, with an error."""
        if error is None:
            self._leave(_DONE)
            self._wait_until(self._all_are_done)
        elif isinstance(error, UserError | ModelError | OSError):
            self._leave(f"{_FAILED}2")
        else:
            failure = time.monotonic()  # of a collective, say, as a peer is gone
            self._wait_until(lambda: self._all_lived_after(failure))
            self._leave(f"{_FAILED}1")
        self._over.set()
        self._may_abort.set()
        self._talker.join(self._timeout)

    def _wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait for signs of peers; if one never comes, `_watch` ends us."""
        while not ready():
            time.sleep(self._interval / 20)

    def _all_are_done(self) -> bool:
        return all(sign == _DONE for sign, _ in self._signs.values())

    def _all_lived_after(self, failure: float) -> bool:
        """Tell if no peer can be gone for whose loss this process fails.

        The last sign of such a peer may be read after the failure, so later ones count.
        """
        late = failure + 3 * self._interval
        return all(
            sign == _DONE or since > late for sign, since in self._signs.values()
        )

    def _leave(self, sign: str) -> None:
        self._last_sign = sign
        self._leaving.set()
        if sign != _DONE:
            self._outlast_readers()

    def _outlast_readers(self) -> None:
        """Wait until all have read the signs, which end with process 0."""
        time.sleep(self._interval * (0.5 if self._id else 3))

    def _talk(self) -> None:
        """Write this process's signs and read those of the others, until all is over.

        A call may hang for as long as process 0 does not answer.
        """
        client: Any = distributed.global_state.client
        own, count, told = f"{_SIGNS}{self._id}", 0, ""
        while not self._over.is_set() or told != self._last_sign:
            count += 1
            try:
                sign = self._last_sign or str(count)
                client.key_value_set(own, sign, allow_overwrite=True)
                told = sign
                signs = client.key_value_dir_get(_SIGNS)
            except Exception:  # JAX raises many kinds; `_watch` counts the seconds
                signs = []
            now = time.monotonic()
            for key, sign in signs:
                peer = int(key.removeprefix(_SIGNS))
                if peer != self._id and self._signs[peer][0] != sign:
                    self._signs[peer] = (sign, now)
                self._answered = now
            if self._leaving.wait(self._interval):
                time.sleep(self._interval / 20)

    def _watch(self, address: str | None) -> None:
        """End this process when another is gone, which its main thread cannot see."""
        began = before = time.monotonic()
        while not self._over.wait(self._interval):
            now = time.monotonic()
            if (
                now - before > 3 * self._interval
            ):  # it was this process that stood still
                self._answered = self._answered and now
                self._signs = {peer: (s, now) for peer, (s, _) in self._signs.items()}
            before = now
            if self._answered is None:
                if now - began > _SECONDS_TO_ARRIVE:
                    self._end(
                        f"not all processes came within {_SECONDS_TO_ARRIVE} s; "
                        f"process 0 is to be at {address}"
                    )
            elif now - self._answered > self._timeout:
                self._end(
                    "process 0 is gone or cannot be reached (no answer to process "
                    f"{self._id} for {self._timeout:g} s)"
                )
            else:
                self._look(self._answered)
                if self._aborted and self._all_lived_after(self._aborted):
                    self._may_abort.set()

    def _look(self, now: float) -> None:
        gone = []
        for peer, (sign, since) in self._signs.items():
            if sign.startswith(_FAILED):
                # The others may fail alike, and have more to say than this.
                if now - since > self._interval:
                    status = int(sign.removeprefix(_FAILED))
                    self._end(f"process {peer} ended with an error of its own", status)
            elif sign != _DONE and now - since > self._timeout:
                gone.append(str(peer))
        if gone:
            which = "process {} is" if len(gone) == 1 else "processes {} are"
            self._end(
                f"{which.format(' and '.join(gone))} gone (no sign of life for "
                f"{self._timeout:g} s)"
            )

    def _end(self, reason: str, status: int = RUN_AGAIN) -> None:
        """End this process at once, whatever its main thread waits for."""
        told = ["the same command continues from the last save"]

        def look() -> None:
            with contextlib.suppress(Exception):  # its file system may be gone as well
                told.append(self._outcome())

        _start(look).join(_SECONDS_TO_LOOK)
        line = f"error: {reason}; {told[-1]}."
        if sys.stderr.isatty():
            line = "\n" + line  # below a progress bar
        with contextlib.suppress(OSError, ValueError):  # a terminal that is gone
            print(line, file=sys.stderr, flush=True)
        if self._answered is not None:
            self._outlast_readers()
        os._exit(status)


def _start(function: Callable[..., Any], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread


def _relay(address: str) -> str:
    """Return an address on this host that leads to process 0, and outlives it.

    JAX aborts within milliseconds when the connection to process 0 ends. The one to
    here stays, silent, until `Cluster` has said what happened.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    host, _, port = address.rpartition(":")

    async def copy(reader: Any, writer: Any) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(2**16):
                if not writer.transport.is_closing():
                    writer.write(data)
                    with contextlib.suppress(OSError):
                        await writer.drain()

    async def connect(reader: Any, writer: Any) -> None:
        try:
            there = await asyncio.open_connection(host.strip("[]"), int(port))
        except OSError:  # process 0 is not up yet; JAX tries again
            writer.close()
            return
        answers = asyncio.create_task(copy(there[0], writer))
        await copy(reader, there[1])  # until JAX ends it
        answers.cancel()
        there[1].close()
        writer.close()

    async def serve() -> None:
        server = await asyncio.start_server(connect, sock=listener)
        await server.serve_forever()

    _start(lambda: asyncio.run(serve()))
    return f"127.0.0.1:{listener.getsockname()[1]}"
