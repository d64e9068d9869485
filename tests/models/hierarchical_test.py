"""Hierarchical Attention: one block, and in later passes the keys of the first."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import traverse_util

from attn_cnn_jax import models
from attn_cnn_jax.config import san_hierarchical, self_attention, vit
from attn_cnn_jax.models.attention import ATTENTIONS, learned
from attn_cnn_jax.models.attention.content import folding_pays
from attn_cnn_jax.models.encoder import EncoderBlock, apply_layer, make_blocks
from attn_cnn_jax.models.san import Bottleneck
from attn_cnn_jax.models.scores import (
    content_scores,
    folded_content_scores,
    projected_keys,
)

GRID = (4, 4)
WIDTH = 20  # more than the pixels of an image, fewer than those of two


def transformer(attention, *, num_layers=3, share_weights=True):
    """`config.model` of a small network of the paper's or the report's blocks."""
    model = self_attention(attention)
    model.update(width=WIDTH, num_layers=num_layers, num_heads=4, mlp_dim=12)
    model.share_weights = share_weights
    return model


def vision_transformer(*, num_layers=3, share_weights=True):
    """`config.model` of a small one."""
    model = vit()
    model.update(stem_width=0, width=WIDTH, num_layers=num_layers, num_heads=2)
    model.update(head_dim=6, mlp_dim=12, share_weights=share_weights)
    return model


def hierarchical_san(attention="pairwise", **fields):
    """`config.model` of a small one: three passes through two blocks."""
    model = san_hierarchical(attention)
    model.update(width=32, num_passes=3, **fields)
    return model


def draw(shapes, scale=0.4, seed=0):
    """Normal numbers of the given shapes; variances and scales are about 1."""
    rng = np.random.default_rng(seed)

    def leaf(path, shape):
        values = rng.normal(size=shape.shape, scale=scale)
        if path[-1].key in ("var", "scale"):
            values = 1 + values**2
        return jnp.asarray(values, shape.dtype)

    return jax.tree_util.tree_map_with_path(leaf, shapes)


def shapes_of(model, image_shape=(8, 8, 3)):
    """Its variables without arrays."""
    init = functools.partial(models.initial_variables, model, image_shape=image_shape)
    return jax.eval_shape(init, jax.random.key(0))


def calls(function: Callable, names: set[str]) -> list[tuple]:
    """Paths of the modules of those names, once for each call in `function`."""
    found = []

    def record(next_function, args, kwargs, context):
        if context.method_name == "__call__" and context.module.name in names:
            found.append(context.module.path)
        return next_function(*args, **kwargs)

    with nn.intercept_methods(record):
        function()
    return found


# --- Later passes do not compute keys -------------------------------------------------

LAYERS = {
    "multi_head": (transformer, {"attention": "multi_head"}),
    "vit": (vision_transformer, {}),
}


@pytest.mark.parametrize("name", LAYERS)
def test_keys_are_projected_in_the_first_pass_alone(name):
    build, fields = LAYERS[name]
    for share_weights, wanted in ((True, 1), (False, 3)):
        config_model = build(**fields, share_weights=share_weights)
        model = models.build(config_model, 10)
        shapes = shapes_of(model)
        images = jax.ShapeDtypeStruct((2, 8, 8, 3), jnp.float32)

        def forward(model=model, shapes=shapes, images=images):
            jax.eval_shape(functools.partial(model.apply, train=False), shapes, images)

        assert len(calls(forward, {"key"})) == wanted
        assert len(calls(forward, {"query"})) == 3  # those of every pass
        assert len(calls(forward, {"value"})) == 3


@pytest.mark.parametrize("attention", ["pairwise", "patchwise"])
@pytest.mark.parametrize("num_sweeps", [1, 2])
def test_a_san_computes_keys_once(attention, num_sweeps):
    model = models.build(hierarchical_san(attention, num_sweeps=num_sweeps), 10)
    shapes = shapes_of(model)
    images = jax.ShapeDtypeStruct((2, 8, 8, 3), jnp.float32)

    def forward():
        jax.eval_shape(functools.partial(model.apply, train=False), shapes, images)

    assert calls(forward, {"key"}) == [("block_0", "attention", "key")]
    for own in ("query", "value"):
        assert len(calls(forward, {own})) == 3 * 2 * num_sweeps


CONTENT = ("learned_w_content", "learned_w_content_report", "learned_w_content_v1")


@pytest.mark.parametrize("attention", CONTENT)
@pytest.mark.parametrize("batch", [1, 2])
def test_a_learned_layer_computes_keys_once_or_never(attention, batch, monkeypatch):
    """Of one image they are projected; of two, W_k is folded into the queries."""
    model = models.build(transformer(attention), 10)
    variables = draw(shapes_of(model))
    products, passes = [], []

    def projected(x, kernel):
        products.append(x)
        return projected_keys(x, kernel)

    def record(next_function, args, kwargs, context):
        result = next_function(*args, **kwargs)
        if context.method_name == "__call__" and context.module.name == "attention":
            passes.append((*args, result[1]))
        return result

    monkeypatch.setattr(learned, "projected_keys", projected)
    images = np.random.default_rng(0).normal(size=(batch, 8, 8, 3)).astype(np.float32)
    with nn.intercept_methods(record):
        model.apply(variables, jnp.asarray(images), train=False)
    pixels, given, first_keys = passes[0]
    assert given is None and len(passes) == 3
    for x, given, returned in passes[1:]:
        assert x is not pixels
        assert given is first_keys and returned is first_keys
    if batch == 1:
        assert len(products) == 1 and products[0] is pixels
        assert first_keys.shape == (1, *GRID, 4, WIDTH)
    else:
        assert not products and first_keys is pixels


# --- They are those of the first pass -------------------------------------------------


class Stack(nn.Module):
    """The blocks alone."""

    block: Any
    num_layers: int = 3
    share_weights: bool = True

    @nn.compact
    def __call__(self, x):
        def block(name, layer):
            return self.block(name=name)

        blocks, keys = make_blocks(block, self.num_layers, self.share_weights), None
        for i in range(self.num_layers):
            x, keys = apply_layer(blocks, self.share_weights, i, x, keys, train=False)
        return x


def encoder_block(attention, **fields):
    """What makes a block of the paper's encoder."""
    layer_fields = dict(self_attention(attention).attention)
    del layer_fields["name"]
    layer_fields.update(fields)
    if "position_dim" in layer_fields:
        layer_fields["position_dim"] = 6
    layer = functools.partial(
        ATTENTIONS[attention].layer,
        num_heads=4,
        param_dtype=jnp.dtype("float64"),
        **layer_fields,
    )
    return functools.partial(
        EncoderBlock,
        attention=layer,
        attention_dense=True,
        mlp_dim=12,
        activation="relu",
        dropout_rate=0.0,
        norm_epsilon=1e-5,
        param_dtype=jnp.dtype("float64"),
    )


