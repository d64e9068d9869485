"""Less memory, the same numbers: chunks of queries, layers computed again."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_cnn_jax import models
from attn_cnn_jax.config import self_attention, vit
from attn_cnn_jax.models import hardware
from attn_cnn_jax.models.attention import ATTENTIONS, PixelAttention, layer_class

CHUNKED = [
    name
    for name, attention in ATTENTIONS.items()
    if issubclass(layer_class(attention.layer), PixelAttention)
]
MIB = 2**20


def grads_of(model, variables, x):
    """The value and gradients of a training pass with dropout, in float64."""

    def loss(params, x):
        rngs = {"dropout": jax.random.key(3)}
        y = model.apply({"params": params}, x, train=True, rngs=rngs)
        y = y[0] if isinstance(y, tuple) else y
        return (y * jnp.cos(jnp.arange(y.size).reshape(y.shape))).sum()

    quick = {"xla_backend_optimization_level": 0}
    grad = jax.value_and_grad(loss, argnums=(0, 1))
    return jax.jit(grad, compiler_options=quick)(variables["params"], x)


def assert_equal(actual, wanted):
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12 * max(1, np.abs(b).max()))


def layer_and_pixels(attention):
    """A small layer with dropout, to be made with other fields, and what it takes."""
    square = "report" in attention and "w_content" in attention  # `transposed`
    shape = (2, 4 if square else 5, 4, 8)
    x = jnp.asarray(np.random.default_rng(0).normal(size=shape))
    fields = dict(self_attention(attention).attention)
    del fields["name"]
    fields.update({"position_dim": 6} if "position_dim" in fields else {})
    fields.update({"transposed": True} if square else {})
    make = functools.partial(
        ATTENTIONS[attention].layer,
        num_heads=3,
        param_dtype=jnp.float64,
        **fields | {"dropout_rate": 0.3},
    )
    return make, x


def often(attention: str):
    """What the report's layers add to the paper's is no matter of chunks."""
    repeats = attention.endswith("_report") or attention == "learned_w_content_v1"
    return pytest.param(attention, marks=pytest.mark.soak if repeats else ())


@pytest.mark.parametrize("attention", [often(name) for name in CHUNKED])
def test_chunks_of_queries_change_nothing(attention, x64):
    """Masks included; three rows at a time of four or five, and one."""
    make, x = layer_and_pixels(attention)
    variables = make().init(jax.random.key(0), x, train=False)
    wanted = grads_of(make(), variables, x)
    for chunk in (1, 3):
        assert_equal(grads_of(make(query_chunk=chunk), variables, x), wanted)


@pytest.mark.parametrize("attention", ["quadratic_isotropic", "learned_wo_content"])
def test_one_image_after_the_other_changes_nothing(attention, x64):
    """As on a CPU that is one device; with a mask of the batch, and of an image."""
    make, x = layer_and_pixels(attention)
    variables = make().init(jax.random.key(0), x, train=False)
    wanted = grads_of(make(), variables, x)
    with hardware.traced_for("cpu", 1):
        for chunk in (0, 2):
            assert_equal(grads_of(make(query_chunk=chunk), variables, x), wanted)
        program = jax.make_jaxpr(lambda x: make().apply(variables, x, train=False))(x)
    assert "scan" in str(program)


def networks():
    """Small networks of both kinds, the same but for `remat`."""
    attention = self_attention("learned_w_content")
    attention.update(width=8, num_layers=2, num_heads=2, mlp_dim=8, patch_size=8)
    shared = attention.copy_and_resolve_references()
    shared.share_weights = True
    tokens = vit("standard")
    tokens.update(
        width=8, num_layers=2, num_heads=2, head_dim=4, mlp_dim=8, patch_size=8
    )
    tokens.stem_width = 0
    return {"self_attention": attention, "hierarchical": shared, "vit": tokens}


@pytest.mark.parametrize("kind", networks())
def test_layers_that_are_computed_again_change_nothing(kind, x64):
    fields = networks()[kind].copy_and_resolve_references()
    fields.compute_dtype = "float64"
    images = jnp.asarray(np.random.default_rng(0).normal(size=(2, 32, 32, 3)))
    results = []
    for remat in (False, True):
        fields.remat = remat
        model = models.build(fields, 10)
        variables = models.initial_variables(model, jax.random.key(0), (32, 32, 3))
        results.append((variables, grads_of(model, variables, images)))
    assert_equal(results[1], results[0])


def training_bytes(attention, grid, batch=1, **fields):
    """Temporary bytes of a full-size layer's training pass on a grid, as compiled."""
    defaults = dict(self_attention(attention).attention)
    del defaults["name"]
    if "max_position" in defaults:
        defaults["max_position"] = max(grid)
    layer = ATTENTIONS[attention].layer(
        num_heads=9, param_dtype=jnp.float32, **defaults | fields
    )
    x = jax.ShapeDtypeStruct((batch, *grid, 400), jnp.float32)
    rng = jax.random.key(0)
    variables = jax.eval_shape(functools.partial(layer.init, train=False), rng, x)

    def loss(variables, x):
        y, _ = layer.apply(variables, x, train=True, rngs={"dropout": rng})
        return (y**2).sum()

    compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(variables, x).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def test_a_layer_by_position_trains_on_128_by_128_pixels_within_1_gib(measured):
    for attention in ("quadratic_nonisotropic", "learned_wo_content"):
        used = training_bytes(attention, (128, 128), query_chunk=1)
        measured(f"{attention} on 128 x 128", f"{used / MIB:.0f} MiB")
        assert used < 1024 * MIB
    separable = training_bytes("learned_wo_content", (128, 128), dropout_rate=0.0)
    measured("learned_wo_content without dropout", f"{separable / MIB:.0f} MiB")
    assert separable < 1024 * MIB


def test_chunks_bound_the_memory_of_attention_by_content(measured):
    used, whole = (
        training_bytes("learned_w_content", (32, 32), query_chunk=chunk)
        for chunk in (4, 0)
    )
    words = f"{used / MIB:.0f} MiB in chunks, {whole / MIB:.0f} MiB whole"
    measured("learned_w_content on 32 x 32", words)
    assert used < whole / 2
    used = training_bytes("learned_w_content", (64, 64), query_chunk=1)
    measured("learned_w_content on 64 x 64", f"{used / MIB:.0f} MiB in chunks")
    assert used < 9 * 64**4 * 4  # bytes of the scores, held several times if whole
