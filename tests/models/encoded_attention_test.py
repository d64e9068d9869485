"""Encoded positions: the four terms against loops over pixels, and the layers' sum."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_cnn_jax import models
from attn_cnn_jax.config import base_config, check, self_attention
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models import score_terms
from attn_cnn_jax.models.attention import ATTENTIONS
from attn_cnn_jax.models.flops import paper_flops

HEIGHT, WIDTH, DEPTH, HEADS = 3, 5, 16, 2
GRID = (HEIGHT, WIDTH)
PIXELS = list(itertools.product(range(HEIGHT), range(WIDTH)))
ENCODED = ("absolute_learned", "absolute_sinusoidal", "transformer_xl")

pytestmark = pytest.mark.usefixtures("x64")


def wave(position, channels):
    """Sines, then cosines, of one position, one channel at a time."""
    half = channels // 2
    angles = [position / 10_000 ** (i / half) for i in range(half)]
    return np.array([*map(np.sin, angles), *map(np.cos, angles)])


def encoding(row, col):
    return np.concatenate([wave(row, DEPTH // 2), wave(col, DEPTH // 2)])


def test_the_sinusoidal_encoding():
    rows, cols = np.arange(-2, 3), np.arange(7)
    actual = score_terms.sinusoidal_encoding((rows, cols), DEPTH, "float64")
    wanted = [[encoding(row, col) for col in cols] for row in rows]
    np.testing.assert_allclose(actual, wanted, rtol=1e-12, atol=1e-14)
    # A shift is a rotation: the product of two places depends on their offset alone.
    products = np.einsum("mnd,d->mn", actual, actual[1, 2])
    shifted = np.einsum("mnd,d->mn", actual, actual[2, 3])
    np.testing.assert_allclose(products[:-1, :-1], shifted[1:, 1:], rtol=1e-12)
    for width in (2, 6, 7):
        with pytest.raises(ValueError, match=f"multiple of 4, not {width}"):
            score_terms.sinusoidal_encoding((rows, cols), width, "float64")
    with pytest.raises(ValueError, match="not pairs"):
        score_terms.sinusoids(rows, 3, "float64")


@functools.cache
def layer_of(attention):
    """A layer that sows its scores, its parameters, and pixels of two images."""
    fields = dict(self_attention(attention).attention)
    kind = ATTENTIONS[fields.pop("name")].layer

    class Probe(kind):
        def scores(self, x, keys):
            found, keys = super().scores(x, keys)
            rows = [found(0, 1), found(1, HEIGHT - 1)]
            self.sow("intermediates", "scores", jnp.concatenate(rows, axis=1))
            return found, keys

    fields.update({"max_position": 6} if "max_position" in fields else {})
    layer = Probe(num_heads=HEADS, param_dtype=jnp.dtype("float64"), **fields)
    random = np.random.default_rng(0)
    x = random.normal(size=(2, *GRID, DEPTH))
    init = functools.partial(layer.init, train=False)
    shapes = jax.eval_shape(init, jax.random.key(0), x)["params"]
    return (
        layer,
        jax.tree.map(lambda s: 0.5 * random.normal(size=s.shape), shapes),
        x,
    )


@functools.cache
def terms_of(attention):
    layer, params, x = layer_of(attention)
    return jax.jit(type(layer).score_terms)(params, x)


def loops(attention):
    """The four terms, one pair of pixels at a time."""
    _, p, x = layer_of(attention)
    w_q, w_k = (np.moveaxis(p[f"{n}_kernel"], 1, 0) for n in ("query", "key"))
    terms = np.zeros((4, len(x), HEADS, *GRID, *GRID))
    for image, head, q, k in itertools.product(range(2), range(HEADS), PIXELS, PIXELS):
        x_q, x_k = x[image][q], x[image][k]
        if attention == "transformer_xl":
            r = encoding(k[0] - q[0], k[1] - q[1])
            query, key = x_q @ w_q[head], x_k @ w_k[head]
            position = r @ p["position_kernel"][:, head]
            u, v = p["content_bias"][head], p["position_bias"][head]
            found = query @ key, query @ position, u @ key, v @ position
        else:
            table = p.get("pixel_embeddings")
            p_q, p_k = (encoding(*i) if table is None else table[i] for i in (q, k))
            queries, keys = (x_q, p_q), (x_k, p_k)
            found = [a @ w_q[head] @ w_k[head].T @ b for a in queries for b in keys]
        terms[:, image, head, *q, *k] = found
    return terms / DEPTH**0.5


@pytest.mark.parametrize("attention", ENCODED)
def test_the_four_terms_are_those_of_loops_over_pixels(attention):
    terms = terms_of(attention)
    assert terms._fields == (
        "content_content",
        "content_position",
        "position_content",
        "position_position",
    )
    assert terms.position_position.shape[0] == 1  # the same for all images
    for actual, wanted in zip(terms, loops(attention), strict=True):
        wanted = wanted[: len(actual)]
        np.testing.assert_allclose(actual, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("attention", ENCODED)
def test_their_sum_is_the_scores_of_the_layer(attention):
    """With W_k folded into the queries (two images), and with keys (one)."""
    layer, params, x = layer_of(attention)
    apply = functools.partial(layer.apply, train=False, mutable=["intermediates"])
    wanted = sum(np.asarray(term) for term in terms_of(attention))
    for images in (x, x[:1]):
        _, sown = jax.jit(apply)({"params": params}, images)
        scores = sown["intermediates"]["scores"][0].transpose(0, 3, 1, 2, 4, 5)
        np.testing.assert_allclose(scores, wanted[: len(images)], rtol=1e-9, atol=1e-12)
        probs = sown["intermediates"]["attention"][0]
        unnormalised = np.exp(wanted[: len(images)])
        ratio = unnormalised / unnormalised.sum(axis=(-2, -1), keepdims=True)
        np.testing.assert_allclose(probs, ratio, rtol=1e-9)


def test_scores_of_offsets_are_the_term_without_content():
    layer, params, _ = layer_of("transformer_xl")
    by_offset = np.asarray(type(layer).offset_scores(params, GRID))
    assert by_offset.shape == (HEADS, 2 * HEIGHT - 1, 2 * WIDTH - 1)
    term = np.asarray(terms_of("transformer_xl").position_position)[0]
    for q, k in itertools.product(PIXELS, PIXELS):
        place = k[0] - q[0] + HEIGHT - 1, k[1] - q[1] + WIDTH - 1
        np.testing.assert_allclose(
            term[:, *q, *k], by_offset[:, *place], rtol=1e-10, atol=1e-12
        )


@pytest.mark.parametrize("attention", ["absolute_sinusoidal", "transformer_xl"])
def test_sinusoids_need_a_multiple_of_four(attention):
    config = base_config()
    config.model = self_attention(attention)
    config.model.width = 402
    with pytest.raises(UserError, match="config.model.width is 402.*multiple of 4"):
        check(config)
    model = models.build(config.model, 10)
    with pytest.raises(models.ModelError, match="multiple of 4, not 402"):
        models.initial_variables(model, jax.random.key(0), (8, 8, 3))


@pytest.mark.parametrize("attention", ENCODED)
def test_products_as_the_papers_count_them(attention):
    """Queries and keys of 256 pixels; R meets 31 offsets with each half."""
    model = models.build(self_attention(attention), 10)
    init = functools.partial(models.initial_variables, model, image_shape=(32, 32, 3))
    shapes = jax.eval_shape(init, jax.random.key(0))
    kernel, without_scores = 400 * 9 * 400, 6_175_956_800
    wanted = without_scores + 2 * 6 * kernel * (2 * 256)
    if attention == "transformer_xl":
        wanted += 2 * 6 * (kernel // 2) * (31 + 31)
    assert paper_flops(model, shapes, (32, 32, 3)) == wanted
