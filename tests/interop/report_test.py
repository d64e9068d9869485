"""States of the report's networks: names there and back, and what is refused."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_cnn_jax import models
from attn_cnn_jax.config import san, san_hierarchical, self_attention, vit
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.interop import from_report, from_state, to_report
from attn_cnn_jax.interop.state_files import unwrap


def small(config_model, **fields):
    config_model.update(fields)
    return config_model


def learned(**fields):
    config_model = self_attention("learned_w_content_report")
    return small(config_model, width=8, mlp_dim=6, num_layers=2, **fields)


def report_vit(**fields):
    sizes = dict(stem_width=4, width=8, num_heads=3, head_dim=8, mlp_dim=6)
    return small(vit(), num_layers=2, **sizes, **fields)


def google_vit(**fields):
    sizes = dict(stem_width=0, width=8, num_heads=2, head_dim=4, mlp_dim=6)
    return small(vit("standard"), num_layers=2, **sizes, **fields)


# The model, an image it takes, and some names that the published code has.
NETWORKS = {
    "san pairwise": (
        san("pairwise"),
        (32, 32, 3),
        {"layer3.3.sam.conv_p.bias": (2,), "conv2.weight": (512, 256, 1, 1)},
    ),
    "san patchwise": (
        small(
            san("patchwise"), widths=(32, 64), num_blocks=(1, 2), kernel_sizes=(3, 5)
        ),
        (16, 20, 3),
        {"layer1.1.sam.conv_w.5.weight": (50, 2, 1, 1), "bn_in.running_var": (32,)},
    ),
    "san10": (
        san("patchwise", "san10"),
        (224, 224, 3),
        {"layer4.0.sam.conv_w.0.weight": (128 * 50,), "fc.weight": (10, 2048)},
    ),
    "hierarchical patchwise": (
        san_hierarchical("patchwise"),
        (8, 8, 3),
        {"enc_layer.1.sam.conv2.weight": (16, 256, 1, 1), "bn3.running_mean": (256,)},
    ),
    "learned": (
        learned(),
        (8, 8, 3),
        {"blocks.1.value.weight": (8, 72), "blocks.1.row_embeddings.weight": (31, 4)},
    ),
    "learned, shared, 16 heads": (
        small(
            learned(num_heads=4, share_weights=True), attention={"project_values": True}
        ),
        (8, 8, 3),
        {"blocks.0.value.weight": (32, 8), "blocks.0.out.bias": (8,)},
    ),
    "vit": (
        report_vit(),
        (8, 12, 3),
        {"feature_upscale.weight": (8, 16), "position_embedding.weight": (25, 8)},
    ),
    "vit, shared": (
        report_vit(share_weights=True),
        (8, 8, 3),
        {"blocks.0.attention.out.weight": (8, 24), "stem.3.1.bn2.running_var": (4,)},
    ),
    "google": (
        google_vit(),
        (8, 6, 3),
        {
            "Transformer/encoderblock_1/MlpBlock_0/Dense_1/kernel": (6, 8),
            "cls": (1, 1, 8),
        },
    ),
    "google, shared": (
        google_vit(share_weights=True),
        (8, 8, 3),
        {"embedding/kernel": (2, 2, 3, 8), "Transformer/encoder_norm/bias": (8,)},
    ),
}


def random_variables(config_model, image_shape):
    """Variables of the network, no two leaves alike."""
    model = models.build(config_model, 10)
    shapes = jax.eval_shape(
        lambda: models.initial_variables(model, jax.random.key(0), image_shape)
    )
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_comes_back_as_it_went(name):
    config_model, image_shape, some_names = NETWORKS[name]
    variables = random_variables(config_model, image_shape)
    state = to_report(variables, config_model)
    for tensor, shape in some_names.items():
        assert state[tensor].shape == shape
    assert len(state) == len(jax.tree.leaves(variables))
    again = from_state(state, config_model)
    assert jax.tree.structure(again) == jax.tree.structure(variables)
    jax.tree.map(np.testing.assert_array_equal, again, variables)


def test_a_patch_is_channel_first_there():
    config_model = report_vit()
    variables = random_variables(config_model, (8, 8, 3))
    theirs = to_report(variables, config_model)["feature_upscale.weight"]
    ours = variables["params"]["embedding"]["kernel"]
    for row, column, channel in ((0, 1, 2), (1, 0, 3)):
        index = (row * 2 + column) * 4 + channel
        np.testing.assert_array_equal(
            theirs[:, channel * 4 + row * 2 + column], ours[index]
        )


@pytest.mark.parametrize(
    "change, message",
    [
        ({"fc.bias": None}, "fc.bias is missing"),
        ({"bonus": np.zeros(3)}, "bonus is left over"),
        ({"blocks.0.fc1.weight": np.zeros((6, 9))}, r"fc1.weight has shape \(6, 9\)"),
        ({"fc.weight": None}, "no fc.weight"),
    ],
)
def test_what_does_not_fit_is_named(change, message):
    config_model = learned()
    state = to_report(random_variables(config_model, (8, 8, 3)), config_model)
    for name, value in change.items():
        state.pop(name, None)
        state.update({} if value is None else {name: value.astype(np.float32)})
    with pytest.raises(UserError, match=message):
        from_report(state, config_model)


NORM = "sam.conv_w.0.weight"


def bottleneck(attention, kernel_size, width=32):
    """The state of a SAN bottleneck, and its variables."""
    block = models.san.Bottleneck(attention, kernel_size, True, jnp.dtype("float32"))
    shape = jax.ShapeDtypeStruct((1, 14, 14, width), jnp.float32)
    shapes = jax.eval_shape(
        lambda x: block.init(jax.random.key(0), x, train=False), shape
    )
    rng = np.random.default_rng(0)
    variables = jax.tree.map(
        lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), dict(shapes)
    )
    return to_report(variables, san(attention)), variables


@pytest.mark.parametrize("attention", ["pairwise", "patchwise"])
@pytest.mark.parametrize(
    "network, kernel_size",
    [
        (lambda attention: san(attention, "san10"), 3),
        (lambda attention: san(attention, "san15"), 7),
        (lambda attention: small(san(attention), kernel_sizes=(3, 7, 7, 7)), 7),
        (lambda attention: small(san_hierarchical(attention), kernel_size=5), 5),
    ],
    ids=["san10", "san15", "san", "san_hierarchical"],
)
def test_a_bottleneck_has_any_kernel_size_of_its_network(
    network, kernel_size, attention
):
    state, variables = bottleneck(attention, kernel_size)
    again = from_report(state, network(attention))
    jax.tree.map(np.testing.assert_array_equal, again, variables)


def test_a_kernel_size_that_the_network_has_not_is_refused():
    state, _ = bottleneck("patchwise", 5)
    with pytest.raises(UserError, match=r"sam.conv_w.0.bias has shape \(52,\), not"):
        from_report(state, small(san("patchwise"), kernel_sizes=(3, 7, 7, 7)))


@pytest.mark.parametrize("attention", ["pairwise", "patchwise"])
def test_a_damaged_bottleneck_names_its_tensors(attention):
    """Missing, without axes or of length 0."""
    state, _ = bottleneck(attention, 3)
    for name in ("bn1.weight", "sam.conv1.weight", "sam.conv1.bias", NORM):
        for damaged in (None, np.float32(1), np.zeros(0, np.float32)):
            changed = {k: v for k, v in state.items() if k != name}
            changed |= {} if damaged is None else {name: damaged}
            with pytest.raises(UserError) as error:
                from_report(changed, san(attention))
            assert name in str(error.value) or name == "sam.conv1.weight"
    with pytest.raises(UserError, match="bn1.weight has shape .33,.*multiple of 32"):
        from_report({**state, "bn1.weight": np.zeros(33, np.float32)}, san(attention))


@pytest.mark.parametrize("shape", [(0, 8), (10, 0), (10,), ()])
def test_a_classifier_without_classes_is_refused(shape):
    config_model = learned()
    state = to_report(random_variables(config_model, (8, 8, 3)), config_model)
    state["fc.weight"] = np.zeros(shape, np.float32)
    with pytest.raises(UserError, match="no fc.weight.*classes, width"):
        from_report(state, config_model)


@pytest.mark.parametrize("state", [None, [], "fc.weight", {3: np.zeros(3)}])
def test_what_is_no_state_is_refused(state):
    for whole in (state, {"model_state_dict": state}):
        with pytest.raises(UserError, match="not a mapping of names to tensors"):
            unwrap(whole)


def test_what_is_no_tensor_is_named():
    with pytest.raises(UserError, match="fc.weight is not a tensor"):
        from_report({"fc.weight": [[1.0], [1.0, 2.0]]}, learned())


def test_a_network_of_the_paper_is_not_the_reports():
    with pytest.raises(UserError, match="not a network of the report's code"):
        from_report({}, self_attention("learned_w_content"))


@pytest.mark.parametrize(
    "config_model, name",
    [
        (report_vit(), "position_embedding.weight"),
        (google_vit(), "Transformer/posembed_input/pos_embedding"),
    ],
    ids=["report", "google"],
)
@pytest.mark.parametrize("shape", [None, (), (8,)])
def test_a_vit_without_positions_says_so(config_model, name, shape):
    state = to_report(random_variables(config_model, (8, 8, 3)), config_model)
    del state[name]
    if shape is not None:
        state[name] = np.zeros(shape, np.float32)
    complaint = "is missing" if shape is None else re.escape(f"has shape {shape}, not")
    with pytest.raises(UserError, match=f": {name} {complaint}[^;]*$"):
        from_report(state, config_model)


def test_the_state_is_cast_to_the_models_type():
    config_model = learned(compute_dtype="bfloat16")
    variables = random_variables(config_model, (8, 8, 3))
    state = to_report(variables, config_model)
    loaded = from_report(
        {k: v.astype(np.float64) for k, v in state.items()}, config_model
    )
    assert {leaf.dtype for leaf in jax.tree.leaves(loaded)} == {jnp.dtype("float32")}
