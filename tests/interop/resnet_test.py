"""Names of the original's ResNets."""

import jax
import numpy as np
import pytest

from attn_cnn_jax import models
from attn_cnn_jax.config import resnet
from attn_cnn_jax.interop import from_attention_cnn, to_attention_cnn
from attn_cnn_jax.theory.networks import as_attention


def resnet_names(blocks, convolutions):
    """The original's names of a ResNet, without the shortcuts."""
    layers = [(f"layer{s + 1}.{b}.", s, b) for s in range(4) for b in range(blocks[s])]
    pairs = [("conv1", "bn1")]
    for prefix, stage, block in layers:
        ks = range(1, convolutions + 1)
        pairs += [(f"{prefix}conv{k}", f"{prefix}bn{k}") for k in ks]
        if block == 0 and (stage > 0 or convolutions == 3):
            pairs.append((f"{prefix}shortcut.0", f"{prefix}shortcut.1"))
    leaves = ("weight", "bias", "running_mean", "running_var")
    names = {f"{conv}.weight" for conv, _ in pairs}
    names |= {f"{norm}.{leaf}" for _, norm in pairs for leaf in leaves}
    return names | {"linear.weight", "linear.bias"}


@pytest.mark.parametrize(
    "name, blocks, convolutions",
    [
        ("resnet10", (1, 1, 1, 1), 2),
        ("resnet18", (2, 2, 2, 2), 2),
        ("resnet34", (3, 4, 6, 3), 2),
        ("resnet50", (3, 4, 6, 3), 3),
    ],
)
def test_every_resnet_has_the_originals_names(name, blocks, convolutions):
    model = resnet(name)
    model.width = 2
    network = models.build(model, 10)
    shapes = jax.eval_shape(
        lambda rng: models.initial_variables(network, rng, (32, 32, 3)),
        jax.random.key(0),
    )
    variables = jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), shapes)
    state = to_attention_cnn(variables, model)
    assert set(state) == resnet_names(blocks, convolutions)
    assert state["conv1.weight"].shape == (2, 3, 3, 3)
    assert state["layer4.0.conv2.weight"].shape == (16, 16, 3, 3)
    back = from_attention_cnn(state, model)
    assert jax.tree.structure(back) == jax.tree.structure(variables)
    converted, attention = as_attention(model, variables)
    again = to_attention_cnn(attention, converted)
    jax.tree.map(np.testing.assert_array_equal, again, state)
    read = from_attention_cnn(state, converted)
    jax.tree.map(np.testing.assert_array_equal, read, attention)
