"""Every network learns: after some steps on the digits it is better than a guess."""

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
NUM_STEPS, RATE = 60, 0.01  # of every row but these
MORE_STEPS = {"learned_w_content_ha": 150}
RATES = {
    "laptop": 0.03,
    "learned_w_content_16heads": 0.003,
    "learned_w_content_16heads_ha": 0.003,
    "learned_w_content_ha": 0.001,
    "learned_w_content_report": 0.003,
    "learned_wo_content_report": 0.003,
    "quadratic_isotropic_ha": 0.003,
    "quickstart": 0.03,
    "san_pairwise": 0.03,
    "san_pairwise_ha": 0.1,
    "san_patchwise_ha": 0.1,
    "vit_ha": 0.001,
    "vit_standard_ha": 0.001,
}


def losses(config, num_steps: int) -> np.ndarray:
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
    for step in range(num_steps):
        state, of_step = block(state, due.next_rows(step))
        sums += of_step
    return np.array([s.on_host().means()["loss"] for s in jax.device_get(sums)])


def assert_learned(config, num_steps: int, measured) -> None:
    """The last ten losses lie a tenth below a guess, ln(classes), and the first ten."""
    found = losses(config, num_steps)
    first, last = found[:10].mean(), found[-10:].mean()
    measured("mean loss of the first and last ten steps", f"{first:.3f}, {last:.3f}")
    assert np.isfinite(found).all()
    num_classes = data.load(config.dataset).num_classes
    assert last <= 0.9 * min(first, np.log(num_classes)), found


def on_digits(path: Path):
    """A row on the digits: batches of 32, a cosine with a warm-up of 22 steps.

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
    config.schedule.update(name="cosine", warmup_epochs=0.5)
    config.optimizer.learning_rate = RATES.get(path.stem, RATE)
    return config


@pytest.mark.soak
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_row_learns(path, measured):
    """At full size, with everything as published but what `on_digits` names."""
    config = on_digits(path)
    jax.config.update("jax_disable_most_optimizations", False)
    try:
        assert_learned(config, MORE_STEPS.get(path.stem, NUM_STEPS), measured)
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


OFTEN = {"san_pairwise_ha", "vit_standard"}  # the others in `make soak`


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in OFTEN else pytest.mark.soak)
        for name in SMALL
    ],
)
def test_a_small_network_of_the_report_learns(name, measured):
    (path,) = (path for path in CONFIGS if path.stem == name)
    config = on_digits(path)
    config.dataset.name = "digits_8x8"
    config.optimizer.learning_rate = 0.03 if "vit" in name else 0.1
    SMALL[name](config)
    config_lib.check(config)
    assert_learned(config, 120, measured)
