"""Bound and spread of every tensor as it is drawn (loaded weights cannot show them)."""

import functools
import re

import jax
import numpy as np
import pytest
from flax import traverse_util
from ml_collections import ConfigDict

from attn_cnn_jax import models
from attn_cnn_jax.config import resnet, san, san_hierarchical, self_attention, vit
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


def assert_truncated_normal(values, std):
    """Normal cut off at two deviations, and of deviation `std` after the cut."""
    n, cut = values.size, 2 * std / 0.87962566
    assert cut * (1 - 50 / n) < np.abs(values).max() <= cut * (1 + 1e-6)
    assert abs(values.mean()) < 5 * std / n**0.5
    assert abs(values.std() / std - 1) < 5 * 0.6 / n**0.5
    # 31.7% of a normal lie outside its deviation, of which the cut takes 4.6%.
    outside = (np.abs(values) > cut / 2).mean()
    assert abs(outside - 0.284) < 5 * 0.45 / n**0.5


def assert_constant(values, wanted):
    """Every value is `wanted`."""
    assert (values == wanted).all()


def uniform(fan_in):
    return functools.partial(assert_uniform, fan_in=fan_in)


def normal(std):
    return functools.partial(assert_normal, mean=0.0, std=std)


def constant(value):
    return functools.partial(assert_constant, wanted=value)


NORMS = (
    ("(.*/)?(.*_)?norm(_[12])?/(scale|var)", constant(1)),
    ("(.*/)?(.*_)?norm(_[12])?/(bias|mean)", constant(0)),
)


def network_rules(model):
    """What each parameter of a network should be: (pattern, check)."""
    width, heads = model.width, model.num_heads
    identity = np.eye(2) if "nonisotropic" in model.attention.name else 1.0
    position_dim = model.attention.get("position_dim", 0)

    def spreads(values):
        assert_normal(values - identity, 0.0, 0.01)

    return (
        ("embedding/.*", uniform(12)),
        (".*/attention/value_(kernel|bias)", uniform(heads * width)),
        (".*/attention/value_projection_kernel", uniform(width)),
        (".*/attention/(query|key|content|position)_(kernel|bias)", uniform(width)),
        (".*/attention/(query|key|value)/.*", uniform(width)),
        (".*/attention/(row|col)_keys", uniform(position_dim or 1)),
        (".*_embeddings", normal(1.0)),
        (".*/centers", normal(2.0)),
        (".*/spreads", spreads),
        (".*/attention_dense/.*", uniform(width)),
        (".*/mlp_in/.*", uniform(width)),
        (".*/mlp_out/.*", uniform(model.mlp_dim)),
        ("classifier/.*", uniform(width)),
        *NORMS,
    )


def check_tensors(tensors, rules):
    """Every tensor has one rule and follows it."""
    for path, values in tensors.items():
        checks = [check for pattern, check in rules if re.fullmatch(pattern, path)]
        assert len(checks) == 1, path
        try:
            checks[0](np.asarray(values, np.float64))
        except AssertionError as error:
            raise AssertionError(path) from error


def check_network(model, params):
    """The rules of a network hold."""
    tensors = traverse_util.flatten_dict(params, sep="/")
    check_tensors(tensors, network_rules(model))
    return tensors


def assert_all_differ(tensors):
    """No two tensors share their numbers."""
    drawn = [values.reshape(-1) for values in tensors.values() if values.std() > 0]
    assert len({float(values[0]) for values in drawn}) == len(drawn)


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
    assert_all_differ(tensors)


@pytest.mark.parametrize("attention", ["quadratic_nonisotropic", "learned_w_content"])
def test_the_papers_size(attention):
    model = self_attention(attention)
    model.num_layers = 1
    check_network(model, draw(model, (32, 32, 3))["params"])


@pytest.mark.parametrize("initialization", ["torch", "kaiming"])
def test_resnets(initialization):
    model = resnet("resnet10")
    model.update(width=16, initialization=initialization)
    variables = draw(model, (8, 8, 3))
    for path, values in traverse_util.flatten_dict(variables, sep="/").items():
        values = np.asarray(values, np.float64)
        if path.endswith("conv/kernel") and initialization == "kaiming":
            fan_out = values.size / values.shape[2]
            assert_normal(values, 0.0, (2 / fan_out) ** 0.5)
        elif path.endswith("conv/kernel"):
            assert_uniform(values, np.prod(values.shape[:3]))
        elif path.startswith("params/classifier/"):
            assert_uniform(values, 8 * 16)
        else:
            kind = re.fullmatch(".*norm/(scale|bias|mean|var)", path)
            assert kind, path
            assert_constant(values, 1 if kind[1] in ("scale", "var") else 0)


def collections(variables):
    """Parameters and running statistics by path."""
    merged = {}
    for collection in variables.values():
        merged |= traverse_util.flatten_dict(collection, sep="/")
    return merged


def test_values_projected_before_mixing():
    model = self_attention("learned_w_content_report")
    model.update(width=16, num_layers=2, num_heads=4, mlp_dim=20, share_weights=True)
    model.attention.project_values = True
    params = draw(model, (4, 8, 3), num_seeds=100)["params"]
    tensors = check_network(model, params)
    assert "block/attention/value_projection_kernel" in tensors
    assert not any(re.search("(query|key)_bias|attention_dense", p) for p in tensors)
    assert_all_differ(tensors)


