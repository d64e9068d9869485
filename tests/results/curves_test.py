"""Curves: the scores of a config's runs over epochs, seeds side by side."""

import json

import numpy as np
import pytest

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.results.curves import curves, run_curves


def test_seeds_of_a_config_are_one_curve(make_run):
    workdirs = [
        make_run("b", "resnet18", {100: 0.5, 200: 0.6, 300: 0.7}, seed=2),
        make_run("a", "resnet18", {100: 0.1, 300: 0.3}, seed=1),
        make_run("c", "resnet18", {300: 0.9}, seed=1, batch_size=50),
        make_run("demo", "quickstart", {70: 0.98}),
    ]
    found = curves(workdirs)
    assert [curve.label for curve in found] == [
        "ResNet18",
        "ResNet18 (batch_size 50 instead of 100)",
        "demo",
    ]
    assert [curve.seeds for curve in found] == [(1, 2), (1,), (1,)]
    np.testing.assert_array_equal(found[0].epochs, [100, 200, 300])
    expected = np.array([[0.1, np.nan, 0.3], [0.5, 0.6, 0.7]])
    np.testing.assert_array_equal(found[0].accuracy, expected)
    np.testing.assert_allclose(found[0].loss, 1 - expected, rtol=1e-15)


def test_a_split(make_run):
    workdir = make_run("run", "resnet18", {100: 0.5}, validation={100: 0.25, 200: 0.75})
    [curve] = curves([workdir], split="validation")
    np.testing.assert_array_equal(curve.accuracy, [[0.25, 0.75]])
    with pytest.raises(UserError, match="'train'"):
        curves([workdir], split="train")


def log_training(workdir, losses):
    lines = [
        {"step": 500 * i, "split": "train", "epoch": i, "accuracy": 0.1, "loss": loss}
        for i, loss in enumerate(losses, start=1)
    ]
    with (workdir / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def test_configs_of_equal_names_stay_apart(make_run, tmp_path):
    """Folders of one name, and rows whose runs differ in what no row is about."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    rate = "optimizer__learning_rate"
    workdirs = [
        make_run("a/same", "quickstart", {10: 0.8}, seed=1, **{rate: 0.03}),
        make_run("b/same", "quickstart", {10: 0.4}, seed=2, **{rate: 0.001}),
        make_run("x", "resnet18", {300: 0.9}),
        make_run("y", "resnet18", {300: 0.7}, init_from="runs/resnet18"),
    ]
    for workdir, loss in zip(workdirs, [0.1, 0.2, 0.3, 0.4], strict=True):
        log_training(workdir, [loss])
    labels = [
        "same (optimizer.learning_rate 0.03)",
        "same (optimizer.learning_rate 0.001)",
        "ResNet18 (init_from empty)",
        "ResNet18 (init_from runs/resnet18)",
    ]
    found = curves(workdirs)
    assert [curve.label for curve in found] == labels
    assert len({curve.group for curve in found}) == 4
    drawn = run_curves(workdirs)
    assert [run.label for run in drawn] == labels
    assert [run.group for run in drawn] == [curve.group for curve in found]
    losses = [run.train_loss.values.tolist() for run in drawn]
    assert losses == [[0.1], [0.2], [0.3], [0.4]]


def test_configs_that_differ_in_much_are_named_by_their_paths(make_run, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    workdirs = [
        make_run("a/same", "quickstart", {10: 0.8}),
        make_run("b/same", "resnet18", {10: 0.4}, dataset__name="cifar100"),
    ]
    labels = [curve.label for curve in curves(workdirs)]
    assert labels == [f"same ({workdir})" for workdir in workdirs]


def test_a_run_needs_one_split_alone(make_run):
    started, evaluated = (
        make_run("new", "quickstart", {}),
        make_run("imported", "resnet18", {300: 0.9}),
    )
    log_training(started, [2.3, 2.0])
    new, imported = run_curves([started, evaluated])
    assert new.train_loss.values.tolist() == [2.3, 2.0]
    assert len(new.test_accuracy.epochs) == len(imported.train_loss.epochs) == 0
    assert imported.test_accuracy.values.tolist() == [0.9]
    with pytest.raises(UserError, match="'train' or 'test' in its metrics.jsonl yet"):
        run_curves([make_run("empty", "quickstart", {})])
