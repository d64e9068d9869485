"""Bound and spread of every tensor as it is drawn (loaded weights cannot show them)."""

import functools
import re

import jax
import numpy as np
import pytest
from flax import traverse_util
from ml_collections import ConfigDict

from attn_cnn_jax import models
from attn_cnn_jax.config import resnet, self_attention
from attn_cnn_jax.models.attention import ATTENTIONS


def assert_uniform(values, fan_in):
    """U(-1 / sqrt(fan_in), 1 / sqrt(fan_in)), by bound, mean and standard deviation."""
    bound, n = fan_in**-0.5, values.size
    largest = np.abs(values).max()
    assert bound * (1 - 15 / n) <= largest <= bound * (1 + 1e-6)
    std = bound / 3**0.5
    assert abs(values.mean()) < 5 * std / n**0.5
    assert abs(values.std() / std - 1) < 5 * 0.45 / n**0.5


def assert_normal(values, mean, std):
    """N(mean, std^2), by mean and standard deviation."""
    n = values.size
    assert abs(values.mean() - mean) < 5 * std / n**0.5
    assert abs(values.std() / std - 1) < 5 * 0.71 / n**0.5
    # Not cut off, and not of another shape: 31.7% lie outside one deviation.
    outside = (np.abs(values - mean) > std).mean()
    assert abs(outside - 0.317) < 5 * 0.47 / n**0.5


def assert_constant(values, wanted):
    """Every value is `wanted`."""
    assert (values == wanted).all()


def network_rules(model):
    """What each parameter of a network should be: (pattern, check)."""
    width, heads = model.width, model.num_heads
    identity = np.eye(2) if "nonisotropic" in model.attention.name else 1.0
    position_dim = model.attention.get("position_dim", 0)

    def uniform(fan_in):
        return functools.partial(assert_uniform, fan_in=fan_in)

    def spreads(values):
        assert_normal(values - identity, 0.0, 0.01)

    return (
        ("embedding/.*", uniform(12)),
        (".*/attention/value_.*", uniform(heads * width)),
        (".*/attention/(query|key)_(kernel|bias)", uniform(width)),
        (".*/attention/(query|key|value)/.*", uniform(width)),
        (".*/attention/(row|col)_keys", uniform(position_dim or 1)),
        (".*_embeddings", functools.partial(assert_normal, mean=0.0, std=1.0)),
        (".*/centers", functools.partial(assert_normal, mean=0.0, std=2.0)),
        (".*/spreads", spreads),
        (".*/attention_dense/.*", uniform(width)),
        (".*/mlp_in/.*", uniform(width)),
        (".*/mlp_out/.*", uniform(model.mlp_dim)),
        ("classifier/.*", uniform(width)),
        (".*_norm/scale", functools.partial(assert_constant, wanted=1)),
        (".*_norm/bias", functools.partial(assert_constant, wanted=0)),
    )


def check_network(model, params):
    """Every tensor has one rule and follows it."""
    tensors = traverse_util.flatten_dict(params, sep="/")
    for path, values in tensors.items():
        checks = [c for p, c in network_rules(model) if re.fullmatch(p, path)]
        assert len(checks) == 1, path
        try:
            checks[0](np.asarray(values, np.float64))
        except AssertionError as error:
            raise AssertionError(f"{model.attention.name}: {path}") from error
    return tensors


def draw(model, image_shape, num_seeds=None):
    """Initial variables, of many seeds at once where asked for."""
    init = functools.partial(
        models.initial_variables, models.build(model, 10), image_shape=image_shape
    )
    rngs = jax.random.key(0)
    if num_seeds:
        rngs = jax.random.key(0, impl="unsafe_rbg")  # compiles in half the time
        init, rngs = jax.vmap(init), jax.random.split(rngs, num_seeds)
    return jax.jit(init, compiler_options={"xla_backend_optimization_level": 0})(rngs)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_small_networks(attention):
    # Sizes with a fan-in that tells each kind of tensor from the others.
    model = self_attention(attention)
    model.update(width=16, num_layers=1, num_heads=4, mlp_dim=20)
    model = ConfigDict(model.to_dict())  # position_dim no longer follows width
    if "position_dim" in model.attention:
        model.attention.position_dim = 6
    tensors = check_network(model, draw(model, (4, 8, 3), num_seeds=100)["params"])
    drawn = [values.reshape(-1) for values in tensors.values() if values.std() > 0]
    firsts = {float(values[0]) for values in drawn}
    assert len(firsts) == len(drawn)  # no two tensors share their numbers


@pytest.mark.parametrize("attention", ["quadratic_nonisotropic", "learned_w_content"])
def test_the_papers_size(attention):
    model = self_attention(attention)
    model.num_layers = 1
    check_network(model, draw(model, (32, 32, 3))["params"])


def test_resnets():
    model = resnet("resnet10")
    model.width = 16
    variables = draw(model, (8, 8, 3))
    for path, values in traverse_util.flatten_dict(variables, sep="/").items():
        values = np.asarray(values, np.float64)
        if path.endswith("conv/kernel"):
            assert_uniform(values, np.prod(values.shape[:3]))
        elif path.startswith("params/classifier/"):
            assert_uniform(values, 8 * 16)
        else:
            kind = re.fullmatch(".*norm/(scale|bias|mean|var)", path)
            assert kind, path
            assert_constant(values, 1 if kind[1] in ("scale", "var") else 0)