def token_block(name):
    """A block of the report's Vision Transformer."""
    config_model = vision_transformer()
    config_model.compute_dtype = "float64"
    return models.build(config_model, 10).block(name)


def projected_by_hand(x, params):
    """x W_k, and with its bias where it has one."""
    key = params["attention"].get("key")
    if key is None:
        return jnp.einsum("...d,dne->...ne", x, params["attention"]["key_kernel"])
    keys = np.einsum("...d,dne->...ne", x, key["kernel"])
    return jnp.asarray(keys + np.asarray(key.get("bias", 0.0)))


def normalized_by_hand(x, params):
    """The keys of the normalised tokens."""
    norm, x = jax.device_get((params["attention_norm"], x))
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return projected_by_hand(x * norm["scale"] + norm["bias"], params)


# What makes a block, the shape of its input, and its keys of an input by hand.
STACKS = {
    "multi_head": (encoder_block("multi_head"), (2, *GRID, WIDTH), projected_by_hand),
    "learned, projected": (
        encoder_block("learned_w_content"),
        (1, *GRID, WIDTH),
        projected_by_hand,
    ),
    "learned, folded": (
        encoder_block("learned_w_content"),
        (2, *GRID, WIDTH),
        lambda x, params: x,
    ),
    "the report's, transposed": (
        encoder_block("learned_w_content_report", transposed=True, project_values=True),
        (1, *GRID, WIDTH),
        projected_by_hand,
    ),
    "without q.r": (
        encoder_block("learned_w_content_v1"),
        (1, *GRID, WIDTH),
        projected_by_hand,
    ),
    "absolute": (
        encoder_block("absolute_learned"),
        (1, *GRID, WIDTH),
        lambda x, params: projected_by_hand(
            x + params["attention"]["pixel_embeddings"][None, : GRID[0], : GRID[1]],
            params,
        ),
    ),
    "transformer_xl": (
        encoder_block("transformer_xl"),
        (2, *GRID, WIDTH),
        lambda x, params: x,
    ),
    "vit": (token_block, (2, 9, WIDTH), normalized_by_hand),
}


