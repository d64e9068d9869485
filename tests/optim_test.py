"""The optimizer against a loop as PyTorch has it, and the published schedules."""

import importlib.util
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from ml_collections import ConfigDict

from attn_cnn_jax import checkpoint, metrics, models, optim, train
from attn_cnn_jax import config as config_lib
from attn_cnn_jax.models.attention import ATTENTIONS

CONFIGS = Path(__file__).parent.parent / "configs"


def row(name: str, options: str = "") -> ConfigDict:
    """The config of a file in configs/."""
    spec = importlib.util.spec_from_file_location(name, CONFIGS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config(options)


def small_tree(seed: int) -> dict:
    draw = np.random.default_rng(seed).normal
    return {
        "block": {
            "attention": {
                "centers": draw(size=(2, 2)),
                "spreads": draw(size=(2, 3)),
                "value_kernel": draw(size=(2, 4, 4)),
                "query": {"kernel": draw(size=(4, 2, 4)), "bias": draw(size=(2, 4))},
            },
            "norm": {"scale": draw(size=3), "bias": draw(size=3)},
        },
        "row_embedding": draw(size=(4, 3)),
        "gate_kernel": draw(size=3),
        "conv": {"kernel": draw(size=(3, 3, 2, 12))},
        "classifier": {"kernel": draw(size=(3, 2)), "bias": draw(size=2)},
    }


def sgd_as_in_torch(
    params, grads_of_steps, rates, momentum, weight_decay, *, nesterov=False
):
    """torch.optim.SGD, dampening 0; centers and spreads without decay."""
    buffers = {}
    flat = {jax.tree_util.keystr(k): v for k, v in leaves(params)}
    for grads, rate in zip(grads_of_steps, rates, strict=True):
        for (path, grad), name in zip(leaves(grads), flat, strict=True):
            free = path[-1].key in ("centers", "spreads")
            grad = grad + (0 if free else weight_decay) * flat[name]
            first = name not in buffers
            buffers[name] = grad if first else momentum * buffers[name] + grad
            step = grad + momentum * buffers[name] if nesterov else buffers[name]
            flat[name] = flat[name] - rate * step
    return flat


def leaves(tree):
    return jax.tree_util.tree_leaves_with_path(tree)


RATES = (0.05, 0.2, 0.1)


def three_steps(fields: ConfigDict) -> tuple[dict, list[dict], dict]:
    """Parameters, gradients of three steps, and the parameters after them by path."""
    params = small_tree(0)
    gradients = [small_tree(seed) for seed in (1, 2, 3)]
    with jax.enable_x64(True):
        optimizer = optim.make_optimizer(fields, lambda k: jnp.asarray(RATES)[k])
        ours = jax.tree.map(jnp.asarray, params)
        state = optimizer.init(ours)
        update = jax.jit(optimizer.update)
        for grads in gradients:
            updates, state = update(grads, state, ours)
            ours = optax.apply_updates(ours, updates)
    return params, gradients, {jax.tree_util.keystr(k): v for k, v in leaves(ours)}


@pytest.mark.parametrize("nesterov", [False, True])
def test_three_steps_are_those_of_torchs_sgd(nesterov):
    fields = config_lib.optimizer("sgd")
    fields.update(weight_decay=0.1, nesterov=nesterov)  # a decay that is visible
    params, gradients, ours = three_steps(fields)
    wanted = sgd_as_in_torch(params, gradients, RATES, 0.9, 0.1, nesterov=nesterov)
    for name, leaf in ours.items():
        np.testing.assert_allclose(leaf, wanted[name], rtol=1e-12, err_msg=name)


def test_the_defaults_are_published_ones():
    """The paper's SGD, PyTorch's AdamW, and Muon's own momentum beside it."""
    names = ("centers", "spreads")
    adamw = {"learning_rate": 1e-3, "b1": 0.9, "b2": 0.999, "eps": 1e-8}
    adamw |= {"weight_decay": 0.01, "decay_exclude": names}
    sgd = {"learning_rate": 0.1, "momentum": 0.9, "nesterov": False}
    sgd |= {"weight_decay": 1e-4, "decay_exclude": names}
    muon = {**adamw, "momentum": 0.95, "nesterov": True}
    for name, fields in (("sgd", sgd), ("adamw", adamw), ("muon", muon)):
        assert config_lib.optimizer(name).to_dict() == {"name": name, **fields}


class Adam:
    """Adam of one parameter as its paper has it, with `nesterov` as Dozat's (2016)."""

    def __init__(self, b1, b2, eps, nesterov=False):
        self.b1, self.b2, self.eps, self.nesterov = b1, b2, eps, nesterov
        self.m = self.v = self.t = 0

    def direction(self, grad):
        b1, b2 = self.b1, self.b2
        self.t += 1
        self.m = b1 * self.m + (1 - b1) * grad
        self.v = b2 * self.v + (1 - b2) * grad**2
        mean = self.m / (1 - b1**self.t)
        if self.nesterov:
            ahead = b1 * self.m / (1 - b1 ** (self.t + 1))
            mean = ahead + (1 - b1) * grad / (1 - b1**self.t)
        return mean / (np.sqrt(self.v / (1 - b2**self.t)) + self.eps)


class Muon:
    """Muon of one kernel, as Jordan's and Liu's: `matrix` is its shape as a matrix."""

    def __init__(self, momentum, nesterov, eps, matrix):
        self.momentum, self.nesterov = momentum, nesterov
        self.eps, self.matrix = eps, matrix
        self.m = self.t = 0

    def direction(self, grad):
        b = self.momentum
        self.t += 1
        self.m = b * self.m + (1 - b) * grad
        mean = self.m / (1 - b**self.t)
        if self.nesterov:
            ahead = b * self.m / (1 - b ** (self.t + 1))
            mean = ahead + (1 - b) * grad / (1 - b**self.t)
        x = mean.reshape(self.matrix)
        x = x / (np.linalg.norm(x) + self.eps)
        for _ in range(5):
            gram = x @ x.T
            x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
        return 0.2 * np.sqrt(max(self.matrix)) * x.reshape(grad.shape)


def decoupled(params, gradients, weight_decay, excluded, rule_of):
    """p <- p - rate * (direction + weight_decay * p), but where p is excluded."""
    after = {}
    for path, p in leaves(params):
        name = jax.tree_util.keystr(path)
        rule = rule_of(name)
        decay = 0 if path[-1].key in excluded else weight_decay
        for grads, rate in zip(gradients, RATES, strict=True):
            grad = {jax.tree_util.keystr(k): g for k, g in leaves(grads)}[name]
            p = p - rate * (rule.direction(grad) + decay * p)
        after[name] = p
    return after


def test_three_steps_of_adamw_are_its_formula():
    fields = config_lib.optimizer("adamw")
    fields.update(weight_decay=0.1, b1=0.8, b2=0.95, eps=1e-2)  # visible all of them
    fields.decay_exclude = ("bias",)
    params, gradients, ours = three_steps(fields)
    adam = (0.8, 0.95, 1e-2)
    wanted = decoupled(params, gradients, 0.1, {"bias"}, lambda name: Adam(*adam))
    for name, leaf in ours.items():
        np.testing.assert_allclose(leaf, wanted[name], rtol=1e-12, err_msg=name)


# The kernels of `small_tree`, as matrices from inputs to outputs.
MATRICES = {
    "['block']['attention']['value_kernel']": (2 * 4, 4),
    "['block']['attention']['query']['kernel']": (4, 2 * 4),
    "['conv']['kernel']": (3 * 3 * 2, 12),
    "['classifier']['kernel']": (3, 2),
}


@pytest.mark.parametrize("nesterov", [False, True])
def test_three_steps_of_muon_are_its_formula(nesterov):
    """Kernels as matrices by Muon; what is no matrix, or no kernel, by Adam."""
    fields = config_lib.optimizer("muon")
    fields.update(weight_decay=0.1, momentum=0.7, nesterov=nesterov)
    fields.update(b1=0.8, b2=0.95, eps=1e-2)
    params, gradients, ours = three_steps(fields)

    def rule_of(name):
        if name in MATRICES:
            return Muon(0.7, nesterov, 1e-2, MATRICES[name])
        return Adam(0.8, 0.95, 1e-2, nesterov)

    excluded = {"centers", "spreads"}
    wanted = decoupled(params, gradients, 0.1, excluded, rule_of)
    for name, leaf in ours.items():
        np.testing.assert_allclose(leaf, wanted[name], rtol=1e-6, err_msg=name)


def test_muons_update_of_a_matrix_is_nearly_orthogonal():
    fields = config_lib.optimizer("muon")
    fields.weight_decay = 0.0
    draw = np.random.default_rng(0).normal
    params = {"kernel": draw(size=(40, 64)).astype(np.float32)}
    stretched = params["kernel"] * np.geomspace(0.1, 10, 40, dtype=np.float32)[:, None]
    optimizer = optim.make_optimizer(fields, 1.0)
    updates, _ = optimizer.update({"kernel": stretched}, optimizer.init(params), params)
    u, _, vt = np.linalg.svd(stretched, full_matrices=False)
    found = -np.asarray(updates["kernel"]) / (0.2 * np.sqrt(64))
    values = np.diag(u.T @ found @ vt.T)
    assert 0.5 < values.min() and values.max() < 1.5
    np.testing.assert_allclose(u @ np.diag(values) @ vt, found, atol=1e-4)


OTHERS = {
    "resnet50": lambda: config_lib.resnet("resnet50"),
    "san": lambda: config_lib.san("pairwise"),
    "san_hierarchical": lambda: config_lib.san_hierarchical("patchwise"),
    "vit": config_lib.vit,
}
NETWORKS = [*ATTENTIONS, *OTHERS]


def shapes_of(name: str, **fields) -> dict:
    """The shapes of the parameters of a network, of an attention with `fields`."""
    model_fields = OTHERS.get(name, lambda: config_lib.self_attention(name))()
    model_fields.update(fields if name in ATTENTIONS else {})
    model = models.build(model_fields, 10)
    return jax.eval_shape(
        lambda: models.initial_variables(model, jax.random.key(0), (32, 32, 3))
    )["params"]


# The owner of a kernel with more than two axes, and how many of these are inputs.
INPUTS = {"value_kernel": 2, "query_kernel": 1, "key_kernel": 1, "conv": 3}
INPUTS |= {"query": 1, "key": 1, "value": 1, "output": 2}


@pytest.mark.parametrize("name", NETWORKS)
def test_muon_takes_heads_and_windows_as_the_network_means_them(name):
    shapes = shapes_of(name, num_layers=1, num_heads=8)
    splits = {path: optim._matrix_axes(leaf.shape) for path, leaf in kernels(shapes)}
    assert splits
    for path, (inputs, outputs) in splits.items():
        *_, owner, last = ("", *(key.key for key in path))
        count = len(inputs) + len(outputs)
        assert (*inputs, *outputs) == tuple(range(count)), path
        owner = owner.rpartition("_")[2] if last == "kernel" else last
        assert len(inputs) == (1 if count == 2 else INPUTS[owner]), path


def test_a_layer_without_heads_is_updated():
    """Its values are [0, D, D]."""
    params = {"value_kernel": np.zeros((0, 4, 4), np.float32)}
    optimizer = optim.make_optimizer(config_lib.optimizer("muon"), 1.0)
    updates, _ = optimizer.update(params, optimizer.init(params), params)
    assert updates["value_kernel"].shape == (0, 4, 4)


def kernels(shapes):
    return [
        (path, leaf) for path, leaf in leaves(shapes) if path[-1].key.endswith("kernel")
    ]


@pytest.mark.parametrize(
    "name, field",
    [(n, f) for n, kind in optim.OPTIMIZERS.items() for f in kind.fields],
)
def test_a_field_of_an_optimizer_has_an_effect(name, field):
    """But its rate, which comes from the schedule."""
    fields = config_lib.optimizer(name)
    *_, before = three_steps(fields)
    value = fields[field]
    fields[field] = not value if isinstance(value, bool) else 0.9 * value
    *_, after = three_steps(fields)
    changed = [path for path in before if np.any(before[path] != after[path])]
    assert bool(changed) == (field != "learning_rate")


@pytest.mark.parametrize("name", NETWORKS)
def test_everything_decays_but_centers_and_spreads(name):
    """The first update without gradient and momentum is -rate * decay * p."""
    shapes = shapes_of(name, width=16, num_layers=2, num_heads=4, mlp_dim=8)
    params = jax.tree.map(lambda _: np.float32(1), shapes)
    zeros = jax.tree.map(lambda _: np.float32(0), params)
    fields = config_lib.base_config().optimizer
    optimizer = optim.make_optimizer(fields, 0.5)
    updates, _ = optimizer.update(zeros, optimizer.init(params), params)
    free = set()
    for path, update in leaves(updates):
        if np.any(np.asarray(update)):
            np.testing.assert_allclose(update, -0.5 * 1e-4, rtol=1e-6)
        else:
            free.add(path[-1].key)
    wanted = {"centers", "spreads"} if "quadratic" in name else set()
    assert free == wanted


@pytest.mark.parametrize("name", optim.OPTIMIZERS)
def test_decay_exclude_names_what_does_not_decay(name):
    fields = config_lib.optimizer(name)
    fields.decay_exclude = ("bias", "value_kernel")
    params = jax.tree.map(np.ones_like, small_tree(0))
    zeros = jax.tree.map(np.zeros_like, params)
    optimizer = optim.make_optimizer(fields, 1.0)
    updates, _ = optimizer.update(zeros, optimizer.init(params), params)
    free = {path[-1].key for path, u in leaves(updates) if not np.any(np.asarray(u))}
    assert free == {"bias", "value_kernel"}


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_it_learns_and_resumes_where_it_was(name, tiny_config, tmp_path):
    """84 steps; the last 14 of them again, from the checkpoint before them."""
    config = tiny_config(num_epochs=6, eval_every_epochs=6)
    config.optimizer = config_lib.optimizer(name)
    config.optimizer.learning_rate = 0.03
    config.update(checkpoint_every_steps=70, log_every_steps=14)
    config_lib.check(config)
    train.train(config, tmp_path)
    whole = checkpoint.load(tmp_path)
    losses = [x["loss"] for x in metrics.read(tmp_path) if x["split"] == "train"]
    assert losses[-1] < 0.8 * losses[0], losses
    shutil.rmtree(tmp_path / "checkpoints" / "84")
    train.train(config, tmp_path)
    again = checkpoint.load(tmp_path)
    assert whole.step == again.step == 84
    jax.tree.map(np.testing.assert_array_equal, whole.variables, again.variables)


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
    assert {path.stem for path in CONFIGS.glob("*.py")} - examples == set(PROTOCOLS)


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
