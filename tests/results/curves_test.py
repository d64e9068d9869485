"""Curves: the scores of a config's runs over epochs, seeds side by side."""

import json

import numpy as np
import pytest

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.results.curves import (
    Curve,
    accuracies_by_step,
    epoch_means,
    run_curves,
)


def test_seeds_of_a_config_are_one_group(make_run):
    workdirs = [
        make_run("b", "resnet18", {100: 0.5, 200: 0.6, 300: 0.7}, seed=2),
        make_run("a", "resnet18", {100: 0.1, 300: 0.3}, seed=1),
        make_run("c", "resnet18", {300: 0.9}, seed=1, batch_size=50),
        make_run("demo", "quickstart", {70: 0.98}),
    ]
    found = run_curves(workdirs)
    assert [curves.label for curves in found] == [
        *["ResNet18"] * 2,
        "ResNet18 (batch_size 50 instead of 100)",
        "demo",
    ]
    first, second, *others = [curves.group for curves in found]
    assert first == second and len({first, *others}) == 3
    shortest = found[0]
    assert shortest.test_accuracy.epochs.tolist() == [100, 300]
    assert shortest.test_accuracy.values.tolist() == [0.1, 0.3]
    assert shortest.test_loss.values.tolist() == [0.9, 0.7]
    assert found[1].test_accuracy.values.tolist() == [0.5, 0.6, 0.7]


def test_seeds_of_no_row_have_the_name_that_they_share(make_run):
    names = ["demo_seed1", "demo_seed2", "first", "other"]
    workdirs = [
        make_run(name, "quickstart", {70: 0.98}, seed=seed, batch_size=30 + seed // 3)
        for seed, name in enumerate(names, start=1)
    ]
    labels = [curves.label for curves in run_curves(workdirs)]
    network = "self_attention, quadratic_isotropic on digits_8x8"
    assert labels == [*["demo"] * 2, *[network] * 2]
    assert [curves.label for curves in run_curves(workdirs[:1])] == ["demo_seed1"]


def test_an_epoch_counts_once_and_what_is_no_number_not_at_all(make_run):
    workdir = make_run("run", "resnet18", {1: 0.5, 3: 0.75})
    record = {"split": "test", "accuracy": 0.7, "loss": float("nan")}
    lines = [{**record, "step": 1000, "epoch": 2}, {**record, "step": 1501, "epoch": 3}]
    with (workdir / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    [curves] = run_curves([workdir])
    assert curves.test_accuracy.epochs.tolist() == [1, 2, 3]
    assert curves.test_accuracy.values.tolist() == [0.5, 0.7, 0.75]
    assert curves.test_loss.epochs.tolist() == [1, 3]
    assert curves.test_loss.values.tolist() == [0.5, 0.25]


def test_accuracies_by_step_are_those_of_the_test_set(make_run):
    run = make_run("run", "quickstart", {1: 0.5, 3: 0.75}, validation={2: 0.9})
    assert accuracies_by_step(run) == {500: 0.5, 1500: 0.75}
    assert accuracies_by_step(make_run("new", "quickstart", {})) == {}
    (run / "metrics.jsonl").write_text("no scores\n")
    with pytest.warns(UserWarning, match="no test accuracy is told: .* no line with"):
        assert accuracies_by_step(run) == {}


def test_means_over_epochs():
    """An epoch's last step counts for it, however its epochs were rounded."""
    epochs = np.array([0.5, 1 + 1e-12, 1.25, 2.0, 2.1])
    means = epoch_means(Curve(epochs, np.arange(5.0)))
    np.testing.assert_array_equal(means.epochs, [1, 2, 3])
    np.testing.assert_array_equal(means.values, [0.5, 2.5, 4])


def log_training(workdir, losses):
    lines = [
        {"step": 500 * i, "split": "train", "epoch": i, "accuracy": 0.1, "loss": loss}
        for i, loss in enumerate(losses, start=1)
    ]
    with (workdir / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def test_configs_of_equal_names_stay_apart(make_run, tmp_path):
    """Folders of one name, and one row trained in two published ways."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    workdirs = [
        make_run("a/same", "quickstart", {10: 0.8}, seed=1),
        make_run("b/same", "quickstart", {10: 0.4}, seed=2, init_from="runs/a"),
        make_run("x", "resnet18", {300: 0.9}),
        make_run("y", "resnet18:cosine", {300: 0.7}, batch_size=50),
        make_run("z", "resnet18", {300: 0.9}, seed=2),
    ]
    for workdir, loss in zip(workdirs, [0.1, 0.2, 0.3, 0.4, 0.5], strict=True):
        log_training(workdir, [loss])
    found = run_curves(workdirs)
    assert [curves.label for curves in found] == [
        "same (init_from empty)",
        "same (init_from runs/a)",
        "ResNet18",
        "ResNet18",
        "ResNet18 (cosine; batch_size 50 instead of 100)",
    ]
    assert len({curves.group for curves in found}) == 4
    losses = [curves.train_loss.values.tolist() for curves in found]
    assert losses == [[0.1], [0.2], [0.3], [0.5], [0.4]]


def test_up_to_three_fields_tell_configs_apart(make_run, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    changed = {"num_epochs": 9, "batch_size": 10, "init_from": "runs/a"}
    workdirs = [
        make_run("a/same", "quickstart", {10: 0.8}),
        make_run("b/same", "quickstart", {10: 0.4}, **changed),
    ]
    assert [curves.label for curves in run_curves(workdirs)] == [
        "same (batch_size 50; init_from empty; num_epochs 110)",
        "same (batch_size 10; init_from runs/a; num_epochs 9)",
    ]


def test_configs_that_differ_in_much_are_named_by_their_paths(make_run, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    workdirs = [
        make_run("a/same", "quickstart", {10: 0.8}),
        make_run("b/same", "resnet18", {10: 0.4}, dataset__name="cifar100"),
    ]
    labels = [curves.label for curves in run_curves(workdirs)]
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
