"""The demo keeps what the README says of it."""

import importlib.util
import pathlib

import pytest

from attn_cnn_jax import checkpoint, data, models, parallel, train
from attn_cnn_jax.covered_offsets import make_coverage

CONFIG = pathlib.Path(__file__).parent.parent / "configs" / "quickstart.py"


@pytest.mark.soak
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_demo_answers_its_question(tmp_path, seed):
    """It learns, and heads of its first layer look at several offsets."""
    spec = importlib.util.spec_from_file_location("quickstart", CONFIG)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = module.get_config()
    config.seed = seed
    assert train.train(config, tmp_path)["accuracy"] >= 0.97
    dataset = data.load(config.dataset)
    model = models.build(config.model, dataset.num_classes)
    coverage = make_coverage(config, model, dataset, parallel.make_mesh())
    assert len(coverage(checkpoint.load(tmp_path).variables)[0].covered) >= 3