def bottleneck_rules(prefix, width, attention, kernel_size):
    """One block of a SAN, `prefix` a pattern."""
    relation, planes, taps = width // 16, width // 32, kernel_size**2
    pairwise = attention == "pairwise"
    inside = f"{prefix}/attention"
    return (
        (f"{inside}/(query|key|value)/(kernel|bias)", uniform(width)),
        (f"{inside}/position/(kernel|bias)", uniform(2)),
        (
            f"{inside}/relation_dense/kernel",
            uniform(relation + 2 if pairwise else relation * (taps + 1)),
        ),
        (
            f"{inside}/weight_dense/(kernel|bias)",
            uniform(relation if pairwise else planes),
        ),
        (f"{prefix}/expand/(kernel|bias)", uniform(width // 4)),
    )


@pytest.mark.parametrize("attention", ["pairwise", "patchwise"])
def test_sans(attention):
    model = san(attention)
    model.update(widths=(32, 96), num_blocks=(1, 1), kernel_sizes=(5, 3))
    tensors = collections(draw(model, (16, 16, 3), num_seeds=30))
    check_tensors(
        tensors,
        (
            ("stem_conv/kernel", uniform(3)),
            ("stage_[01]_conv/kernel", uniform(32)),  # of what comes in
            *bottleneck_rules("stage_0_block_0", 32, attention, 5),
            *bottleneck_rules("stage_1_block_0", 96, attention, 3),
            ("classifier/(kernel|bias)", uniform(96)),
            *NORMS,
        ),
    )
    assert_all_differ(tensors)
    biases = {p for p in tensors if re.search("(query|key|value)/bias", p)}
    assert len(biases) == 2 * 3


@pytest.mark.parametrize("attention", ["pairwise", "patchwise"])
def test_hierarchical_sans(attention):
    model = san_hierarchical(attention)
    model.update(width=64, num_passes=3)
    tensors = collections(draw(model, (4, 4, 3), num_seeds=30))
    check_tensors(
        tensors,
        (
            ("stem_conv/kernel", uniform(3)),
            ("pass_[012]_conv/kernel", uniform(64)),
            *bottleneck_rules("block_[01]", 64, attention, 3),
            ("classifier/(kernel|bias)", uniform(64)),
            *NORMS,
        ),
    )
    assert_all_differ(tensors)
    assert not any(re.search("(query|key|value)/bias", path) for path in tensors)
    assert "block_1/attention/key/kernel" in tensors  # counted, never used


def small_vit(kind):
    """Sizes with a fan-in that tells each kind of tensor from the others."""
    model = vit(kind)
    model.update(stem_width=8, width=20, num_layers=1, num_heads=3)
    model.update(head_dim=10, mlp_dim=28)
    return model


# The stem's convolution is drawn as PyTorch does it, its blocks as torchvision does.
STEM = (
    ("stem/conv/kernel", uniform(3 * 9)),
    ("stem/block_[01]/[12]_conv/kernel", normal((2 / (8 * 9)) ** 0.5)),
)


def test_the_reports_vision_transformer():
    tensors = collections(draw(small_vit("report"), (8, 8, 3), num_seeds=60))
    check_tensors(
        tensors,
        (
            *STEM,
            ("embedding/(kernel|bias)", uniform(8 * 4)),
            ("positions", normal(1.0)),
            ("block_0/attention/(query|key|value)/kernel", uniform(20)),
            ("block_0/attention/output/(kernel|bias)", uniform(30)),
            ("block_0/mlp_in/(kernel|bias)", uniform(20)),
            ("block_0/mlp_out/(kernel|bias)", uniform(28)),
            ("classifier/(kernel|bias)", uniform(20)),
            *NORMS,
        ),
    )
    assert_all_differ(tensors)


def xavier(fan_in, fan_out):
    """U(-a, a) with a^2 = 6 / (fan_in + fan_out)."""
    return uniform((fan_in + fan_out) / 6)


def test_the_standard_vision_transformer():
    tensors = collections(draw(small_vit("standard"), (8, 8, 3), num_seeds=60))
    check_tensors(
        tensors,
        (
            *STEM,
            (
                "embedding/kernel",
                functools.partial(assert_truncated_normal, std=(1 / 32) ** 0.5),
            ),
            ("embedding/bias", constant(0)),
            ("class_token", constant(0)),
            ("positions", normal(0.02)),
            ("block_0/attention/(query|key|value)/kernel", xavier(20, 30)),
            ("block_0/attention/output/kernel", xavier(30, 20)),
            ("block_0/attention/(query|key|value|output)/bias", constant(0)),
            ("block_0/mlp_in/kernel", xavier(20, 28)),
            ("block_0/mlp_out/kernel", xavier(28, 20)),
            ("block_0/mlp_(in|out)/bias", normal(1e-6)),
            ("classifier/(kernel|bias)", constant(0)),
            *NORMS,
        ),
    )
    assert_all_differ(tensors)
