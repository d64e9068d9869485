"""Curves: the scores of a config's runs over epochs, seeds side by side."""

import numpy as np
import pytest

from attn_cnn_jax.analysis.curves import curves
from attn_cnn_jax.errors import UserError


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
