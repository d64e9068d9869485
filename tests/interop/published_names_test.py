"""States with the names that the report's published modules give their tensors."""

import functools
import json
import re
import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_cnn_jax import models
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.interop import from_report

ROOT = Path(__file__).parents[2]
NAMES = json.loads((ROOT / "tests/fixtures/report_state_names.json").read_text())
# The config of each network in the fixture, and the number of its parameters.
NETWORKS = {
    "hierarchical SAN pair_hier": ("san_pairwise_ha", 352_750),
    "hierarchical SAN patch_hier": ("san_patchwise_ha", 356_282),
    "vit shared": ("vit_ha", 6_531_946),
    "vit unshared": ("vit", 37_394_506),
    "learned with content shared": ("learned_w_content_ha", 4_754_122),
    "learned with content unshared": ("learned_w_content_report", 28_478_682),
}
# The short names of the parity fixtures, one rewriting after the other.
SHORT_NAMES = (
    (r"^resnet\.", "stem."),
    (r"^block\.", "blocks.0."),
    (r"^(enc_layer\.\d)\.attention\.", r"\1.sam."),
)
LEARNED_SHORT_NAMES = (
    (r"\.feedfwd\.layer_norm\.", ".layer_norm2."),
    (r"\.(attention|feedfwd)\.", "."),
)
LEARNED = "learned with content shared"


@functools.cache
def config_model(network):
    path = ROOT / f"configs/{NETWORKS[network][0]}.py"
    return runpy.run_path(str(path))["get_config"]().model


def published_state(network):
    """A saved file: modules to names to random numbers, buffers included."""
    rng = np.random.default_rng(0)
    return {
        module: {
            name: rng.standard_normal(shape, np.float32)
            if name.rpartition(".")[2]
            not in ("num_batches_tracked", "relative_indices")
            else np.zeros(shape, np.int64)
            for name, shape in shapes.items()
        }
        for module, shapes in NAMES[network].items()
    }


def merged(state):
    """The tensors of all modules."""
    return {name: value for names in state.values() for name, value in names.items()}


def short_names(network, state):
    learned = LEARNED_SHORT_NAMES if network.startswith("learned") else ()
    short = {}
    for name, value in merged(state).items():
        for pattern, replacement in (*SHORT_NAMES, *learned):
            name = re.sub(pattern, replacement, name)
        short[name] = value
    return short


def assert_same_variables(ours, reference):
    assert jax.tree.structure(ours) == jax.tree.structure(reference)
    jax.tree.map(np.testing.assert_array_equal, ours, reference)


def test_every_network_of_the_fixture_is_tested():
    assert NETWORKS.keys() == NAMES.keys()


@pytest.mark.parametrize("network", NETWORKS)
def test_a_saved_file_gives_the_variables_of_the_short_names(network):
    state = published_state(network)
    variables = from_report(state, config_model(network))
    short = from_report(short_names(network, state), config_model(network))
    assert_same_variables(variables, short)
    assert models.count_parameters(variables) == NETWORKS[network][1]
    model = models.build(config_model(network), 10)
    logits = jax.eval_shape(
        lambda v, x: model.apply(v, x, train=False),
        variables,
        jax.ShapeDtypeStruct((2, 32, 32, 3), jnp.float32),
    )
    assert logits.shape == (2, 10)


def named(module_name):
    """The states of all modules as one, a name made of a module's and a tensor's."""
    return lambda state: {
        module_name(module, name): value
        for module, names in state.items()
        for name, value in names.items()
    }


@pytest.mark.parametrize(
    "network, change",
    [
        (LEARNED, merged),
        (LEARNED, named("{}/{}".format)),
        (LEARNED, named("{}.{}".format)),
        (LEARNED, named("{}/module.{}".format)),
        ("vit shared", named("{}/{}".format)),
        ("hierarchical SAN pair_hier", named("{}.{}".format)),
        # The code itself calls that module's state otherwise than the fixture does.
        ("vit shared", lambda s: {**s, "patch": {}, "patcher": s["patch"]}),
        # Its file to resume from holds more than weights.
        (LEARNED, lambda s: {**s, "epoch": 3, "optim": {"state": {0: {}}}}),
    ],
    ids=[
        "merged",
        "slash",
        "dot",
        "DataParallel",
        "vit, slash",
        "san, dot",
        "patcher",
        "last state",
    ],
)
def test_modules_are_nested_joined_or_merged(network, change):
    state = published_state(network)
    variables = from_report(change(state), config_model(network))
    assert_same_variables(variables, from_report(state, config_model(network)))


CHANGES = [
    (LEARNED, "encoder", "block.feedfwd.fc1.bias", None, "{} is missing"),
    (LEARNED, "conv", "feature_upscale.bias", None, "{} is missing"),
    (LEARNED, "encoder", "block.bonus", (3,), "{} is left over"),
    (LEARNED, "encoder", "fc.bias", (10,), "{} is left over"),
    (LEARNED, "encoder", "block.layer_norm2.bias", (400,), "{} is left over"),
    (
        LEARNED,
        "encoder",
        "block.attention.query.weight",
        (400, 3600),
        r"{} has shape \(400, 3600\), not \(3600, 400\)",
    ),
    ("vit shared", "patch", "resnet.3.1.bn2.running_var", None, "{} is missing"),
    ("vit shared", "patch", "resnet.1.weight", (3,), r"{} has shape \(3,\), not"),
    (
        "hierarchical SAN pair_hier",
        "encoder",
        "enc_layer.1.attention.conv1.weight",
        None,
        "{} is missing",
    ),
    (
        "hierarchical SAN pair_hier",
        "encoder",
        "enc_layer.2.attention.conv1.weight",
        (16, 256, 1, 1),
        "{} is left over",
    ),
]


@pytest.mark.parametrize("joined", [None, "{}.{}"])
@pytest.mark.parametrize("network, module, name, shape, message", CHANGES)
def test_what_does_not_fit_is_named_as_in_the_file(
    network, module, name, shape, message, joined
):
    state = published_state(network)
    state[module].pop(name, None)
    if shape is not None:
        state[module][name] = np.zeros(shape, np.float32)
    full_name = re.escape((joined or "{}/{}").format(module, name))
    if joined is not None:
        state = named(joined.format)(state)
    with pytest.raises(UserError, match=f": {message.format(full_name)}[^;]*$"):
        from_report(state, config_model(network))
