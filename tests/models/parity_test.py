"""Our models against the numbers of the original PyTorch code (fixtures/README.md)."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from attn_cnn_jax import models
from attn_cnn_jax.config import base_config, resnet, self_attention
from attn_cnn_jax.interop import from_attention_cnn, to_attention_cnn
from attn_cnn_jax.interop.state_files import read_state
from attn_cnn_jax.optim import make_optimizer

FIXTURES = Path(__file__).parents[1] / "fixtures"
ATTENTION = {
    "quadratic_isotropic": "quadratic_isotropic",
    "learned_with_content": "learned_w_content",
}
NAMES = (*ATTENTION, "resnet18")
# Compiles fast; but the convolutions would run slowly.
QUICK = {name: {"xla_backend_optimization_level": 0} for name in ATTENTION}
# Of the largest value of a tensor.
F64, STORED_AS_F32, F32, F32_GRADIENTS = 1e-9, 1e-7, 1e-5, 1e-4


def full_model(name, compute_dtype):
    """The `config.model` of the paper's size."""
    attention = ATTENTION.get(name)
    model = self_attention(attention) if attention else resnet(name)
    model.compute_dtype = compute_dtype
    return model


def small_model(name, compute_dtype, **changes):
    """The `config.model` of a small fixture."""
    model = full_model(name, compute_dtype)
    if name in ATTENTION:
        model.update(num_layers=2, width=32, mlp_dim=40, **changes)
    else:
        model.width = 8
    return model


@functools.cache
def fixture(name):
    """The arrays of a fixture by name."""
    with np.load(FIXTURES / f"{name}.npz", allow_pickle=False) as arrays:
        return dict(arrays)


def batch(reference, dtype):
    """Images [B, H, W, C] and labels."""
    images = reference["input"].transpose(0, 2, 3, 1)
    return jnp.asarray(images, dtype), jnp.asarray(reference["labels"])


