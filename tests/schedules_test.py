"""The published schedules, and each row's protocol."""

import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from attn_cnn_jax import config as config_lib
from attn_cnn_jax import optim

CONFIGS = Path(__file__).parent.parent / "configs"


def row(name: str, options: str = "") -> ConfigDict:
    """The config of a file in configs/; options may stand behind the name."""
    name, _, own = name.partition(":")
    spec = importlib.util.spec_from_file_location(name, CONFIGS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config(options or own)


def schedule(name: str, steps_per_epoch: int, num_epochs: int, **changes):
    fields = config_lib.base_config().schedule
    fields.update(name=name, **changes)
    return optim.make_schedule(fields, 0.1, num_epochs, steps_per_epoch)


def test_cosine_counts_updates_from_one():
    rate = schedule("cosine", 500, 300)
    warmup, total = 15 * 500, 300 * 500
    for k in (1, 2, 3, 7499):
        np.testing.assert_allclose(rate(k - 1), 0.1 * k / warmup, rtol=1e-6)
    np.testing.assert_allclose(rate(warmup - 1), 0.1, rtol=1e-6)  # the peak
    rates = np.asarray(jax.vmap(rate)(jnp.arange(total)))
    assert rates.argmax() in range(warmup - 1, warmup + 50)  # flat to float32 there
    assert (rates <= np.float32(0.1)).all()
    assert (np.diff(rates[:warmup]) > 0).all() and (np.diff(rates[warmup:]) <= 0).all()
    half_way = (warmup + total) // 2
    np.testing.assert_allclose(rate(half_way - 1), 0.05, rtol=1e-4)
    assert abs(float(rate(total - 1))) < 1e-8  # the last update
    assert float(rate(total - 501)) > 1e-6


def test_cosine_of_few_steps_is_its_formula():
    rate = schedule("cosine", 4, 5, warmup_epochs=1.5)
    warmup, total = 6, 20
    for k in range(1, total + 1):
        f = k / warmup
        if k >= warmup:
            f = 0.5 * (1 + np.cos(np.pi * (k - warmup) / (total - warmup)))
        np.testing.assert_allclose(rate(k - 1), 0.1 * f, rtol=1e-5, atol=1e-8)


def test_cosine_without_warmup_starts_near_the_top():
    rate = schedule("cosine", 10, 10, warmup_epochs=0.0)
    wanted = 0.05 * (1 + np.cos(np.pi / 100))
    np.testing.assert_allclose(rate(0), wanted, rtol=1e-6)
    np.testing.assert_allclose(rate(99), 0.0, atol=1e-8)


# Rates of the original's epochs (spec, section 7), and half a unit of the last digit.
EPOCHWISE = {
    0: (0.0, 0.0),
    1: (0.00665336, 5e-9),
    2: (0.01330672, 5e-9),
    14: (0.09314704, 5e-9),
    15: (0.0998004, 5e-8),
    16: (0.09999715, 5e-9),
    50: (0.09634537, 5e-9),
    100: (0.07970033, 5e-9),
    150: (0.0542934, 5e-8),
    200: (0.02761987, 5e-9),
    250: (0.0075487, 5e-8),
    299: (7.75e-6, 5e-9),
}


@pytest.mark.parametrize("epoch", EPOCHWISE)
def test_cosine_epochwise_has_the_rates_of_the_original(epoch):
    wanted, precision = EPOCHWISE[epoch]
    rate = schedule("cosine_epochwise", 500, 300)
    with jax.enable_x64(True):
        made = float(rate(epoch * 500))
    rounding = 1e-7 * wanted  # of float32, in which the rate is computed
    assert abs(made - wanted) <= precision + rounding + 1e-8 * (epoch > 0)


@pytest.mark.parametrize("epoch", [0, 1, 20, 299])
def test_cosine_epochwise_is_constant_inside_an_epoch(epoch):
    rate = jax.jit(schedule("cosine_epochwise", 500, 300))
    first = float(rate(500 * epoch))
    for batch in (1, 250, 499):
        assert float(rate(500 * epoch + batch)) == first
    if epoch < 299:
        assert float(rate(500 * (epoch + 1))) != first


def test_cosine_epochwise_warms_up_for_whole_steps():
    """As the original: int(1.5 * (4 + 1)) = 7 steps, or none at all."""
    rate = schedule("cosine_epochwise", 4, 5, warmup_epochs=1.5)
    np.testing.assert_allclose(rate(4), 0.1 * 4 / 7, rtol=1e-6)
    rate = schedule("cosine_epochwise", 4, 5, warmup_epochs=0.0)
    np.testing.assert_allclose(rate(0), 0.1, rtol=1e-6)


def test_a_warmup_as_long_as_the_training_ends_at_the_top():
    assert float(optim.warmup_cosine(10, 10, 10)) == 1


def reports_rates(num_epochs: int, warmup: int, base: float) -> list[float]:
    """The report's loop: a warm-up by hand, then PyTorch's CosineAnnealingLR.

    Its rate follows from the one before: with T its length and t = 1, 2, ... its steps,
    rate *= (1 + cos(pi t / T)) / (1 + cos(pi (t - 1) / T)). It takes its first step
    before epoch `warmup`, from the rate of the epoch before that.
    """
    rates = [base * epoch / warmup for epoch in range(1, warmup)]
    length = num_epochs - warmup
    for t in range(1, length + 1):
        ratio = (1 + np.cos(np.pi * t / length)) / (
            1 + np.cos(np.pi * (t - 1) / length)
        )
        rates.append(rates[-1] * ratio)
    return rates  # of the epochs 1 to num_epochs - 1


@pytest.mark.parametrize("num_epochs, warmup", [(300, 15), (300, 10), (100, 5)])
def test_the_reports_cosine_is_pytorchs_recursion(num_epochs, warmup):
    fields = config_lib.base_config().schedule
    fields.update(name="cosine_report", warmup_epochs=float(warmup))
    rate = optim.make_schedule(fields, 0.1, num_epochs, 3)
    wanted = reports_rates(num_epochs, warmup, 0.1)
    assert len(wanted) == num_epochs - 1
    with jax.enable_x64(True):
        made = np.asarray(jax.vmap(rate)(jnp.arange(3 * num_epochs)))
    by_epoch = made.reshape(num_epochs, 3)
    assert (by_epoch == by_epoch[:, :1]).all()  # one rate an epoch
    np.testing.assert_allclose(by_epoch[:-1, 0], wanted, rtol=2e-5, atol=1e-8)
    peak = 0.1 * (warmup - 1) / warmup
    np.testing.assert_allclose(by_epoch.max(), peak, rtol=1e-6)
    assert by_epoch[-2, 0] < 1e-8 and 0 <= by_epoch[-1, 0] < 1e-4


def test_the_reports_cosine_is_exact_but_for_float32(monkeypatch):
    """The closed form in float64 is the recursion to 1e-12."""
    for num_epochs, warmup in ((300, 15), (300, 10), (100, 5)):
        wanted = reports_rates(num_epochs, warmup, 1.0)
        with jax.enable_x64(True), monkeypatch.context() as patch:
            patch.setattr(jnp, "float32", jnp.float64)
            epochs = np.arange(1, num_epochs)
            made = [float(optim.report_cosine(e, warmup, num_epochs)) for e in epochs]
        np.testing.assert_allclose(made, wanted, rtol=0, atol=1e-12)


# Table 4 of the report (num_epochs, batch_size, learning_rate, schedule, warm-up or
# drops), and what its authors' code adds (nesterov, label_smoothing, crop_padding,
# decay_exclude). The paper's rows exclude centers and spreads.
OURS = ("centers", "spreads")
PAPER = (300, 100, 0.1, "cosine", 15, False, 0.0, 4, OURS)
REPORT = (300, 100, 0.1, "cosine_report", 15, True, 0.0, 4, ())
VIT = (100, 32, 0.01, "cosine_report", 5, True, 0.0, 4, ())
SAN = (300, 256, 0.1, "multistep", (100, 200, 250), False, 0.1, 0, ())
PROTOCOLS = {
    "resnet18": (300, 100, 0.1, "multistep", (79, 149, 249), False, 0.0, 4, OURS),
    "quadratic_isotropic": PAPER,
    "quadratic_isotropic_16heads": PAPER,
    "quadratic_isotropic_ha": PAPER,
    "quadratic_nonisotropic": PAPER,
    "learned_wo_content": PAPER,
    "learned_wo_content_16heads": PAPER,
    "learned_w_content": PAPER,
    "learned_w_content_16heads": PAPER,
    "learned_w_content_ha": REPORT,
    "learned_w_content_16heads_ha": REPORT,
    "learned_w_content_report": REPORT,
    "learned_w_content_report_16heads": REPORT,
    "learned_wo_content_report": REPORT,
    "learned_wo_content_report_16heads": REPORT,
    "quadratic_isotropic_report": REPORT,
    "quadratic_isotropic_report_16heads": REPORT,
    "quadratic_isotropic_report_ha": REPORT,
    "quadratic_nonisotropic_report": REPORT,
    "resnet18:report": (300, 100, 0.1, "cosine_report", 10, True, 0.0, 4, ()),
    "san_pairwise": SAN,
    "san_patchwise": SAN,
    "san_pairwise_ha": (300, 40, 0.1, "cosine_report", 10, True, 0.1, 0, ()),
    "san_patchwise_ha": (300, 100, 0.1, "cosine_report", 10, True, 0.1, 0, ()),
    "vit": VIT,
    "vit_ha": VIT,
    "vit_standard": VIT,
    "vit_standard_ha": VIT,
}


def test_every_row_has_its_protocol():
    examples = {"quickstart", "laptop"}
    rows = {name.partition(":")[0] for name in PROTOCOLS}
    assert {path.stem for path in CONFIGS.glob("*.py")} - examples == rows


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_row_trains_as_published(name):
    config = row(name)
    optimizer, schedule = config.optimizer, config.schedule
    multistep = schedule.name == "multistep"
    assert PROTOCOLS[name] == (
        config.num_epochs,
        config.batch_size,
        optimizer.learning_rate,
        schedule.name,
        schedule.drop_epochs if multistep else schedule.warmup_epochs,
        optimizer.nesterov,
        config.label_smoothing,
        config.dataset.crop_padding,
        tuple(optimizer.decay_exclude),
    )
    assert (optimizer.momentum, optimizer.weight_decay) == (0.9, 1e-4)
    assert config.dataset.flip and schedule.drop_factor == 10
    # The report evaluated every ten epochs.
    of_the_report = "_report" in schedule.name or name.startswith("san")
    assert config.eval_every_epochs == (10 if of_the_report else 1)


def test_resnet18_drops_as_published():
    config = row("resnet18")
    rate = optim.make_schedule(
        config.schedule, config.optimizer.learning_rate, config.num_epochs, 500
    )
    rate = jax.jit(rate)
    epochs = {0: 0.1, 78: 0.1, 79: 1e-2, 148: 1e-2, 149: 1e-3, 248: 1e-3}
    epochs |= {249: 1e-4, 299: 1e-4}
    for epoch, wanted in epochs.items():
        for batch in (0, 499):
            np.testing.assert_allclose(rate(500 * epoch + batch), wanted, rtol=1e-5)


def test_a_drop_after_the_last_epoch_is_never_met():
    """Nor does it overflow the updates' counter."""
    rate = schedule("multistep", 10, 5, drop_epochs=(3, 5, 10**12))
    rates = [float(rate(count)) for count in (0, 29, 30, 49)]
    np.testing.assert_allclose(rates, [0.1, 0.1, 0.01, 0.01], rtol=1e-6)


def test_an_unknown_schedule_is_an_error():
    with pytest.raises(ValueError, match="stairs"):
        schedule("stairs", 10, 10)


def test_the_optimizer_takes_its_rate_of_the_schedule():
    """Update k = 0 of `cosine_epochwise` has rate 0: nothing moves, momentum fills."""
    fields = config_lib.base_config().optimizer
    rate = schedule("cosine_epochwise", 2, 20, warmup_epochs=1.0)
    optimizer = optim.make_optimizer(fields, rate)
    params = {"kernel": jnp.ones(3)}
    state = optimizer.init(params)
    moved = []
    for _ in range(4):
        updates, state = optimizer.update({"kernel": jnp.ones(3)}, state, params)
        moved.append(float(jnp.abs(updates["kernel"]).max()))
    assert moved[:2] == [0.0, 0.0] and moved[2] > 0
    sums = 1.0001 * (1 + 0.9 + 0.81)  # three gradients with their decay
    np.testing.assert_allclose(moved[2], float(rate(2)) * sums, rtol=1e-5)
