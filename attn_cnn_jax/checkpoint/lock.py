"""One process at a time writes to a workdir, and it is known whether one ever saved."""

import fcntl
import json
import os
import pathlib
import socket
import time
import warnings
from typing import Any

from attn_cnn_jax.errors import UserError, one_line

_OF_A_RUN = ("metrics.jsonl", "snapshots", "checkpoints")


def refuse_links(workdir: pathlib.Path) -> None:
    """Raise a `UserError` at a link that leads out of a workdir that is to be written.

    It may have come with a run of somebody else, to have another file written over or
    another folder emptied. The workdir itself may be a link.
    """
    inside = os.path.realpath(workdir)
    for pattern in ("*", "*/*"):  # a folder before what is in it
        for path in workdir.glob(pattern):
            leads = pathlib.Path(os.path.realpath(path))
            if path.is_symlink() and not leads.is_relative_to(inside):
                raise UserError(
                    f"{path} leads to {leads}, outside of the workdir; remove the link."
                )


class WorkdirLock:
    """Holds `run.lock` of a workdir until it is closed; also a context manager.

    The lock is the kernel's (`flock`), so that it ends with its process, however that
    ends. On NFS it lies at the server, which sees it from all machines; of a machine
    that died it ends with the lease (90 seconds by default). The file says who holds
    it (`host`, `pid`, `since`) and the step of the last complete save (`saved`).

    Raises a `UserError` that names the holder where there is one.
    """

    def __init__(self, workdir: pathlib.Path) -> None:
        path = workdir / "run.lock"
        workdir.mkdir(parents=True, exist_ok=True)
        refuse_links(workdir)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _holder(self._read())
            os.close(self._file)
            raise UserError(
                f"{workdir} is being written by {holder}: wait until that has ended, "
                "stop it, or name another --workdir."
            ) from error
        except OSError as error:
            warnings.warn(
                f"{path} cannot be locked ({error}); see to it that no other process "
                "trains there.",
                stacklevel=2,
            )
        self._content = self._read()
        is_new = not self._content and not os.fstat(self._file).st_size
        self._content.update(
            host=socket.gethostname(),
            pid=os.getpid(),
            since=time.strftime("%Y-%m-%d %H:%M:%S %z"),
        )
        if is_new and not any((workdir / name).exists() for name in _OF_A_RUN):
            self._content["saved"] = None
        self._write()

    def __enter__(self) -> "WorkdirLock":
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    @property
    def nothing_saved(self) -> bool:
        """Tell whether no process ever completed a save here, as far as is known."""
        return self._content.get("saved", 0) is None

    def note_save(self, step: int) -> None:
        """Note that a checkpoint is complete."""
        self._content["saved"] = step
        self._write()

    def close(self) -> None:
        """Let others write."""
        os.close(self._file)

    def _read(self) -> dict[str, Any]:
        try:
            content = json.loads(os.pread(self._file, 10_000, 0))
        except (OSError, ValueError, RecursionError):
            return {}
        return content if isinstance(content, dict) else {}

    def _write(self) -> None:
        text = json.dumps(self._content).encode() + b"\n"
        try:
            os.pwrite(self._file, text, 0)
            os.ftruncate(self._file, len(text))
        except OSError as error:  # the lock holds without
            warnings.warn(f"run.lock cannot be written: {error}", stacklevel=3)


def _holder(content: dict[str, Any]) -> str:
    """Return the holder in words, from a file that anybody may have written."""
    pid, host, since = (
        one_line(content.get(name, "?"), 60) for name in ("pid", "host", "since")
    )
    return f"process {pid} on {host} since {since}"
