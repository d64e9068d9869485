"""An object store in a process of its own, and slow ways to it."""

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time


class Server:
    """An S3 server that keeps its buckets as folders, so that it can be killed."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder, self.port = folder, free_port()
        (folder / "bucket").mkdir(parents=True)
        self.start()

    def start(self) -> None:
        arguments = ["-m", "localbucket", f"--port={self.port}", str(self._folder)]
        self._process = start_quietly(*arguments)
        wait_until(lambda: connects(self.port))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def workdir(self, name: str) -> pathlib.Path:
        """The folder of s3://bucket/runs/NAME."""
        return self._folder / "bucket" / "runs" / name


class SlowWay:
    """A port that leads to another, on which every piece of data waits."""

    def __init__(self, port: int, seconds: float) -> None:
        self._target, self._seconds = port, seconds
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with self._socket, contextlib.suppress(OSError):
            while True:
                client = self._socket.accept()[0]
                try:
                    server = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    client.close()
                    continue
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                time.sleep(self._seconds)
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()


def start_quietly(*arguments: str) -> subprocess.Popen:
    nowhere = subprocess.DEVNULL
    return subprocess.Popen(
        [sys.executable, *arguments], stdout=nowhere, stderr=nowhere
    )


def environment(port: int) -> dict[str, str]:
    """The variables that lead to the store at a port; its keys are not checked."""
    return {
        "AWS_ACCESS_KEY_ID": "none",
        "AWS_SECRET_ACCESS_KEY": "none",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def connects(port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    return False


def wait_until(ready, process: subprocess.Popen | None = None) -> None:
    """Wait for something; a process that is to bring it about must not have ended."""
    deadline = time.monotonic() + 300
    while not ready():
        assert time.monotonic() < deadline
        if process is not None and process.poll() is not None:
            raise AssertionError(process.communicate()[0])
        time.sleep(0.01)


def complete(workdir: pathlib.Path) -> list[int]:
    """The steps of checkpoints that have their mark."""
    marks = workdir.glob("checkpoints/*/commit_success.txt")
    return sorted(int(mark.parent.name) for mark in marks)


def in_part(workdir: pathlib.Path) -> bool:
    """True where a checkpoint has no mark, because it is being written."""
    steps = {path.name for path in workdir.glob("checkpoints/*")}
    return bool(steps - {str(step) for step in complete(workdir)})


def is_at(port: int, monkeypatch) -> None:
    """Let this process find the store at a port."""
    for name, value in environment(port).items():
        monkeypatch.setenv(name, value)


def variables_of(port: int) -> dict[str, str]:
    """The environment with one device, and the store at a port."""
    ours = {name: v for name, v in os.environ.items() if name != "XLA_FLAGS"}
    return ours | environment(port)
