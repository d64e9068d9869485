"""Every write, sync, rename and removal of a save fails once; nothing is lost by it.

The calls are those of the C library, which `failing_disk.c` replaces in a process of
its own: this file, run as a program.
"""

import ctypes
import errno
import os
import pathlib
import random
import shutil
import subprocess
import sys
import warnings

import pytest

CALLS = 180  # of the save below there are a few more or less, as threads run


def drive(library: str, root: pathlib.Path, at: list[int]) -> None:
    """Save 1, save 2 with failures from the n-th call on, and 3; print the outcomes."""
    import jax
    import numpy as np
    from absl import logging
    from orbax.checkpoint.experimental.v1._src.synchronization import multihost

    from attn_cnn_jax import checkpoint, config

    multihost._DEFAULT_BARRIER_TIMEOUT = 1  # seconds that Orbax waits for a lost folder
    fail_at = ctypes.CDLL(library).fail_at
    outcomes = {1: 0, 2: 0}

    def arrays(step: int):
        rng = np.random.default_rng(step)
        params = {"kernel": rng.normal(size=(64, 64)).astype(np.float32)}
        trace = {"trace": rng.normal(size=(300,)).astype(np.float32)}
        return {"params": params}, {"step": np.asarray(step, np.int32), "opt": trace}

    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    like = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device),
        arrays(0),
    )

    def opened(workdir):
        return checkpoint.Checkpoints(workdir, config.base_config(), keep=2)

    def restored(workdir) -> int:
        with opened(workdir) as checkpoints:
            found = checkpoints.restore(like)
        variables, training = arrays(found.step)
        jax.tree.map(np.testing.assert_array_equal, found.variables, variables)
        jax.tree.map(np.testing.assert_array_equal, found.training, training)
        assert checkpoint.load(workdir).step == found.step
        return found.step

    logging.set_verbosity(logging.FATAL)
    warnings.simplefilter("ignore")
    for n in at:
        workdir = root / str(n)
        with opened(workdir) as checkpoints:
            checkpoints.lock()
            checkpoints.save(1, *arrays(1), {}, 0.5)
            checkpoints.wait()
            fail_at(n, random.Random(n).choice([errno.ENOSPC, errno.EIO]))
            checkpoints.save(2, *arrays(2), {}, 0.25)
            checkpoints.wait()
            calls = fail_at(0, 0)
        outcomes[restored(workdir)] += 1
        with opened(workdir) as checkpoints:
            checkpoints.save(3, *arrays(3), {}, 0.5)
        assert restored(workdir) == 3
        shutil.rmtree(workdir)
    print(f"{calls} calls, {outcomes[1]} saves failed, {outcomes[2]} did not")


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> str:
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs a C compiler on Linux")
    path = tmp_path_factory.mktemp("library") / "failing_disk.so"
    source = pathlib.Path(__file__).with_name("failing_disk.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", path, source], check=True)
    return str(path)


def run_with(library: str, folder: pathlib.Path, *command: object, **environment: str):
    names = ("XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS")
    user = {name: value for name, value in os.environ.items() if name not in names}
    return subprocess.run(
        [sys.executable, *map(str, command)],
        env={**user, "LD_PRELOAD": library, "FAILING_DISK": str(folder), **environment},
        cwd=pathlib.Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=1_500,
    )


def save_with_failures(library: str, folder: pathlib.Path, at) -> str:
    ended = run_with(library, folder, __file__, library, folder, *at)
    assert ended.returncode == 0, ended.stderr[-3_000:]
    return ended.stdout


def test_a_disk_that_fails_in_the_midst_of_a_save_costs_that_save(library, tmp_path):
    at = (1, 6, 9, 30, 61, 93, 100_000)
    told = save_with_failures(library, tmp_path, at)
    assert told.endswith(", 6 saves failed, 1 did not\n"), told


@pytest.mark.soak
def test_a_disk_that_fails_at_any_call_of_a_save_costs_that_save(library, tmp_path):
    print(save_with_failures(library, tmp_path, range(1, CALLS + 20)))


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    drive(sys.argv[1], pathlib.Path(sys.argv[2]), list(map(int, sys.argv[3:])))
    sys.stdout.flush()
    os._exit(0)  # threads of Orbax wait for minutes for what failed