def cross_entropy(logits, labels):
    """Mean over the batch."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def run(config_model, variables, images, labels, options=None):
    """Logits, loss, attention of every layer and gradients (PyTorch names), eval."""
    model = models.build(config_model, 10)
    rest = {name: value for name, value in variables.items() if name != "params"}

    @functools.partial(jax.jit, compiler_options=options)
    @functools.partial(jax.value_and_grad, has_aux=True)
    def loss_and_gradients(params):
        logits, captured = model.apply(
            {**rest, "params": params}, images, train=False, mutable=["intermediates"]
        )
        return cross_entropy(logits, labels), (logits, captured)

    (loss, (logits, captured)), grads = loss_and_gradients(variables["params"])
    layers = captured.get("intermediates", {})
    return {
        "loss": float(loss),
        "logits": np.asarray(logits),
        "attention": [
            np.asarray(layers[f"block_{i}"]["attention"]["attention"][0])
            for i in range(len(layers))
        ],
        "gradients": to_attention_cnn({**rest, "params": grads}, config_model),
    }


@functools.cache
def small_run(name, compute_dtype):
    """What a small instance computes; 64-bit types are on for float64 alone."""
    with jax.enable_x64(compute_dtype == "float64"):
        config_model = small_model(name, compute_dtype)
        variables = from_attention_cnn(
            read_state(FIXTURES / f"{name}.npz"), config_model
        )
        inputs = batch(fixture(name), compute_dtype)
        return run(config_model, variables, *inputs, QUICK.get(name))


def assert_close(actual, wanted, tolerance):
    """Equal up to `tolerance` times the largest wanted value."""
    actual, wanted = np.asarray(actual), np.asarray(wanted)
    assert actual.shape == wanted.shape
    largest = np.abs(wanted).max()
    assert largest > 0
    assert np.abs(actual - wanted).max() <= tolerance * largest


def sample(reference, array):
    """What is kept of an array (see fixtures/README.md)."""
    size, step = reference["sampling"]
    return array.reshape(-1)[::step] if array.size > size else array


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_loss_equal_the_originals(name):
    reference = fixture(name)
    single, double = small_run(name, "float32"), small_run(name, "float64")
    assert single["logits"].dtype == np.float32
    assert double["logits"].dtype == np.float64
    assert_close(single["logits"], reference["logits_f32"], F32)
    assert_close(double["logits"], reference["logits_f64"], F64)
    assert_close(single["loss"], reference["loss_f64"], F32)
    assert_close(double["loss"], reference["loss_f64"], F64)


@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize("dtype, tolerance", [("float32", F32), ("float64", F64)])
def test_attention_of_every_layer_equals_the_originals(name, dtype, tolerance):
    reference = fixture(name)
    layers = small_run(name, dtype)["attention"]
    assert len(layers) == 2
    for i, probs in enumerate(layers):
        probs = probs.transpose(0, 2, 3, 1, 4, 5)  # theirs: [B, i, j, head, k, l]
        wanted = reference[f"attention_probs/layer{i}"]
        assert_close(sample(reference, probs), wanted, tolerance)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_equal_the_originals(name, dtype):
    reference = fixture(name)
    exact = STORED_AS_F32 if name == "resnet18" else F64
    tolerance = exact if dtype == "float64" else F32_GRADIENTS
    gradients = small_run(name, dtype)["gradients"]
    names = [key.removeprefix("grad/") for key in reference if key.startswith("grad/")]
    assert len(names) >= 32
    for key in names:
        actual, wanted = gradients[key], reference[f"grad/{key}"]
        if key.endswith("key.bias"):  # does not matter: zero up to rounding
            assert np.abs(wanted).max() < 1e-12 and np.abs(actual).max() < 1e-12
        else:
            assert_close(sample(reference, actual), wanted, tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_three_training_steps_equal_the_originals(name, x64):
    reference = fixture(name)
    config_model = small_model(
        name, "float64", dropout_rate=0.0, attention={"dropout_rate": 0.0}
    )
    model = models.build(config_model, 10)
    rate, momentum, decay = map(float, reference["sgd3/hyper_lr_momentum_wd"])
    optimizer_config = base_config().optimizer
    optimizer_config.update(momentum=momentum, weight_decay=decay)
    optimizer = make_optimizer(optimizer_config, rate)
    images, labels = batch(reference, "float64")
    variables = from_attention_cnn(read_state(FIXTURES / f"{name}.npz"), config_model)
    params = variables.pop("params")

    @functools.partial(jax.jit, compiler_options=QUICK.get(name))
    def step(params, stats, state):
        def loss(params):
            logits, moved = model.apply(
                {**stats, "params": params}, images, train=True, mutable=[*stats]
            )
            return cross_entropy(logits, labels), moved

        (value, moved), grads = jax.value_and_grad(loss, has_aux=True)(params)
        updates, state = optimizer.update(grads, state, params)
        return value, optax.apply_updates(params, updates), moved, state

    stats, state, losses = variables, optimizer.init(params), []
    for _ in range(3):
        value, params, stats, state = step(params, stats, state)
        losses.append(value)
    after = {**stats, "params": params}
    assert_close(losses, reference["sgd3/losses"], F64)
    evaluate = jax.jit(functools.partial(model.apply, train=False))
    logits = evaluate(after, images)
    assert_close(logits, reference["sgd3/logits_eval_after"], F64)
    tensors = to_attention_cnn(after, config_model)
    checked = set()
    for key, wanted in reference.items():
        what, _, tensor = key.removeprefix("sgd3/").partition("/")
        if what == "param_l2_after":
            assert_close(np.linalg.norm(tensors[tensor]), wanted, F64)
        elif what == "param_after":
            assert_close(tensors[tensor], wanted, F64)
        elif what == "buffer_after":
            assert_close(tensors[tensor], wanted, STORED_AS_F32)
        checked.update({tensor} if key.startswith("sgd3/") else ())
    assert checked >= set(tensors)


def hashed(k, size):
    """`size` values of the formula in fixtures/README.md."""
    with np.errstate(over="ignore"):
        x = np.arange(size, dtype=np.uint32) * np.uint32(0x9E3779B1)
        x += np.uint32((k + 1) * 0x85EBCA77 % 2**32)
        x ^= x >> np.uint32(16)
        x *= np.uint32(0x7FEB352D)
        x ^= x >> np.uint32(15)
        x *= np.uint32(0x846CA68B)
        x ^= x >> np.uint32(16)
    return x / 2**32 * 2 - 1


def full_inputs(reference):
    """State, images and labels of a full-size instance."""
    state = {}
    for k, name in enumerate(reference["param_names"]):
        text = str(reference["param_shapes"][k])
        shape = tuple(int(n) for n in text.split(",") if n)
        values = hashed(k, int(np.prod(shape)))
        values = reference["param_base"][k] + reference["param_amp"][k] * values
        state[str(name)] = values.astype(np.float32).reshape(shape)
        first = state[str(name)].reshape(-1)[:4]
        np.testing.assert_array_equal(first, reference["param_first4"][k][: first.size])
    images = (1.7 * hashed(1000, 2 * 3 * 32 * 32)).astype(np.float32)
    np.testing.assert_array_equal(images[:8], reference["input_first8"])
    return state, images.reshape(2, 3, 32, 32), reference["labels"]


@pytest.mark.parametrize("name", NAMES)
def test_the_papers_size_equals_the_originals(name, x64):
    reference = fixture(f"full_{name}")
    state, images, labels = full_inputs(reference)
    config_model = full_model(name, "float64")
    variables = from_attention_cnn(state, config_model)
    inputs = batch({"input": images, "labels": labels}, "float64")
    actual = run(config_model, variables, *inputs)
    assert_close(actual["logits"], reference["logits_f64"], F64)
    assert_close(actual["loss"], reference["loss_f64"], F64)
    assert len(reference["grad_names"]) >= 62
    for k, key in enumerate(reference["grad_names"]):
        gradient = actual["gradients"][str(key)].reshape(-1)
        l2, first = reference["grad_l2"][k], reference["grad_first8"][k]
        if str(key).endswith("key.bias"):
            assert l2 < 1e-12 and np.abs(gradient).max() < 1e-12
            continue
        assert_close(np.linalg.norm(gradient), l2, F64)
        error = abs(gradient.sum() - reference["grad_sum"][k])
        assert error <= F64 * l2 * gradient.size**0.5
        error = np.abs(gradient[:8] - first[: gradient.size]).max()
        assert error <= F64 * np.abs(gradient).max()
