"""Two processes of four devices, through the launcher: the result of one of eight."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np

from attn_cnn_jax import checkpoint, records

ROOT = pathlib.Path(__file__).parent.parent
FLAGS = [
    f"--config={ROOT}/configs/quickstart.py",
    "--config.batch_size=100",
    "--config.model.width=16",
    "--config.model.mlp_dim=16",
    "--config.model.patch_size=2",
    "--config.model.num_layers=1",
    "--config.num_epochs=4",
    "--config.schedule.warmup_epochs=1",
    "--config.snapshot_every_epochs=0",
    "--config.log_every_steps=4",
]


def environment(devices: int) -> dict[str, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    user = dict(os.environ)
    del user["JAX_DISABLE_MOST_OPTIMIZATIONS"]
    return user | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "PYTHON": sys.executable,
        "PORT": str(port),
    }


def start(workdir, *, processes: int, extra: tuple[str, ...] = ()) -> subprocess.Popen:
    if processes == 1:
        command = [sys.executable, "-m", "attn_cnn_jax.main"]
    else:
        command = ["bash", str(ROOT / "launch/local.sh"), str(processes)]
    return subprocess.Popen(
        [*command, *FLAGS, f"--workdir={workdir}", *extra],
        env=environment(8 // processes),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen) -> str:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


def assert_close(a, b):
    scale = max(np.abs(a).max(), 1e-30)
    assert np.abs(a - b).max() <= 1e-5 * scale


def test_two_processes_train_like_one_and_stop_together(tmp_path):
    no_dropout = (
        "--config.model.dropout_rate=0",
        "--config.model.attention.dropout_rate=0",
    )
    one = start(tmp_path / "one", processes=1, extra=no_dropout)
    finish(one)
    slowly = (
        *no_dropout,
        "--config.checkpoint_every_steps=2",
        "--config.steps_per_dispatch=2",
    )
    two = start(tmp_path / "two", processes=2, extra=slowly)
    deadline = time.monotonic() + 300
    while not checkpoint.steps(tmp_path / "two"):
        assert time.monotonic() < deadline
        assert two.poll() is None, two.communicate()[0]
        time.sleep(0.1)
    two.send_signal(signal.SIGTERM)
    output, _ = two.communicate(timeout=300)
    assert two.returncode == 128 + signal.SIGTERM, output
    assert output.count("stopped by SIGTERM") == 1  # process 0 speaks for all
    stopped_at = checkpoint.load(tmp_path / "two").step
    assert 0 < stopped_at < 56

    finish(start(tmp_path / "two", processes=2, extra=slowly))
    ended = [checkpoint.load(tmp_path / name) for name in ("one", "two")]
    assert ended[0].step == ended[1].step == 56
    jax.tree.map(assert_close, ended[0].variables, ended[1].variables)
    steps = [
        line["step"]
        for line in records.read(tmp_path / "two")
        if line["split"] == "train"
    ]
    assert steps == list(range(4, 57, 4))
