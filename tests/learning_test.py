"""Every network learns: in 100 steps on the digits its loss falls by a tenth."""

import functools
import importlib.util
from pathlib import Path

import jax
import numpy as np
import pytest

from attn_cnn_jax import config as config_lib
from attn_cnn_jax import data, models, optim, parallel, train
from attn_cnn_jax.timetable import Timetable

CONFIGS = sorted((Path(__file__).parent.parent / "configs").glob("*.py"))
NUM_STEPS = 100
# These diverge at a rate of .03 with so small a batch and so short a warm-up.
SLOWER = ("learned_w_content_16heads", "quadratic_isotropic_ha")


def losses(config) -> np.ndarray:
    """The mean loss of each of the first steps."""
    dataset = data.load(config.dataset)
    due = Timetable(config, len(dataset.train))
    model = models.build(config.model, dataset.num_classes)
    optimizer = optim.make_optimizer(config.optimizer, due.schedule)
    parts = (config, model, optimizer, dataset)
    mesh = parallel.make_mesh(jax.devices()[:1])
    draw = functools.partial(train.initial_state, *parts)
    state = parallel.replicate(jax.jit(draw)(), mesh)
    feed = parallel.Feed(dataset.train, mesh, config.dataset.placement)
    block = parallel.compile_blocks(train.make_train_step(*parts, mesh), feed, 1)
    sums = []
    for step in range(NUM_STEPS):
        state, of_step = block(state, due.next_rows(step))
        sums += of_step
    return np.array([s.on_host().means()["loss"] for s in jax.device_get(sums)])


def assert_learned(config, measured) -> None:
    """The last ten losses lie a tenth below the first ten."""
    found = losses(config)
    first, last = found[:10].mean(), found[-10:].mean()
    measured("mean loss of the first and last ten steps", f"{first:.3f}, {last:.3f}")
    assert np.isfinite(found).all()
    assert last <= 0.9 * first, found


def on_digits(path: Path):
    """A row on the digits: batches of 32, a warm-up of two epochs (88 steps).

    In their own size, 8 x 8, where the network takes it; stages that halve the map
    need the enlarged ones.
    """
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = module.get_config("digits")
    if config.model.name not in ("san", *config_lib.RESNETS):
        config.dataset.name = "digits_8x8"
    config.batch_size = 32
    config.schedule.warmup_epochs = 2.0
    rate = 0.2 if config.model.name == "san_hierarchical" else 0.03
    rate = 0.01 if path.stem in SLOWER else rate
    config.optimizer.learning_rate = min(config.optimizer.learning_rate, rate)
    return config


@pytest.mark.soak
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_row_learns(path, measured):
    """At full size, with everything as published but what `on_digits` names."""
    config = on_digits(path)
    jax.config.update("jax_disable_most_optimizations", False)
    try:
        assert_learned(config, measured)
    finally:
        jax.config.update("jax_disable_most_optimizations", True)


def small_san(config) -> None:
    config.model.update(widths=(32, 64), num_blocks=(1, 1), kernel_sizes=(3, 3))


def small_hierarchical_san(config) -> None:
    config.model.update(width=32, num_passes=2)


def small_vit(config) -> None:
    config.model.update(stem_width=8, width=32, num_layers=2, num_heads=4)
    config.model.update(head_dim=32, mlp_dim=32)


def small_transformer(config) -> None:
    config.model.update(width=32, num_layers=2, num_heads=4, mlp_dim=32)


# Row: how its network is made small.
SMALL = {
    "learned_w_content_16heads_ha": small_transformer,
    "san_pairwise": small_san,
    "san_patchwise": small_san,
    "san_pairwise_ha": small_hierarchical_san,
    "san_patchwise_ha": small_hierarchical_san,
    "vit_ha": small_vit,
    "vit_standard": small_vit,
}


@pytest.mark.parametrize("name", SMALL)
def test_a_small_network_of_the_report_learns(name, measured):
    (path,) = (path for path in CONFIGS if path.stem == name)
    config = on_digits(path)
    config.dataset.name = "digits_8x8"
    SMALL[name](config)
    config_lib.check(config)
    assert_learned(config, measured)
