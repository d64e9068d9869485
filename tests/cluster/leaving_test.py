"""How processes leave that train nothing: late, killed, and aborted by a library."""

import signal
import sys

import pytest

from attn_cnn_jax import cluster

MEMBER = """
import ctypes, os, signal, sys, threading, time
from attn_cnn_jax.cluster import Cluster

number, address, lines = sys.argv[1:]
with Cluster(5, lambda: "all is safe").join(address, 2, int(number)):
    exec(lines)
"""
ABORT = "threading.Thread(target=ctypes.CDLL(None).abort).start(); time.sleep(60)"


@pytest.fixture
def ended(processes):
    """Runs two processes, each with its lines of Python; returns what they print."""

    def run(*members: str, statuses: list[int]) -> list[str]:
        address = f"127.0.0.1:{processes.free_port()}"
        command = [sys.executable, "-c", MEMBER]
        running = [
            processes.start([*command, str(number), address, lines], 1)
            for number, lines in enumerate(members)
        ]
        return [
            processes.end(process, status, seconds=60)
            for process, status in zip(running, statuses, strict=True)
        ]

    return run


@pytest.mark.parametrize("late", [pytest.param(0, marks=pytest.mark.soak), 1])
def test_who_leaves_last_is_not_called_gone(ended, late):
    """All others have said that they are done by then, and wait for its word."""
    lines = ["pass", "pass"]
    lines[late] = "time.sleep(2)"
    ended(*lines, statuses=[0, 0])


def test_a_library_that_aborts_for_a_peer_that_is_gone(ended):
    killed = "os.kill(os.getpid(), signal.SIGKILL)"
    survivor, _ = ended(ABORT, killed, statuses=[cluster.RUN_AGAIN, -signal.SIGKILL])
    told = "error: process 1 is gone (no sign of life for 5 s); all is safe."
    assert told in survivor.splitlines()


@pytest.mark.soak
def test_a_library_that_aborts_for_a_reason_of_its_own(ended):
    """The first is aborted once the other is known to live, which then learns of it."""
    statuses = [cluster.RUN_AGAIN, -signal.SIGABRT]
    survivor, _ = ended("time.sleep(60)", ABORT, statuses=statuses)
    assert "error: process 1 is gone" in survivor
