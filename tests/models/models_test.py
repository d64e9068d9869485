"""Every model by its config: parameter counts, shapes, types, what is refused."""

import functools
import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_cnn_jax import config as config_lib
from attn_cnn_jax import models
from attn_cnn_jax.models.attention import ATTENTIONS

CONFIGS = Path(__file__).parents[2] / "configs"
# From the papers' tables or, where those round, from the originals' modules.
COUNTS = {
    "learned_w_content": 29_484_282,
    "learned_w_content_16heads": 20_956_938,
    "learned_wo_content": 12_278_682,
    "learned_wo_content_16heads": 8_421_642,
    "quadratic_isotropic": 12_086_844,
    "quadratic_isotropic_16heads": 8_277_546,
    "quadratic_nonisotropic": 12_087_006,
    "resnet18": 11_173_962,
}
RESNET_COUNTS = {
    "resnet10": 4_903_242,
    "resnet18": 11_173_962,
    "resnet34": 21_282_122,
    "resnet50": 23_520_842,
    "resnet101": 42_512_970,
    "resnet152": 58_156_618,
}
NETWORK_COUNTS = [
    ("learned_query_position", {}, 20_822_682),
    ("learned_w_content_v1", {}, 29_601_882),
    ("multi_head", {"num_heads": 8}, 6_331_482),
    ("learned_wo_content", {"attention": {"position_dim": 8}}, 12_090_522),
    ("quadratic_isotropic", {"num_heads": 16}, 18_806_970),
    (
        "quadratic_nonisotropic",
        {"num_layers": 2, "num_heads": 8, "width": 128},
        562_922,
    ),
]
QUADRATIC = config_lib.self_attention("quadratic_isotropic").attention.to_dict()


