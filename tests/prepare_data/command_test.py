"""The command as a user types it."""

import os
import pathlib
import pickle
import signal
import subprocess
import sys

import pytest
import tensorflow_datasets as tfds

from attn_cnn_jax.prepare_data import verify

ROOT = pathlib.Path(__file__).parents[2]
# Stops in the middle of the records of `train`, and says so.
STOPPING = """
import os, time
from attn_cnn_jax import command_line
from attn_cnn_jax.prepare_data import __main__ as command, write
whole = write._examples
def stopping(name, split):
    for index, example in whole(name, split):
        yield index, example
        if index == 50:
            os.write(1, b"in the middle")
            time.sleep(600)
write._examples = stopping
command.define_flags()
command_line.run(command.main)
"""


def _start(*flags, program=("-m", "attn_cnn_jax.prepare_data"), data_dir=None):
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    if data_dir is not None:
        environment["TFDS_DATA_DIR"] = str(data_dir)
    return subprocess.Popen(
        [sys.executable, *program, *flags],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _run(*flags, data_dir=None):
    process = _start(*flags, data_dir=data_dir)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_a_copy_is_prepared_and_a_second_run_says_so(copies, tmp_path):
    copies.write_binary(copies.tiny("cifar10"), tmp_path / "in")
    where = tmp_path / "prepared here"
    flags = (f"--source={tmp_path}/in", f"--data_dir={where}", "--allow_partial")
    status, out, err = _run(*flags)
    assert status == 0, err
    assert "train: 100 records read back" in out
    assert f"is prepared and verified in {where}/cifar10/3.0.2" in out
    train = "python -m attn_cnn_jax.main --config=configs/laptop.py"
    assert out.endswith(f"Train with it: {train} --data_dir='{where}'\n")
    assert "not the pixels" in err  # they are random
    assert len(tfds.builder("cifar10", data_dir=where).as_data_source("test")) == 20
    status, out, err = _run(*flags)
    assert (status, err) == (0, "")
    assert f"already prepared and undamaged in {where}/cifar10/3.0.2" in out


def test_the_default_needs_no_flag_to_train(copies, tmp_path):
    copies.write_python(copies.tiny("cifar100"), tmp_path / "in", python2=True)
    status, out, err = _run(
        f"--source={tmp_path}/in", "--allow_partial", data_dir=tmp_path / "out"
    )
    assert status == 0, err
    assert out.endswith("--config=configs/laptop.py:cifar100\n")
    assert (tmp_path / "out" / "cifar100" / "3.0.2").is_dir()


def test_killed_in_the_middle_and_run_again_it_ends_right(copies, tmp_path):
    copies.write_binary(copies.tiny("cifar10"), tmp_path / "in")
    flags = (f"--source={tmp_path}/in", f"--data_dir={tmp_path}", "--allow_partial")
    process = _start(*flags, program=("-c", STOPPING))
    assert process.stdout is not None
    heard = ""
    while "in the middle" not in heard:
        heard += process.stdout.read(1) or pytest.fail(process.communicate()[1])
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert list((tmp_path / "cifar10").glob("incomplete.*"))
    assert not verify.is_prepared("cifar10", tmp_path, allow_partial=True)
    status, _, err = _run(*flags)
    assert status == 0, err
    assert not list((tmp_path / "cifar10").glob("incomplete.*"))
    assert verify.is_prepared("cifar10", tmp_path, allow_partial=True)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "give --source=PATH"),
        (["--download", "--source=in"], "give --source=PATH"),
        (["--source=in", "--url=http://x"], "--url needs --download"),
        (["--source=nowhere"], "does not exist"),
        (["--source={}/in"], "train has 100 records, not 50000 (--allow_partial"),
        (["--source={}/evil", "--allow_partial"], "asks for posix.system"),
        (["--source={}/in", "--dataset=mnist"], "dataset"),
        (["--download", "--url=ftp://x"], "has to begin with http"),
    ],
)
def test_mistakes_end_with_one_message_and_status_2(flags, message, copies, tmp_path):
    copies.write_binary(copies.tiny("cifar10"), tmp_path / "in")
    copies.write_python(copies.tiny("cifar10"), tmp_path / "evil", python2=True)
    # `cposix system (S'true' tR.` calls os.system('true') in a plain unpickler.
    evil = b"cposix\nsystem\n(S'true'\ntR."
    assert pickle.loads(evil) == 0
    (tmp_path / "evil" / "data_batch_1").write_bytes(evil)
    flags = [flag.format(tmp_path) for flag in flags]
    status, _, err = _run(*flags, data_dir=tmp_path / "out")
    assert status == 2
    assert err.startswith("error: ")
    assert message in err
    assert "Traceback" not in err
    assert err.count("\n") <= 2
    assert not (tmp_path / "out" / "cifar10" / "3.0.2").exists()
