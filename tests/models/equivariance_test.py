"""What attention keeps when pixels are reordered, and when the image is shifted."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_cnn_jax.config import self_attention
from attn_cnn_jax.models.attention import ATTENTIONS

GRID, DEPTH, HEADS = (6, 7), 16, 3
SHIFT = (2, 1)
ABSOLUTE = ("absolute_learned", "absolute_sinusoidal")
RELATIVE = tuple(a for a in ATTENTIONS if a not in (*ABSOLUTE, "multi_head"))
# What makes a layer one of content alone, where it is zero.
POSITIONS = {
    "learned_w_content": ("row_embeddings", "col_embeddings"),
    "learned_w_content_v1": ("row_keys", "col_keys"),
    "absolute_learned": ("pixel_embeddings",),
    "transformer_xl": ("position_kernel",),
    "multi_head": (),
}

pytestmark = pytest.mark.usefixtures("x64")


@functools.cache
def drawn(attention, scale=0.3):
    """A layer and random parameters of it."""
    fields = dict(self_attention(attention).attention)
    kind = ATTENTIONS[fields.pop("name")].layer
    fields.update({"position_dim": 31} if "position_dim" in fields else {})
    num_heads = 4 if attention == "multi_head" else HEADS
    layer = kind(num_heads=num_heads, param_dtype=jnp.dtype("float64"), **fields)
    x = jax.ShapeDtypeStruct((2, *GRID, DEPTH), "float64")
    init = functools.partial(layer.init, train=False)
    shapes = jax.eval_shape(init, jax.random.key(0), x)["params"]
    random = np.random.default_rng(0)
    return layer, jax.tree.map(lambda s: scale * random.normal(size=s.shape), shapes)


def applied(attention, params, x):
    """Output and probabilities, these for each image."""
    layer, _ = drawn(attention)
    apply = functools.partial(layer.apply, train=False, mutable=["intermediates"])
    options = {"xla_backend_optimization_level": 0}
    (y, _), sown = jax.jit(apply, compiler_options=options)({"params": params}, x)
    probs = sown["intermediates"]["attention"][0]
    return np.asarray(y), np.broadcast_to(probs, (len(x), *probs.shape[1:]))


def windows():
    """Two windows of one scene, the second further down and to the right by SHIFT."""
    (height, width), (down, right) = GRID, SHIFT
    scene = np.random.default_rng(1).normal(size=(height + down, width + right, DEPTH))
    return np.stack([scene[:height, :width], scene[down:, right:]])


def common(a, b):
    """What both windows see of maps of the first and of the second."""
    (height, width), (down, right) = GRID, SHIFT
    return a[..., down:, right:], b[..., : height - down, : width - right]


@pytest.mark.parametrize("attention", POSITIONS)
def test_without_positions_attention_is_equivariant_under_any_reordering(attention):
    _, params = drawn(attention)
    order = np.random.default_rng(2).permutation(GRID[0] * GRID[1])
    x = np.random.default_rng(1).normal(size=(GRID[0] * GRID[1], DEPTH))
    images = np.stack([x, x[order]]).reshape(2, *GRID, DEPTH)

    def agreement(params):
        y, _ = applied(attention, params, images)
        first, second = y.reshape(2, -1, DEPTH)
        return np.abs(first[order] - second).max() / np.abs(first).max()

    content = dict(params, **{n: 0 * params[n] for n in POSITIONS[attention]})
    assert agreement(content) < 1e-12
    if attention != "multi_head":  # with its positions it is not
        assert agreement(params) > 1e-3


@pytest.mark.parametrize("attention", [*RELATIVE, *ABSOLUTE])
def test_among_the_pixels_of_both_windows_attention_is_the_same(attention):
    """The exact sense in which relative attention is equivariant under translation.

    A query weighs the keys that both windows see alike, relative to each other. The
    others, at the border, have weight too, which is why outputs may differ.
    """
    _, params = drawn(attention)
    _, probs = applied(attention, params, windows())
    first, second = probs
    first, second = common(*(p.transpose(0, 3, 4, 1, 2) for p in (first, second)))
    first, second = common(*(p.transpose(0, 3, 4, 1, 2) for p in (first, second)))
    first, second = (p / p.sum(axis=(-2, -1), keepdims=True) for p in (first, second))
    difference = np.abs(first / second - 1).max()
    assert difference > 1e-3 if attention in ABSOLUTE else difference < 1e-11


def of_finite_reach(attention):
    """Parameters of heads whose attention is all on offsets of at most 1 per axis."""
    _, drawn_params = drawn(attention)
    params = dict(drawn_params)
    centers = np.array([(-1.0, 1.0), (0.0, 0.0), (1.0, 0.0)])
    if attention == "quadratic_isotropic":
        params.update(centers=centers, spreads=np.full(HEADS, 40.0))
    elif attention == "learned_wo_content":
        far = np.abs(np.arange(-15, 16)) > 1  # the table of an axis: the unit vectors
        for axis in ("row", "col"):
            params[f"{axis}_embeddings"] = np.eye(31)
            keys = params[f"{axis}_keys"] - 1e4 * far[:, None]
            params[f"{axis}_keys"] = keys
    else:
        # v R r is a sum over axes of cos(w (d - c)), w the second frequency of four:
        # near c its fall is w^2 (d - c)^2 / 2, the quadratic encoding's.
        waves = 0.1 * centers
        v = np.zeros((HEADS, DEPTH))
        v[:, [1, 9]], v[:, [5, 13]] = np.sin(waves), np.cos(waves)
        identity = np.broadcast_to(np.eye(DEPTH)[:, None], (DEPTH, HEADS, DEPTH))
        params.update(position_kernel=identity, position_bias=1e6 * v)
    return params


@pytest.mark.parametrize(
    "attention", ["quadratic_isotropic", "learned_wo_content", "transformer_xl"]
)
def test_heads_of_finite_reach_are_equivariant_in_the_interior(attention):
    """As a convolution is; at the border they renormalise where it pads with zeros."""
    y, probs = applied(attention, of_finite_reach(attention), windows())
    for query in [(2, 3), (3, 2)]:
        down, right = (slice(i - 1, i + 2) for i in query)
        beyond = 1 - probs[:, :, *query, down, right].sum(axis=(-2, -1))
        assert np.abs(beyond).max() < 1e-12
    first, second = common(*(a.transpose(2, 0, 1) for a in y))
    inside = (slice(None), slice(1, -1), slice(1, -1))
    scale = np.abs(first).max()
    assert np.abs(first[inside] - second[inside]).max() < 1e-12 * scale
    assert np.abs(first - second).max() > 1e-3 * scale  # at the border


@pytest.mark.parametrize("attention", ABSOLUTE)
def test_absolute_attention_is_not_in_the_interior_either(attention):
    y, _ = applied(attention, drawn(attention, scale=1.0)[1], windows())
    first, second = common(*(a.transpose(2, 0, 1) for a in y))
    inside = (slice(None), slice(1, -1), slice(1, -1))
    assert np.abs(first[inside] - second[inside]).max() > 0.1 * np.abs(first).max()
