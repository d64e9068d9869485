"""Heads that differ by layer: the config, the network, layers without any."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import flags
from ml_collections import config_flags

from attn_cnn_jax import checkpoint, models
from attn_cnn_jax import config as config_lib
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.interop import from_attention_cnn, to_attention_cnn
from attn_cnn_jax.models.attention import ATTENTIONS, layer_class
from attn_cnn_jax.models.flops import paper_flops, program_flops
from attn_cnn_jax.models.layers import sown_layers

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.py"
OWN_HEADS = sorted(set(ATTENTIONS) - {"multi_head"})
# Of the original: these the other code has too.
# One whose maps do not depend on the image, one that factorises them, one with content.
KINDS = ["quadratic_nonisotropic", "learned_wo_content", "learned_w_content_report"]
ORIGINALS = [
    name
    for name in OWN_HEADS
    if not name.endswith("_report") and name.startswith(("quadratic", "learned"))
]


def network(attention, num_heads, **fields):
    """A config of a small network."""
    config = config_lib.base_config()
    config.model = config_lib.self_attention(attention)
    num_layers = len(num_heads) if isinstance(num_heads, tuple) else 3
    config.model.update(width=8, num_layers=num_layers, mlp_dim=6)
    config.model.num_heads = num_heads
    config.model.update(fields)
    config_lib.check(config)
    return config


def drawn(config, seed=0, side=8):
    """The module and random variables."""
    model = models.build(config.model, 10)
    shapes = jax.eval_shape(
        lambda: models.initial_variables(model, jax.random.key(0), (side, side, 3))
    )
    rng = np.random.default_rng(seed)
    return model, jax.tree.map(
        lambda s: (0.5 * rng.normal(size=s.shape)).astype(s.dtype), shapes
    )


def images(count=2, side=8):
    shape = (count, side, side, 3)
    return jnp.asarray(np.random.default_rng(1).normal(size=shape), jnp.float32)


def evaluated(jit, model, variables):
    """The logits of some images."""
    return jit(lambda v, x: model.apply(v, x, train=False))(variables, images())


def count(config):
    shapes = jax.eval_shape(lambda: drawn_at_start(config, (32, 32, 3)))
    return models.count_parameters(shapes)


def drawn_at_start(config, shape):
    model = models.build(config.model, 10)
    return models.initial_variables(model, jax.random.key(0), shape)


def test_equal_numbers_are_one_number():
    one, three = (network("quadratic_isotropic", n) for n in (2, (2, 2, 2)))
    first, second = (drawn_at_start(c, (8, 8, 3)) for c in (one, three))
    jax.tree.map(np.testing.assert_array_equal, first, second)


@pytest.mark.parametrize("attention", KINDS)
def test_layers_have_their_own_heads(attention, quick_jit):
    config = network(attention, (3, 0, 1))
    model, variables = drawn(config)

    @quick_jit
    def seen(variables, images):
        return model.apply(variables, images, train=False, mutable=["intermediates"])

    logits, sown = seen(variables, images())
    assert np.isfinite(logits).all()
    layers = sown_layers(sown["intermediates"], "self_attention")
    assert [name for name, _ in layers] == ["layer 1", "layer 2", "layer 3"]
    assert [probs.shape[1] for _, probs in layers] == [3, 0, 1]
    assert layers[1][1].shape == (1, 0, 4, 4, 4, 4)


@pytest.mark.parametrize("attention", KINDS)
def test_without_heads_the_bias_of_the_values_is_left(attention, quick_jit):
    """Any layer whose value kernel is zero computes it, and nothing is drawn of it."""
    none, one = network(attention, (0,)), network(attention, (1,))
    model, full = drawn(one)
    layer = full["params"]["block_0"]["attention"]
    layer["value_kernel"] *= 0
    expected = evaluated(quick_jit, model, full)
    pruned, start = models.build(none.model, 10), drawn_at_start(none, (8, 8, 3))
    left = start["params"]["block_0"]["attention"]
    assert set(left) == {"value_bias"} and not left["value_bias"].any()
    full["params"]["block_0"]["attention"] = {"value_bias": layer["value_bias"]}
    logits = evaluated(quick_jit, pruned, full)
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)
    full["params"]["block_0"]["attention"] = {"value_bias": -3 * layer["value_bias"]}
    assert not np.allclose(evaluated(quick_jit, pruned, full), logits)


def test_a_layer_without_heads_trains(quick_jit):
    model, variables = drawn(network("quadratic_isotropic", (2, 0)))

    def loss(params):
        rngs = {"dropout": jax.random.key(0)}
        logits = model.apply({"params": params}, images(), train=True, rngs=rngs)
        return jnp.square(logits).sum()

    grads = quick_jit(jax.grad(loss))(variables["params"])
    assert np.abs(grads["block_1"]["attention"]["value_bias"]).max() > 0


def test_flops_count_the_heads_that_are_there():
    def flops(num_heads):
        model, variables = drawn(network("quadratic_isotropic", num_heads))
        program = program_flops(
            lambda v, x: model.apply(v, x, train=False), variables, images(1)
        )
        return paper_flops(model, variables, (8, 8, 3)), program

    paper = [flops(n)[0] for n in ((2, 2), (2, 1), (2, 0))]
    assert paper[0] - paper[1] == paper[1] - paper[2] == 2 * 16 * 8 * 8
    programs = [flops(n)[1] for n in ((2, 2), (2, 1), (2, 0))]
    assert programs[0] > programs[1] > programs[2]


PROJECTING = [a for a in OWN_HEADS if "project_values" in ATTENTIONS[a].fields]


@pytest.mark.parametrize(
    "attention, projects",
    [*((a, False) for a in OWN_HEADS), *((a, True) for a in PROJECTING)],
)
def test_the_axes_of_heads_are_those_that_grow_with_them(attention, projects):
    def layer(num_heads):
        config = network(attention, num_heads, num_layers=1)
        if projects:
            config.model.attention.project_values = True
        _, variables = drawn(config)
        return variables["params"]["block_0"]["attention"]

    two, five = layer(2), layer(5)
    assert two.keys() == five.keys()
    facts = layer_class(ATTENTIONS[attention].layer).parameters
    for name, array in two.items():
        grown = [a for a in range(array.ndim) if array.shape[a] != five[name].shape[a]]
        axis = facts[name].head_axis
        assert grown == ([] if axis is None else [axis])
        assert all(array.shape[a] == 2 for a in grown)


def test_a_removed_head_of_the_published_network_is_160_006_parameters():
    config = config_lib.base_config()
    config.model = config_lib.self_attention("quadratic_nonisotropic")
    assert count(config) == 12_087_006
    config.model.num_heads = (9, 8, 9, 7, 9, 9)
    assert count(config) == 12_087_006 - 3 * 160_006
    config.model.num_heads = (9, 0, 9, 9, 9, 9)
    assert count(config) == 12_087_006 - 9 * 160_006
    config.model = config_lib.self_attention("quadratic_isotropic")
    config.model.num_heads = (9, 8, 9, 9, 9, 9)
    assert count(config) == 12_086_844 - 160_003


@pytest.mark.parametrize(
    "model, field, value, match",
    [
        ("quadratic_isotropic", "num_heads", (9, 9), "one for each .*num_layers .6."),
        ("quadratic_isotropic", "num_heads", (9,) * 5 + (-1,), "one whole number"),
        ("quadratic_isotropic", "num_heads", (9,) * 5 + (8.0,), "one whole number"),
        ("quadratic_isotropic", "num_heads", (9,) * 5 + (True,), "one whole number"),
        ("quadratic_isotropic", "num_heads", (), "one whole number"),
        ("quadratic_isotropic", "num_heads", [9] * 6, "of type int or tuple"),
        ("quadratic_isotropic", "num_heads", "9", "of type int or tuple"),
        ("quadratic_isotropic", "num_heads", 0, "at least 1"),
        ("multi_head", "num_heads", (8, 8, 8, 8, 8, 9), "a divisor of .*width .400."),
        ("multi_head", "num_heads", (8, 8, 8, 8, 8, 0), "a divisor of .*width .400."),
        ("vit", "num_heads", (9,) * 6, "of type int"),
    ],
)
def test_what_is_no_number_of_heads_is_named(model, field, value, match):
    config = config_lib.base_config()
    vit = model == "vit"
    config.model = config_lib.vit() if vit else config_lib.self_attention(model)
    with config.ignore_type():
        config.model[field] = value
    with pytest.raises(UserError, match=f"config.model.num_heads is .*{match}") as e:
        config_lib.check(config)
    assert "\n" not in str(e.value)


def test_shared_weights_have_one_number():
    config = network("quadratic_isotropic", 2, share_weights=True)
    config.model.num_heads = (2, 2, 2)
    with pytest.raises(UserError, match="num_heads is .*one number where .*share"):
        config_lib.check(config)
    for fields in ({}, {"share_weights": False, "num_layers": 2}):
        config.model.update(fields)
        with pytest.raises(models.ModelError, match="num_heads"):
            drawn_at_start(config, (8, 8, 3))


def test_multi_head_divides_the_width_layer_by_layer():
    config = network("multi_head", (1, 2, 4))
    _, variables = drawn(config)
    kernels = [
        variables["params"][f"block_{i}"]["attention"]["key"]["kernel"].shape
        for i in range(3)
    ]
    assert kernels == [(8, 1, 8), (8, 2, 4), (8, 4, 2)]


def test_json_keeps_the_tuple(tmp_path):
    config = network("quadratic_isotropic", (2, 0, 1))
    again = config_lib.from_dict(json.loads(config_lib.to_json(config)))
    config_lib.check(again)
    assert again.model.num_heads == (2, 0, 1)
    assert config_lib.differences(config, again) == []
    other = network("quadratic_isotropic", (2, 1, 1))
    assert config_lib.differences(config, other) == [
        "model.num_heads: (2, 0, 1) -> (2, 1, 1)"
    ]
    _, variables = drawn(config)
    checkpoint.write_variables(tmp_path / "run", config, variables)
    loaded = checkpoint.load(tmp_path / "run")
    assert loaded.config.model.num_heads == (2, 0, 1)
    jax.tree.map(np.testing.assert_array_equal, loaded.variables, variables)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # how ml_collections loads
@pytest.mark.parametrize(
    "text, value", [("8", 8), ("(9,8,9)", (9, 8, 9)), ("(0, 0, 3)", (0, 0, 3))]
)
def test_the_command_line_takes_one_number_or_a_tuple(
    tmp_path, monkeypatch, text, value
):
    file = tmp_path / "three_layers.py"
    file.write_text(
        "from attn_cnn_jax.config import base_config, self_attention\n"
        "def get_config():\n"
        "    config = base_config()\n"
        "    config.model = self_attention('quadratic_isotropic')\n"
        "    config.model.update(num_layers=3)\n"
        "    return config\n"
    )
    values = flags.FlagValues()
    holder = config_flags.DEFINE_config_file("config", flag_values=values)
    argv = ["main", f"--config={file}", f"--config.model.num_heads={text}"]
    monkeypatch.setattr(sys, "argv", argv)
    values(argv)
    config = holder.value
    config_lib.check(config)
    assert config.model.num_heads == value


@pytest.mark.parametrize("attention", ORIGINALS)
def test_pruned_layers_go_to_the_original_and_back(attention):
    config = network(attention, (3, 1, 2))
    _, variables = drawn(config, side=2)
    state = to_attention_cnn(variables, config.model)
    assert state["encoder.layer.1.attention.self.value.weight"].shape == (8, 8)
    again = from_attention_cnn(state, config.model)
    jax.tree.map(np.testing.assert_array_equal, again, variables)
    other = network(attention, (3, 2, 1))
    with pytest.raises(UserError, match="does not fit the config: .*layer.1") as error:
        from_attention_cnn(state, other.model)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="layer.1.* is left over"):
        from_attention_cnn(state, network(attention, (3, 0, 2)).model)


def test_the_flag_reaches_main_as_it_is(tmp_path):
    """A wrong number of layers is told in a line; nothing is written."""
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "attn_cnn_jax.main",
            f"--config={QUICKSTART}",
            "--config.model.num_heads=(9,8,7)",
            f"--workdir={tmp_path / 'run'}",
        ],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2
    assert result.stderr.startswith("error: config.model.num_heads is (9, 8, 7); ")
    assert result.stderr.count("\n") == 1 and not (tmp_path / "run").exists()
