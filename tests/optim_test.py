"""Each optimizer against its formula in NumPy, what decays, and that it learns."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from ml_collections import ConfigDict

from attn_cnn_jax import checkpoint, models, optim, records, train
from attn_cnn_jax import config as config_lib
from attn_cnn_jax.models.attention import ATTENTIONS


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
INPUTS |= {"position_kernel": 1, "query": 1, "key": 1, "value": 1, "output": 2}


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


def test_it_learns_and_resumes_where_it_was(tiny_config, tmp_path):
    """84 steps; the last 14 of them again, from the checkpoint before them.

    Muon keeps Adam's state, too, for what is no matrix.
    """
    config = tiny_config(num_epochs=6, eval_every_epochs=6)
    config.optimizer = config_lib.optimizer("muon")
    config.optimizer.learning_rate = 0.03
    config.update(checkpoint_every_steps=70, log_every_steps=14)
    config_lib.check(config)
    train.train(config, tmp_path)
    whole = checkpoint.load(tmp_path)
    losses = [x["loss"] for x in records.read(tmp_path) if x["split"] == "train"]
    assert losses[-1] < 0.8 * losses[0], losses
    shutil.rmtree(tmp_path / "checkpoints" / "84")
    train.train(config, tmp_path)
    again = checkpoint.load(tmp_path)
    assert whole.step == again.step == 84
    jax.tree.map(np.testing.assert_array_equal, whole.variables, again.variables)
