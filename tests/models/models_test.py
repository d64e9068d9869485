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
from attn_cnn_jax.config.model_checks import _CHECKS
from attn_cnn_jax.models.attention import ATTENTIONS
from attn_cnn_jax.models.dropout import keep_mask
from attn_cnn_jax.models.resnet import ResidualBlock

CONFIGS = Path(__file__).parents[2] / "configs"
# From the papers' tables or, where those round, from the originals' modules; our
# quadratic and position-only blocks of the report are the paper's less one linear map.
COUNTS = {
    "learned_w_content": 29_484_282,
    "learned_w_content_16heads": 20_956_938,
    "learned_w_content_16heads_ha": 4_414_874,
    "learned_w_content_ha": 4_754_122,
    "learned_w_content_report": 28_478_682,
    "learned_w_content_report_16heads": 26_459_754,
    "learned_wo_content": 12_278_682,
    "learned_wo_content_16heads": 8_421_642,
    "learned_wo_content_report": 11_316_282,
    "learned_wo_content_report_16heads": 13_973_610,
    "quadratic_isotropic": 12_086_844,
    "quadratic_isotropic_16heads": 8_277_546,
    "quadratic_isotropic_ha": 2_022_149,
    "quadratic_isotropic_report": 11_124_444,
    "quadratic_isotropic_report_16heads": 7_882_794,
    "quadratic_isotropic_report_ha": 1_861_749,
    "quadratic_nonisotropic": 12_087_006,
    "quadratic_nonisotropic_report": 11_124_606,
    "resnet18": 11_173_962,
    "san_pairwise": 3_737_056,
    "san_pairwise_ha": 352_750,
    "san_patchwise": 3_851_142,
    "san_patchwise_ha": 356_282,
    "vit": 37_394_506,
    "vit_ha": 6_531_946,
    "vit_standard": 37_460_506,
    "vit_standard_ha": 6_543_946,
}
RESNET_COUNTS = {
    "resnet10": 4_903_242,
    "resnet18": 11_173_962,
    "resnet34": 21_282_122,
    "resnet50": 23_520_842,
    "resnet101": 42_512_970,
    "resnet152": 58_156_618,
}
# The official SANs, for 1,000 classes of 224 x 224 images.
IMAGENET_COUNTS = {
    ("san10", "pairwise"): 10_531_848,
    ("san15", "pairwise"): 14_065_436,
    ("san19", "pairwise"): 17_596_156,
    ("san10", "patchwise"): 11_841_124,
    ("san15", "patchwise"): 16_181_310,
    ("san19", "patchwise"): 20_518_470,
}
# Parts of the report's networks on their own, and versions that it does not name.
SAN_COUNTS = [
    (config_lib.san, "pairwise", {"projection_bias": False}, 3_734_992),
    (config_lib.san, "patchwise", {"kernel_sizes": (3, 7, 7, 7)}, 4_445_382),
    (config_lib.san_hierarchical, "pairwise", {"num_blocks": 1}, 310_396),
    (config_lib.san_hierarchical, "pairwise", {"width": 128}, 90_182),
    (config_lib.san_hierarchical, "pairwise", {"width": 512}, 1_395_134),
    (config_lib.san_hierarchical, "pairwise", {"num_sweeps": 2}, 352_750),
]
VIT_COUNTS = [
    ("report", {"stem_width": 0}, 37_147_082),
    ("report", {"stem_width": 0, "share_weights": True}, 6_284_522),
    ("report", {"class_token": "learned"}, 37_394_906),
    ("standard", {"stem_width": 0}, 37_213_082),
    ("standard", {"stem_width": 0, "share_weights": True}, 6_296_522),
]
NETWORK_COUNTS = [
    ("learned_query_position", {}, 20_822_682),
    ("learned_w_content_v1", {}, 29_601_882),
    ("multi_head", {"num_heads": 8}, 6_331_482),
    # 12,086,682 without scores; 6 layers of 2 or 3 kernels 400 x 9 x 400 and the rest.
    ("absolute_sinusoidal", {}, 12_086_682 + 6 * 2_880_000),
    ("absolute_learned", {}, 12_086_682 + 6 * (2_880_000 + 16 * 16 * 400)),
    ("transformer_xl", {}, 12_086_682 + 6 * (4_320_000 + 2 * 9 * 400)),
    ("learned_wo_content", {"attention": {"position_dim": 8}}, 12_090_522),
    ("learned_w_content", {"share_weights": True}, 4_921_722),
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


def shapes_of(config_model, image_shape=(32, 32, 3), num_classes=10):
    """The model and its variables without arrays."""
    model = models.build(config_model, num_classes)
    init = functools.partial(models.initial_variables, model, image_shape=image_shape)
    return model, jax.eval_shape(init, jax.random.key(0))


def small_network(attention, **changes):
    """The `config.model` of a network of two small blocks."""
    model = config_lib.self_attention(attention)
    model.update(width=16, num_layers=2, num_heads=4, mlp_dim=20)
    model.update(changes)
    return model


def small_report_models():
    """SANs and Vision Transformers by what tells them apart, as small as they get."""
    for attention in ("pairwise", "patchwise"):
        model = config_lib.san(attention)
        model.update(widths=(32, 64), num_blocks=(1, 1), kernel_sizes=(5, 3))
        yield f"san {attention}", model
        model = config_lib.san_hierarchical(attention)
        model.update(width=32, num_passes=2)
        yield f"san_hierarchical {attention}", model
    for kind, share_weights in (("report", False), ("standard", True)):
        model = config_lib.vit(kind)
        model.update(stem_width=4, width=16, num_heads=4, head_dim=8, mlp_dim=20)
        model.update(num_layers=2, share_weights=share_weights)
        yield f"vit {kind}{' ha' * share_weights}", model
    for attention in ("learned_w_content_report", "quadratic_isotropic"):
        yield f"{attention} ha", small_network(attention, share_weights=True)


REPORT_MODELS = dict(small_report_models())


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


@pytest.mark.parametrize("name, attention", IMAGENET_COUNTS)
def test_count_of_an_official_san(name, attention):
    config_model = config_lib.san(attention, name)
    _, variables = shapes_of(config_model, (224, 224, 3), num_classes=1000)
    count = models.count_parameters(variables)
    assert count == IMAGENET_COUNTS[name, attention]


@pytest.mark.parametrize("block, attention, changes, count", SAN_COUNTS)
def test_count_of_another_san(block, attention, changes, count):
    config_model = block(attention)
    config_model.update(changes)
    _, variables = shapes_of(config_model, (64, 64, 3))  # room for 7 x 7
    assert models.count_parameters(variables) == count


@pytest.mark.parametrize("kind, changes, count", VIT_COUNTS)
def test_count_of_another_vision_transformer(kind, changes, count):
    config_model = config_lib.vit(kind)
    config_model.update(changes)
    _, variables = shapes_of(config_model)
    assert models.count_parameters(variables) == count


@pytest.mark.parametrize("attention, changes, count", NETWORK_COUNTS)
def test_count_of_a_network(attention, changes, count):
    config_model = config_lib.self_attention(attention)
    config_model.update(changes)
    _, variables = shapes_of(config_model)
    assert models.count_parameters(variables) == count


def test_every_model_and_attention_of_the_schema_exists():
    official = {name for name, _ in IMAGENET_COUNTS}
    names = {"self_attention", "vit", "san", "san_hierarchical", *official}
    resnets = {*RESNET_COUNTS, *(f"{name}_as_attention" for name in RESNET_COUNTS)}
    assert set(models.MODELS) == names | resnets
    assert set(_CHECKS) == set(models.MODELS)
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
    [
        *map(small_network, ATTENTIONS),
        config_lib.resnet("resnet10"),
        *REPORT_MODELS.values(),
    ],
    ids=[*ATTENTIONS, "resnet10", *REPORT_MODELS],
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


@pytest.mark.parametrize("name", REPORT_MODELS)
def test_a_model_of_the_report_is_finite(name, quick_jit):
    """Also on images that are not square; capture leaves the logits as they are."""
    config_model = REPORT_MODELS[name]
    model, shapes = shapes_of(config_model, (12, 16, 3))
    rng = np.random.default_rng(0)
    variables = jax.tree.map(
        lambda leaf: rng.normal(size=leaf.shape, scale=0.3).astype(leaf.dtype), shapes
    )
    statistics = [name for name in variables if name == "batch_stats"]
    for collection in statistics:
        squared = jax.tree.map(np.square, variables[collection])  # no negative variance
        variables[collection] = jax.tree.map(lambda leaf: leaf + 0.5, squared)
    images = rng.normal(size=(3, 12, 16, 3)).astype(np.float32)

    @quick_jit
    def outputs(variables, images):
        rngs = {"dropout": jax.random.key(0), "class_token": jax.random.key(1)}
        captured, layers = model.apply(
            variables, images, train=False, mutable=["intermediates"]
        )
        trained, moved = model.apply(
            variables, images, train=True, rngs=rngs, mutable=statistics
        )
        logits = model.apply(variables, images, train=False)
        return logits, captured, trained, moved, layers

    logits, captured, trained, moved, layers = outputs(variables, images)
    for leaf in jax.tree.leaves((logits, trained, moved)):
        assert np.isfinite(leaf).all()
    assert np.std(logits) > 0
    np.testing.assert_allclose(logits, captured, rtol=1e-4, atol=1e-5)
    assert not np.allclose(logits, trained, rtol=1e-3)
    for before, after in zip(
        jax.tree.leaves({k: variables[k] for k in statistics}),
        jax.tree.leaves(moved),
        strict=True,
    ):
        assert (before != after).all()  # every channel's statistics moved
    sown = [leaf.shape for leaf in jax.tree.leaves(layers["intermediates"])]
    taps = {"san pairwise": [(6, 8, 25, 1), (3, 4, 9, 2)]}
    taps["san patchwise"] = taps["san pairwise"]
    if name in taps:
        assert sown == [(3, *shape) for shape in taps[name]]
    elif name.startswith("san_hierarchical"):
        assert sown == [(3, 12, 16, 9, 1)] * 4
    elif name.startswith("vit"):
        assert sown == [(3, 4, 49, 49)] * 2
    else:
        images_of = 1 if name.startswith("quadratic") else 3
        assert sown == [(images_of, 4, 6, 8, 6, 8)] * 2


@pytest.mark.parametrize(
    "config_model, match",
    [
        ({**config_lib.san("both")}, "attention is 'both'"),
        ({**config_lib.san("pairwise"), "kernel_sizes": (3, 3, 3, 5)}, "kernel_size=5"),
        ({**config_lib.san("pairwise"), "widths": (64, 64, 64, 100)}, "width=100"),
        ({**config_lib.san("pairwise"), "sizes": 3}, "sizes"),
        ({**config_lib.san_hierarchical("pairwise"), "width": 48}, "width=48"),
        ({**config_lib.vit(), "patch_size": 3}, "patch_size=3"),
        ({**config_lib.vit(), "heads": 3}, "heads"),
    ],
)
def test_an_impossible_model_of_the_report_is_refused(config_model, match):
    with pytest.raises(models.ModelError, match=match):
        shapes_of(config_model)


def test_the_block_drops_its_two_updates():
    """Without dropout inside the attention, that of the block remains."""
    config_model = small_network("multi_head", dropout_rate=0.5, num_layers=1)
    config_model.attention.dropout_rate = 0.0
    model, shapes = shapes_of(config_model, (8, 8, 3))
    jaxpr = jax.make_jaxpr(
        lambda v, x, rng: model.apply(v, x, train=True, rngs={"dropout": rng})
    )
    images = jax.ShapeDtypeStruct((2, 8, 8, 3), jnp.float32)
    words = jnp.zeros(2, "uint32")
    of_a_mask = str(jax.make_jaxpr(lambda w: keep_mask(w, 0.5, (2, 3)))(words))
    program = str(jaxpr(shapes, images, jax.random.key(0)))
    constant = f"{0x7FEB352D}:u32"  # of the hash that draws
    assert program.count(constant) == 2 * of_a_mask.count(constant) > 0


@pytest.mark.parametrize("bottleneck", [False, True])
def test_the_stride_of_a_residual_block_is_on_its_first_3x3(bottleneck):
    """The counts and shapes of a whole block cannot tell which one has it."""
    block = ResidualBlock(
        width=4, stride=2, bottleneck=bottleneck, param_dtype=jnp.float32
    )
    x = jnp.ones((1, 8, 8, 4))
    _, seen = jax.eval_shape(
        lambda: block.init_with_output(
            jax.random.key(0), x, train=False, capture_intermediates=True
        )
    )
    sizes = {
        name: layer["__call__"][0].shape[1]
        for name, layer in seen["intermediates"].items()
        if name.endswith("conv")
    }
    first = {"1_conv": 8} if bottleneck else {"1_conv": 4}
    last = {"3_conv": 4} if bottleneck else {}
    assert sizes == {**first, "2_conv": 4, **last, "shortcut_conv": 4}