@pytest.mark.parametrize("name", STACKS)
def test_later_passes_attend_to_the_keys_of_the_first(name, x64):
    block, shape, by_hand = STACKS[name]
    x = jnp.asarray(np.random.default_rng(1).normal(size=shape))
    stack = Stack(block)
    params = draw(jax.eval_shape(stack.init, jax.random.key(0), x))["params"]
    assert set(params) == {"block"}
    one = {"params": params["block"]}
    keys = by_hand(x, params["block"])
    kept = recomputed = x
    for _ in range(3):
        kept, _ = block(name="block").apply(one, kept, keys, train=False)
        recomputed, _ = block(name="block").apply(one, recomputed, None, train=False)
    out = stack.apply({"params": params}, x)
    np.testing.assert_allclose(out, kept, rtol=1e-9, atol=1e-9)
    assert np.abs(out - recomputed).max() > 1e-3
    apart = Stack(block, share_weights=False)
    same = {f"block_{i}": params["block"] for i in range(3)}
    out = apart.apply({"params": same}, x)  # not shared, each layer has its own keys
    np.testing.assert_allclose(out, recomputed, rtol=1e-9, atol=1e-9)


def test_the_parameters_of_a_shared_block_exist_once():
    for build in (
        functools.partial(transformer, "learned_w_content"),
        functools.partial(transformer, "quadratic_isotropic"),
        vision_transformer,
    ):
        shared, one, three = (
            shapes_of(models.build(build(num_layers=n, share_weights=s), 10))["params"]
            for n, s in ((3, True), (1, False), (3, False))
        )
        assert shared["block"] == one["block_0"]
        assert {k for k in shared if k.startswith("block")} == {"block"}
        assert {k for k in three if k.startswith("block")} == {
            "block_0",
            "block_1",
            "block_2",
        }


def forward_by_hand(variables, images, attention, *, keep_keys, pre_activation):
    """Hierarchical SAN as a loop, and what its first keys are."""
    variables = jax.device_get(variables)
    params, stats = variables["params"], variables["batch_stats"]

    def norm_relu(x, name):
        p, s = params[name], stats[name]
        x = (x - s["mean"]) / np.sqrt(s["var"] + 1e-5) * p["scale"] + p["bias"]
        return np.maximum(x, 0)

    block = Bottleneck(attention, 3, False, jnp.dtype("float64"), pre_activation)
    x = norm_relu(images @ params["stem_conv"]["kernel"], "stem_norm")
    keys = None
    for i in range(3):
        x = x @ params[f"pass_{i}_conv"]["kernel"]
        for name in ("block_0", "block_1"):
            if keys is None and not pre_activation:
                keys = x @ params[name]["attention"]["key"]["kernel"]
            own = jax.tree.map(
                jnp.asarray, {"params": params[name], "batch_stats": stats[name]}
            )
            given = jnp.asarray(keys) if keep_keys and keys is not None else None
            x, used = block.apply(own, jnp.asarray(x), given, train=False)
            keys = np.asarray(used) if keys is None else keys
            x = np.asarray(x)
        x = norm_relu(x, f"pass_{i}_norm")
    return (
        x.mean((1, 2)) @ params["classifier"]["kernel"] + params["classifier"]["bias"]
    )


@pytest.mark.parametrize("pre_activation", [False, True])
@pytest.mark.parametrize("attention", ["pairwise", "patchwise"])
def test_all_passes_of_a_san_attend_to_the_first_keys(attention, pre_activation, x64):
    fields = {"pre_activation": pre_activation, "compute_dtype": "float64"}
    model = models.build(hierarchical_san(attention, **fields), 10)
    variables = draw(shapes_of(model, (4, 5, 3)))
    images = np.random.default_rng(2).normal(size=(2, 4, 5, 3))
    logits = model.apply(variables, jnp.asarray(images), train=False)
    kept, recomputed = (
        forward_by_hand(
            variables,
            images,
            attention,
            keep_keys=keep_keys,
            pre_activation=pre_activation,
        )
        for keep_keys in (True, False)
    )
    np.testing.assert_allclose(logits, kept, rtol=1e-9, atol=1e-9)
    assert np.abs(logits - recomputed).max() > 1e-3


# --- Folded and projected keys are the same attention ---------------------------------


