"""Small trainings as processes of their own, for tests to kill, stop and starve."""

import os
import pathlib
import subprocess
import sys
import time

from attn_cnn_jax import records

ROOT = pathlib.Path(__file__).parent.parent
NUM_STEPS = 42
FLAGS = [
    f"--config={ROOT}/configs/quickstart.py",
    "--config.batch_size=100",
    "--config.eval_every_epochs=1",
    "--config.model.width=16",
    "--config.model.mlp_dim=16",
    "--config.model.num_layers=1",
    "--config.model.patch_size=2",
    "--config.dataset.crop_padding=1",
    "--config.num_epochs=3",
    "--config.schedule.warmup_epochs=1",
    "--config.log_every_steps=1",
    "--config.checkpoint_every_steps=2",
]


def as_a_user() -> dict[str, str]:
    """The environment with XLA's optimisations, and with one device."""
    ours = ("XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS")
    return {name: value for name, value in os.environ.items() if name not in ours}


def start(workdir: pathlib.Path, *flags: str) -> subprocess.Popen:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "attn_cnn_jax.main", *FLAGS, *flags),
            f"--workdir={workdir}",
        ],
        cwd=ROOT,
        env=as_a_user(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(*arguments: object) -> subprocess.CompletedProcess:
    """Run `main` to its end, apart from what it prints to stdout and to stderr."""
    return subprocess.run(
        [sys.executable, "-m", "attn_cnn_jax.main", *map(str, arguments)],
        cwd=ROOT,
        env=as_a_user(),
        capture_output=True,
        text=True,
        timeout=300,
    )


def kill_when(process: subprocess.Popen, ready) -> None:
    """SIGKILL as soon as `ready()`; the run must not have ended before."""
    deadline = time.monotonic() + 300
    while not ready():
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    process.kill()
    process.communicate()


def training_steps(workdir: pathlib.Path) -> list[int]:
    return [line["step"] for line in records.read(workdir) if line["split"] == "train"]


def resumable(workdir: pathlib.Path) -> list[int]:
    folder = workdir / "checkpoints"
    return sorted(int(path.name) for path in folder.glob("*") if path.name.isdigit())


def events(workdir) -> dict[tuple[str, int], float]:
    """(tag, step) -> value of every scalar in TensorBoard's record files."""
    from tensorboardX.proto.event_pb2 import Event

    scalars = {}
    for path in sorted((workdir / "tensorboard").iterdir()):
        content = path.read_bytes()
        while content:
            size = int.from_bytes(content[:8], "little")  # then 4 bytes of checksum
            event = Event.FromString(content[12 : 12 + size])
            content = content[12 + size + 4 :]
            for value in event.summary.value:
                scalars[value.tag, event.step] = value.simple_value
    return scalars
