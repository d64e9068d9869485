"""Runs that start from the variables of another: exactly, resumed, or refused."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from attn_cnn_jax import checkpoint, data, models, optim, records, signals, train
from attn_cnn_jax import config as config_lib
from attn_cnn_jax.analysis.pruning import prune
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.run import Run

ROOT = Path(__file__).parent.parent
QUICKSTART = ROOT / "configs" / "quickstart.py"


def assert_same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.fixture
def origin(tiny_config, tmp_path):
    """A workdir of variables that no run of these tests would draw."""
    config = tiny_config(seed=7)
    dataset = data.load(config.dataset)
    model = models.build(config.model, dataset.num_classes)
    drawn = models.initial_variables(model, jax.random.key(7), dataset.image_shape)
    variables = jax.tree.map(lambda leaf: np.asarray(leaf) * 1.5, drawn)
    checkpoint.write_variables(tmp_path / "origin", config, variables)
    return tmp_path / "origin"


@pytest.fixture
def new_config(tiny_config, origin):
    """The config of a run that starts there: two epochs of 7 steps."""
    config = tiny_config(batch_size=200, init_from=str(origin), snapshot_every_epochs=1)
    config_lib.check(config)
    return config


def test_it_starts_with_the_variables_and_nothing_else(origin, new_config, tmp_path):
    train.train(new_config, tmp_path / "run")
    start = checkpoint.load(tmp_path / "run", 0)  # the snapshot before the first step
    assert_same(start.variables, checkpoint.load(origin).variables)
    last = checkpoint.load(tmp_path / "run")
    assert last.step == 14 and last.config.init_from == str(origin)
    lines = records.read(tmp_path / "run")
    assert [line["step"] for line in lines if line["split"] == "test"] == [7, 14]
    file = tmp_path / "run" / "environment.jsonl"
    (line,) = map(json.loads, file.read_text().splitlines())
    assert (line["init_from"], line["init_step"]) == (str(origin), 0)


def test_the_optimizer_starts_afresh(origin, new_config):
    dataset = data.load(new_config.dataset)
    model = models.build(new_config.model, dataset.num_classes)
    optimizer = optim.make_optimizer(new_config.optimizer, 0.1)
    given = checkpoint.load(origin).variables
    parts = (new_config, model, optimizer, dataset)
    state = train.initial_state(*parts, given)
    drawn = jax.eval_shape(lambda: train.initial_state(*parts))
    assert jax.tree.structure(state) == jax.tree.structure(drawn)
    assert state.step == 0
    assert_same(state.variables, given)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(state.opt_state))


def test_interrupted_and_resumed_it_ends_like_an_uninterrupted_one(
    origin, new_config, tmp_path, monkeypatch
):
    """Also when the origin is gone: its own checkpoint wins."""
    new_config.snapshot_every_epochs = 0
    train.train(new_config, tmp_path / "whole")
    original = signals.StopSignals.received

    def received(self):
        os.kill(os.getpid(), signal.SIGTERM)
        return original(self)

    with monkeypatch.context() as patch:
        patch.setattr(signals.StopSignals, "received", received)
        with pytest.raises(signals.Stopped):
            train.train(new_config, tmp_path / "parts")
    shutil.rmtree(origin)
    train.train(new_config, tmp_path / "parts")
    whole, parts = (checkpoint.load(tmp_path / name) for name in ("whole", "parts"))
    assert whole.step == parts.step == 14
    assert_same(whole.variables, parts.variables)
    file = tmp_path / "parts" / "environment.jsonl"
    starts = [json.loads(line) for line in file.read_text().splitlines()]
    assert ["init_from" in line for line in starts] == [True, False]


def test_another_origin_is_another_run(origin, new_config, tmp_path):
    train.train(new_config, tmp_path / "run")
    other = new_config.copy_and_resolve_references()
    for source in ("", str(tmp_path / "elsewhere")):
        other.init_from = source
        with pytest.raises(UserError, match="another config .init_from: .*origin -> "):
            train.train(other, tmp_path / "run")


def test_a_run_from_before_some_fields_goes_on(tiny_config, tmp_path):
    config = tiny_config(num_epochs=1, batch_size=400)
    config.schedule.warmup_epochs = 0.0
    train.train(config, tmp_path)
    file = tmp_path / "config.json"
    fields = json.loads(file.read_text())
    for name in ("init_from", "label_smoothing", "evaluate_in_training_mode"):
        del fields[name]
    del fields["steps_per_dispatch"]
    del fields["optimizer"]["nesterov"], fields["optimizer"]["name"]
    del fields["model"]["attention_dense"], fields["model"]["share_weights"]
    file.write_text(json.dumps(fields))
    old = checkpoint.read_config(tmp_path)
    config_lib.check(old)
    assert config_lib.differences(old, config) == []
    assert config_lib.from_dict(fields["model"]) == old.model
    train.train(config, tmp_path)


def test_what_was_never_recorded_is_still_missing(tiny_config):
    fields = json.loads(config_lib.to_json(tiny_config()))
    del fields["optimizer"]
    with pytest.raises(UserError, match="config.optimizer.* is missing"):
        config_lib.check(config_lib.from_dict(fields))


@pytest.mark.parametrize(
    "model, match",
    [
        ({"width": 8}, "attention/centers|has shape .*, not "),
        ({"num_heads": 3}, "block_0/attention/centers has shape .4, 2., not .3, 2."),
        ({"num_layers": 3}, "block_2/.* has shape None, not "),
    ],
)
def test_variables_that_do_not_fit_are_refused(model, match, new_config, tmp_path):
    new_config.model.update(model)
    with pytest.raises(UserError, match=f"origin do not fit this config.*{match}") as e:
        train.train(new_config, tmp_path / "run")
    assert "\n" not in str(e.value) and not (tmp_path / "run").exists()


def test_another_number_of_classes_is_refused(new_config, tmp_path, monkeypatch):
    original = data.load

    def load(fields):
        loaded = original(fields)
        names = tuple("0123456789AB")
        return data.Dataset(names, loaded.mean, loaded.std, loaded.train, loaded.test)

    monkeypatch.setattr(data, "load", load)
    with pytest.raises(
        UserError, match=r"classifier/bias has shape \(10,\), not \(12,"
    ):
        train.train(new_config, tmp_path / "run")


def command(folder, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "attn_cnn_jax.main", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
    )


TRAIN = [
    f"--config={QUICKSTART}",
    "--config.num_epochs=2",
    "--config.eval_every_epochs=1",
    "--config.schedule.warmup_epochs=1",
    "--config.batch_size=200",
    "--config.model.dropout_rate=0.25",
    "--config.snapshot_every_epochs=0",
]


def test_a_pruned_run_is_trained_on(origin, tmp_path):
    """From the command line: its model, the rest from --config; then again."""
    prune(origin, tmp_path / "pruned", heads=["1:2", "2:1", "2:2", "2:3", "2:4"])
    first = command(tmp_path, *TRAIN, "--init_from=pruned")
    assert first.returncode == 0, first.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch("quickstart_batch_size=200.*_seed42_init_pruned", run.name)
    config = checkpoint.read_config(run)
    assert config.init_from == str(tmp_path / "pruned")
    assert config.model.num_heads == (3, 0) and config.model.width == 16
    assert config.model.dropout_rate == 0.25 and config.batch_size == 200
    assert checkpoint.steps(run) == [7, 14]
    (tmp_path / "pruned").rename(tmp_path / "gone")
    again = command(tmp_path, *TRAIN, "--init_from=pruned")
    assert again.returncode == 0 and "continues after step 14 of 14" in again.stdout
    assert Run(run).evaluate()["images"] == 360


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([f"--config={QUICKSTART}", "--init_from=absent"], "absent is not the workdir"),
        (["--mode=evaluate", "--workdir=x", "--init_from=y"], "starts a training"),
    ],
)
def test_what_is_no_run_is_refused_in_a_line(arguments, message, tmp_path):
    result = command(tmp_path, *arguments)
    assert result.returncode == 2 and result.stderr.count("\n") == 1
    assert result.stderr.startswith("error: --init_from") and message in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_field_of_another_model_is_refused_in_a_line(tmp_path):
    """Of the model of --config, which the run's model takes the place of."""
    config = config_lib.base_config()
    config.model = config_lib.san("pairwise")  # its attention is a name, not a block
    checkpoint.write_config(tmp_path / "san", config)
    arguments = (f"--config={QUICKSTART}", "--init_from=san")
    field = "--config.model.attention.center_std"
    result = command(tmp_path, *arguments, f"{field}=1.0")
    assert result.returncode == 2, result.stderr
    assert result.stderr.startswith(f"error: {field}: the model of {tmp_path}/san has")
    assert "no such field" in result.stderr and result.stderr.count("\n") == 1