def test_content_scores_are_equal_projected_and_folded(x64):
    """Also for the keys of other pixels, and with the gradients of all arrays."""
    rng = np.random.default_rng(3)
    shapes = [(2, 3, 4, 6), (2, 3, 4, 6), (6, 2, 5), (2, 5), (6, 2, 5)]
    arrays = [jnp.asarray(rng.normal(size=shape)) for shape in shapes]

    def projected(x, pixels, query_kernel, query_bias, key_kernel):
        keys = projected_keys(pixels, key_kernel)
        return content_scores(x, keys, query_kernel, query_bias)

    outputs = []
    for form in (projected, folded_content_scores):
        out, pull = jax.vjp(form, *arrays)
        cotangent = np.random.default_rng(4).normal(size=out.shape)
        outputs.append((out, *pull(jnp.asarray(cotangent))))
    for ours, theirs in zip(*outputs, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-11)
        assert np.abs(theirs).max() > 1


@pytest.mark.parametrize("attention", CONTENT[1:])
def test_an_image_alone_is_scored_like_the_same_image_twice(attention, x64, quick_jit):
    """Alone its keys are projected, twice folded: equal, gradients included."""
    stack = Stack(encoder_block(attention), 2)
    x = jnp.asarray(np.random.default_rng(5).normal(size=(1, *GRID, WIDTH)))
    twice = jnp.concatenate([x, x])
    assert not folding_pays(x) and folding_pays(twice)
    params = draw(jax.eval_shape(stack.init, jax.random.key(0), x))["params"]
    cotangent = np.random.default_rng(6).normal(size=x.shape)

    @quick_jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1), has_aux=True)
    def scalar(params, x):
        out = stack.apply({"params": params}, x)
        return (out * cotangent).sum() / x.shape[0], out

    (_, one), of_one = scalar(params, x)
    (_, two), of_two = scalar(params, twice)
    np.testing.assert_allclose(two, jnp.concatenate([one, one]), rtol=1e-9, atol=1e-10)

    def compare(a, b):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-9)

    jax.tree.map(compare, of_one[0], of_two[0])
    compare(of_one[1], of_two[1].sum(0, keepdims=True))


def test_transposed_axes_need_a_square_grid():
    config_model = transformer("learned_w_content_report")
    config_model.attention.transposed = True
    model = models.build(config_model, 10)
    shapes_of(model, (8, 8, 3))
    with pytest.raises(models.ModelError, match="transposed needs a square grid"):
        shapes_of(model, (8, 12, 3))


# --- What the published hierarchical SAN counts and does not use ----------------------


@pytest.mark.parametrize(
    "attention, pre_activation",
    [("pairwise", False), ("patchwise", False), ("patchwise", True)],
)
def test_dead_parameters_of_a_san(attention, pre_activation, quick_jit):
    """As published: both first norms, and the keys of the second block."""
    config_model = hierarchical_san(attention, pre_activation=pre_activation)
    config_model.num_passes = 2
    model = models.build(config_model, 10)
    variables = draw(shapes_of(model, (6, 6, 3)))
    rng = np.random.default_rng(7)
    images, cotangent = (
        jnp.asarray(rng.normal(size=shape), jnp.float32)
        for shape in ((4, 6, 6, 3), (4, 10))
    )

    @quick_jit
    @functools.partial(jax.grad, has_aux=True)
    def gradients(params):
        logits, moved = model.apply(
            {**variables, "params": params}, images, train=True, mutable=["batch_stats"]
        )
        return (logits * cotangent).sum(), moved["batch_stats"]

    gradient, moved = gradients(variables["params"])
    gradient = traverse_util.flatten_dict(gradient, sep="/")
    dead = {"block_1/attention/key/kernel"}
    if not pre_activation:
        norms = ("block_0/norm_1", "block_1/norm_1")
        dead |= {f"{norm}/{name}" for norm in norms for name in ("scale", "bias")}
    redundant = set()  # zero in exact arithmetic: see the spec of SAN's softmax
    if attention == "pairwise":
        for block in ("block_0", "block_1"):
            redundant |= {
                f"{block}/attention/{name}/bias"
                for name in ("position", "weight_dense")
            }
    assert dead | redundant <= set(gradient)
    zero = {path for path, values in gradient.items() if not np.any(values)}
    assert zero - redundant == dead
    for block in ("block_0", "block_1"):
        before = variables["batch_stats"][block]["norm_1"]
        for name, after in moved[block]["norm_1"].items():
            assert (np.asarray(after) != before[name]).all()
