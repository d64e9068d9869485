"""The demo keeps what the README says of it."""

import importlib.util
import pathlib

import pytest

from attn_cnn_jax import train

CONFIG = pathlib.Path(__file__).parent.parent / "configs" / "quickstart.py"


@pytest.mark.soak
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_quickstart_reaches_95_percent(tmp_path, seed):
    spec = importlib.util.spec_from_file_location("quickstart", CONFIG)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = module.get_config()
    config.seed = seed
    assert train.train(config, tmp_path)["accuracy"] >= 0.95
