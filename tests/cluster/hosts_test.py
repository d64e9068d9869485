"""Four processes on hosts of their own: network namespaces with names and a switch.

One is cut off, killed or stopped for a while, or gets SIGTERM; what four have saved,
two and one continue. It needs root, Linux and `ip`.
"""

import os
import pathlib
import shutil
import signal
import subprocess
import time

import pytest

from attn_cnn_jax import checkpoint, cluster

pytestmark = pytest.mark.soak
AS_HOST = 'hostname "$1"; mount --bind "$2" /etc/hosts; shift 2; exec "$@"'


class Hosts:
    """Four namespaces whose cables end in the bridge of a fifth."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._names = folder / "hosts"
        self._names.write_text("127.0.0.1 localhost\n")
        self._prefix = f"acj{os.getpid()}_"

    def build(self) -> None:
        self._switch = self._make("switch")
        self._ip(self._switch, "link add bridge type bridge")
        self._ip(self._switch, "link set bridge up")
        for host in range(4):
            here = self._make(host)
            peer = f"peer port{host} netns {self._switch}"
            self._ip(here, f"link add eth0 type veth {peer}")
            self._ip(self._switch, f"link set port{host} master bridge up")
            self._ip(here, f"addr add 10.77.0.{host + 1}/24 dev eth0")
            self._ip(here, "link set eth0 up")
            with self._names.open("a") as file:
                file.write(f"10.77.0.{host + 1} host{host}\n")

    def _make(self, name: str | int) -> str:
        space = f"{self._prefix}{name}"
        subprocess.run(
            ["ip", "netns", "add", space], check=True, capture_output=True, text=True
        )
        self._ip(space, "link set lo up")
        return space

    @staticmethod
    def _ip(space: str, arguments: str) -> None:
        subprocess.run(
            ["ip", "-n", space, *arguments.split()],
            check=True,
            capture_output=True,
            text=True,
        )

    def remove(self) -> None:
        for name in ("switch", *range(4)):
            space = f"{self._prefix}{name}"
            subprocess.run(["ip", "netns", "del", space], capture_output=True)

    def cable(self, host: int, state: str) -> None:
        self._ip(self._switch, f"link set port{host} {state}")

    def train(self, processes, workdir: pathlib.Path, *extra: str, hosts: int = 4):
        """Start a training on the first hosts, and return their processes."""
        return [
            processes.start(
                [
                    *("nsenter", f"--net=/run/netns/{self._prefix}{host}"),
                    *("unshare", "--uts", "--mount", "sh", "-c", AS_HOST),
                    *("sh", f"host{host}", str(self._names)),
                    *(processes.python, "-m", "attn_cnn_jax.main", "--multi_host"),
                    "--coordinator_address=host0:12355",
                    f"--num_processes={hosts}",
                    f"--process_id={host}",
                    *processes.flags,
                    f"--workdir={workdir}",
                    *extra,
                ],
                devices=8 // hosts,
            )
            for host in range(hosts)
        ]


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    hosts = Hosts(tmp_path_factory.mktemp("network"))
    try:
        hosts.build()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no namespaces here: {getattr(error, 'stderr', None) or error}")
    else:
        yield hosts
    finally:
        hosts.remove()


@pytest.fixture
def hosts(network):
    yield network
    for host in range(4):
        network.cable(host, "up")


def end_within_a_minute(processes, survivors: dict, workdir: pathlib.Path) -> None:
    """Each says who is gone (the value) and what is safe."""
    deadline = time.monotonic() + 60
    for process, gone in survivors.items():
        seconds = deadline - time.monotonic()
        line = processes.error(processes.end(process, cluster.RUN_AGAIN, seconds))
        safe = checkpoint.last_resumable(workdir)
        assert line.startswith(f"error: {gone}")
        assert f"; step {safe} is safe in {workdir}, the same command" in line


@pytest.mark.parametrize("victim", [2, 0])
def test_a_process_is_killed(processes, hosts, tmp_path, victim):
    running = hosts.train(processes, tmp_path, *processes.endless)
    saved = processes.until_saved(tmp_path, *running)
    running.pop(victim).kill()
    gone = f"process {victim} is gone"
    end_within_a_minute(processes, dict.fromkeys(running, gone), tmp_path)
    again = hosts.train(processes, tmp_path, *processes.endless)
    processes.until_saved(tmp_path, *again, beyond=saved)


def test_a_host_is_cut_off(processes, hosts, tmp_path):
    """A short cut heals; a long one is noticed on both of its sides."""
    running = hosts.train(processes, tmp_path, *processes.endless)
    processes.until_saved(tmp_path, *running)
    hosts.cable(3, "down")
    time.sleep(8)
    hosts.cable(3, "up")
    saved = checkpoint.last_resumable(tmp_path)
    saved = processes.until_saved(tmp_path, *running, beyond=saved)
    hosts.cable(3, "down")
    survivors = dict.fromkeys(running[:3], "process 3 is gone")
    survivors[running[3]] = "process 0 is gone or cannot be reached"
    end_within_a_minute(processes, survivors, tmp_path)
    hosts.cable(3, "up")
    again = hosts.train(processes, tmp_path, *processes.endless)
    processes.until_saved(tmp_path, *again, beyond=saved)


def test_a_slow_process_is_waited_for(processes, hosts, tmp_path):
    running = hosts.train(processes, tmp_path, *processes.endless)
    processes.until_saved(tmp_path, *running)
    for slow in (1, 0):
        running[slow].send_signal(signal.SIGSTOP)
        time.sleep(15)
        running[slow].send_signal(signal.SIGCONT)
        saved = checkpoint.last_resumable(tmp_path)
        processes.until_saved(tmp_path, *running, beyond=saved)


def test_all_stop_after_the_same_step_and_fewer_continue(
    processes, hosts, alone, tmp_path
):
    """SIGTERM to one of four; then two and one end where one alone has."""
    four = tmp_path / "four"
    running = hosts.train(processes, four)
    processes.until_saved(four, *running)
    running[2].terminate()
    outputs = [processes.end(p, 128 + signal.SIGTERM) for p in running]
    stopped_at = checkpoint.last_resumable(four)
    assert 0 < stopped_at < processes.steps
    assert f"stopped by SIGTERM after step {stopped_at}, saved" in outputs[0]
    for fewer in (1, 2):
        workdir = tmp_path / f"continued_by_{fewer}"
        shutil.copytree(four, workdir)
        running = hosts.train(processes, workdir, hosts=fewer)
        outputs = [processes.end(process) for process in running]
        assert f"continues after step {stopped_at}" in outputs[0]
        processes.assert_alike(workdir, alone)