def config_of(path):
    """What `get_config()` of the file returns."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config()


def shapes_of(config_model, image_shape=(32, 32, 3)):
    """The model and its variables without arrays."""
    model = models.build(config_model, 10)
    init = functools.partial(models.initial_variables, model, image_shape=image_shape)
    return model, jax.eval_shape(init, jax.random.key(0))


def small_network(attention, **changes):
    """The `config.model` of a network of two small blocks."""
    model = config_lib.self_attention(attention)
    model.update(width=16, num_layers=2, num_heads=4, mlp_dim=20)
    model.update(changes)
    return model


def test_every_config_has_a_count():
    examples = {"quickstart", "laptop"}  # no rows of a table
    assert {path.stem for path in CONFIGS.glob("*.py")} - examples == set(COUNTS)


@pytest.mark.parametrize("name", COUNTS)
def test_count_of_a_config(name):
    path = CONFIGS / f"{name}.py"
    _, variables = shapes_of(config_of(path).model)
    assert models.count_parameters(variables) == COUNTS[name]
    assert f"{COUNTS[name]:,} parameters" in path.read_text()


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.py")), ids=lambda p: p.stem)
def test_a_config_is_valid_and_maps_images_to_logits(path):
    config = config_of(path)
    config_lib.check(config)
    model, variables = shapes_of(config.model)
    images = jax.ShapeDtypeStruct((2, 32, 32, 3), jnp.float32)
    logits = jax.eval_shape(
        functools.partial(model.apply, train=False), variables, images
    )
    assert (logits.shape, logits.dtype) == ((2, 10), jnp.float32)


@pytest.mark.parametrize("name", RESNET_COUNTS)
def test_count_of_a_resnet(name):
    _, variables = shapes_of(config_lib.resnet(name))
    assert models.count_parameters(variables) == RESNET_COUNTS[name]


@pytest.mark.parametrize("attention, changes, count", NETWORK_COUNTS)
def test_count_of_a_network(attention, changes, count):
    config_model = config_lib.self_attention(attention)
    config_model.update(changes)
    _, variables = shapes_of(config_model)
    assert models.count_parameters(variables) == count


def test_every_model_and_attention_of_the_schema_exists():
    names = {"self_attention", *RESNET_COUNTS}
    assert set(models.MODELS) == names
    for attention in ATTENTIONS:
        assert config_lib.self_attention(attention).attention.name == attention


def test_an_unknown_model_is_refused():
    for fields in ({"name": "vgg"}, {}):
        with pytest.raises(models.ModelError, match="choose from self_attention"):
            models.build(fields, 10)


@pytest.mark.parametrize(
    "fields, match",
    [
        ({"heads": 9}, "heads"),
        ({"attention": {**QUADRATIC, "sigma": 1.0}}, "sigma"),
        ({"attention": {"name": "cubic"}}, "cubic"),
        ({"activation": "tanh"}, "tanh"),
        ({"compute_dtype": "float31"}, "float31"),
        ({"patch_size": 3}, "patch_size=3"),
        ({"attention": {"name": "multi_head", "dropout_rate": 0.1}}, "num_heads=9"),
    ],
)
def test_an_impossible_network_is_refused(fields, match):
    config_model = config_lib.self_attention("quadratic_isotropic").to_dict()
    with pytest.raises(models.ModelError, match=match):
        shapes_of({**config_model, **fields})


def test_a_missing_field_is_refused():
    config_model = config_lib.self_attention("quadratic_isotropic").to_dict()
    del config_model["width"]
    with pytest.raises(models.ModelError, match="width"):
        shapes_of(config_model)


@pytest.mark.parametrize(
    "config_model",
    [*map(small_network, ATTENTIONS), config_lib.resnet("resnet10")],
    ids=[*ATTENTIONS, "resnet10"],
)
def test_bfloat16_keeps_parameters_and_logits_in_float32(config_model):
    config_model = config_model.copy_and_resolve_references()
    config_model.compute_dtype = "bfloat16"
    model, variables = shapes_of(config_model, (8, 8, 3))
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}
    images = jax.ShapeDtypeStruct((2, 8, 8, 3), jnp.float32)
    apply = functools.partial(model.apply, train=False)
    assert jax.eval_shape(apply, variables, images).dtype == jnp.float32
    # The products themselves are of bfloat16.
    products = str(jax.make_jaxpr(apply)(variables, images))
    assert "bf16" in products


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_training_and_evaluation_are_finite(attention, quick_jit):
    """Also on images that are not square; capture leaves the logits as they are."""
    config_model = small_network(attention)
    model, shapes = shapes_of(config_model, (8, 12, 3))
    rng = np.random.default_rng(0)
    variables = jax.tree.map(
        lambda leaf: rng.normal(size=leaf.shape, scale=0.3).astype(leaf.dtype), shapes
    )
    images = rng.normal(size=(2, 8, 12, 3)).astype(np.float32)

    @quick_jit
    def outputs(variables, images):
        rngs = {"dropout": jax.random.key(0)}
        captured, layers = model.apply(
            variables, images, train=False, mutable=["intermediates"]
        )
        trained = model.apply(variables, images, train=True, rngs=rngs)
        return model.apply(variables, images, train=False), captured, trained, layers

    logits, captured, trained, layers = outputs(variables, images)
    assert np.isfinite(logits).all() and np.isfinite(trained).all()
    assert np.std(logits) > 0
    np.testing.assert_allclose(logits, captured, rtol=1e-4, atol=1e-5)
    assert not np.allclose(logits, trained, rtol=1e-3)
    sown = layers["intermediates"]
    assert set(sown) == {"block_0", "block_1"}
    for block in sown.values():
        assert block["attention"]["attention"][0].shape[1:] == (4, 4, 6, 4, 6)


def test_the_block_drops_its_two_updates():
    """Without dropout inside the attention, that of the block remains."""
    config_model = small_network("multi_head", dropout_rate=0.5, num_layers=1)
    config_model.attention.dropout_rate = 0.0
    model, shapes = shapes_of(config_model, (8, 8, 3))
    jaxpr = jax.make_jaxpr(
        lambda v, x, rng: model.apply(v, x, train=True, rngs={"dropout": rng})
    )
    images = jax.ShapeDtypeStruct((2, 8, 8, 3), jnp.float32)
    program = str(jaxpr(shapes, images, jax.random.key(0)))
    assert program.count("name=_bernoulli") == 2
