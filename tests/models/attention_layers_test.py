"""The attention layers: what they sow, how they drop, which grids they take."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_cnn_jax import models
from attn_cnn_jax.config import self_attention
from attn_cnn_jax.models.attention import ATTENTIONS

VARIANTS = tuple(ATTENTIONS)
BY_POSITION = tuple(v for v in VARIANTS if v.startswith(("quadratic", "learned_wo")))
GRID = (4, 6)  # rows, columns
PIXELS = GRID[0] * GRID[1]
RATE = 0.25
QUICK = {"xla_backend_optimization_level": 0}  # compiles fast, runs once

# The linear term of the report is in the column alone; sinusoids of rows and of columns
# are added to channels of their own.
SYMMETRIC = tuple(
    v for v in VARIANTS if not re.match("quadratic.*_report|absolute_sin", v)
)
# Their queries meet the tables of positions.
QUERIED = ("learned_w_content", "learned_w_content_report", "learned_query_position")


def make_layer(attention, num_heads, dtype="float32", position_dim=6):
    """The layer alone."""
    fields = dict(self_attention(attention).attention)
    del fields["name"]
    fields["dropout_rate"] = RATE
    if "position_dim" in fields:
        fields["position_dim"] = position_dim
    return ATTENTIONS[attention].layer(
        num_heads=num_heads, param_dtype=jnp.dtype(dtype), **fields
    )


def draw_params(layer, x, scale):
    """Normal numbers for every parameter."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(
        functools.partial(layer.init, train=False), jax.random.key(0), x
    )
    return jax.tree.map(
        lambda leaf: (scale * rng.normal(size=leaf.shape)).astype(leaf.dtype), shapes
    )["params"]


@functools.cache
def probe(attention, num_heads=1):
    """What a layer gives whose output shows its probabilities.

    Pixel i is the i-th unit vector and the heads' outputs are added as they are, so
    output [b, i, j, key] is the sum over heads of the probabilities after dropout. Both
    images are the same.
    """
    layer = make_layer(attention, num_heads)
    identity = np.eye(PIXELS, dtype=np.float32)
    x = np.broadcast_to(identity.reshape(*GRID, PIXELS), (2, *GRID, PIXELS))
    params = draw_params(layer, x, scale=0.3)
    if attention == "multi_head":
        bias = np.zeros((1, PIXELS), np.float32)
        params["value"] = {"kernel": identity[:, None], "bias": bias}
    else:
        kernel = np.broadcast_to(identity, (num_heads, PIXELS, PIXELS))
        params.update(value_kernel=kernel, value_bias=np.zeros(PIXELS, np.float32))

    @functools.partial(jax.jit, compiler_options=QUICK)
    def outputs(params, x):
        def apply(seed=None, **options):
            rngs = {} if seed is None else {"dropout": jax.random.key(seed)}
            return layer.apply(
                {"params": params}, x, train=seed is not None, rngs=rngs, **options
            )

        (seen, _), captured = apply(mutable=["intermediates"])
        (_, _), captured_in_training = apply(1, mutable=["intermediates"])
        return {
            "y": apply()[0],
            "y captured": seen,
            "probs": captured["intermediates"]["attention"][0],
            "probs in training": captured_in_training["intermediates"]["attention"][0],
            "dropped 1": apply(1)[0],
            "dropped 2": apply(2)[0],
        }

    return jax.tree.map(np.asarray, outputs(params, x))


@pytest.mark.parametrize("attention", VARIANTS)
def test_a_layer_sows_its_probabilities(attention):
    result = probe(attention)
    batch = 1 if attention in BY_POSITION else 2
    for name in ("probs", "probs in training"):  # those before dropout
        probs = result[name]
        # In training the learned mask is one for each image.
        assert probs.shape == (batch, 1, *GRID, *GRID)
        np.testing.assert_allclose(probs.sum(axis=(-2, -1)), 1, rtol=1e-5)
        assert probs.min() > 0 and probs.std() > 0.001
    seen = np.broadcast_to(result["probs"][:, 0], (2, *GRID, *GRID))
    np.testing.assert_allclose(
        result["y"], seen.reshape(result["y"].shape), rtol=1e-4, atol=1e-7
    )


@pytest.mark.parametrize("attention", VARIANTS)
def test_capture_does_not_change_the_output(attention):
    result = probe(attention)
    np.testing.assert_allclose(result["y captured"], result["y"], rtol=1e-6)


@pytest.mark.parametrize("attention", VARIANTS)
def test_dropout_keeps_by_its_rate_and_rescales(attention):
    result = probe(attention)
    ratio = result["dropped 1"] / result["y"]
    kept = ratio != 0
    np.testing.assert_allclose(ratio[kept], 1 / (1 - RATE), rtol=1e-4)
    # The quadratic layers draw one mask for both images.
    draws = kept.size / (2 if attention.startswith("quadratic") else 1)
    assert abs(kept.mean() - (1 - RATE)) < 4 * (RATE * (1 - RATE) / draws) ** 0.5


@pytest.mark.parametrize("attention", VARIANTS)
def test_a_dropout_mask_is_of_the_batch_or_of_an_image(attention):
    # As in the original: Gaussians are one for the batch and so is their mask.
    first, second = probe(attention)["dropped 1"] == 0
    by_chance = 2 * RATE * (1 - RATE)  # of two independent masks
    different = (first != second).mean()
    if attention.startswith("quadratic"):
        assert different == 0
    else:
        assert abs(different - by_chance) < 0.1
    other_rng = probe(attention)["dropped 2"][0] == 0
    assert abs((first != other_rng).mean() - by_chance) < 0.1


@pytest.mark.parametrize("attention", ["quadratic_isotropic", "learned_w_content"])
def test_heads_drop_independently(attention):
    all_dropped = (probe(attention, num_heads=2)["dropped 1"] == 0).mean()
    assert abs(all_dropped - RATE**2) < 0.03


@pytest.mark.parametrize(
    "attention", [v for v in VARIANTS if "max_position" in ATTENTIONS[v].fields]
)
def test_a_grid_larger_than_the_tables_is_refused(attention):
    config_model = self_attention(attention)
    config_model.update(width=16, num_layers=1, attention={"max_position": 4})
    model = models.build(config_model, 10)

    def shapes(*image):
        init = functools.partial(models.initial_variables, model, image_shape=image)
        return jax.eval_shape(init, jax.random.key(0))

    shapes(8, 8, 3)
    for image in [(8, 10, 3), (10, 8, 3)]:
        with pytest.raises(models.ModelError, match="max_position=4"):
            shapes(*image)


@pytest.mark.parametrize("attention", SYMMETRIC)
def test_transposed_images_and_parameters_give_the_transposed_output(attention, x64):
    layer = make_layer(attention, num_heads=4, dtype="float64")
    width = 16
    x = np.random.default_rng(1).normal(size=(2, *GRID, width))
    params = draw_params(layer, x, scale=0.5)
    turned = dict(params)
    for row, col in [("row_embeddings", "col_embeddings"), ("row_keys", "col_keys")]:
        if row in params:
            turned[row], turned[col] = params[col], params[row]
    if "centers" in params:
        turned["centers"] = params["centers"][:, ::-1]
    if attention.startswith("quadratic_nonisotropic"):
        turned["spreads"] = params["spreads"][:, ::-1]
    if "pixel_embeddings" in params:
        turned["pixel_embeddings"] = params["pixel_embeddings"].swapaxes(0, 1)
    if "position_kernel" in params:
        halves = params["position_kernel"]  # one for rows, one for columns
        turned["position_kernel"] = np.roll(halves, width // 2, axis=0)
    if attention in QUERIED:
        # One half of a query meets the rows, the other the columns.
        for name in {"query_kernel", "query_bias", "key_kernel"} & set(params):
            turned[name] = np.roll(params[name], width // 2, axis=-1)

    @functools.partial(jax.jit, compiler_options=QUICK)
    def outputs(params, turned, x):
        apply = functools.partial(layer.apply, train=False)
        mirrored = x.transpose(0, 2, 1, 3)
        return (
            apply({"params": params}, x)[0],
            apply({"params": turned}, mirrored)[0].transpose(0, 2, 1, 3),
            apply({"params": params}, mirrored)[0].transpose(0, 2, 1, 3),
        )

    wanted, actual, unturned = outputs(params, turned, x)
    np.testing.assert_allclose(actual, wanted, rtol=1e-10, atol=1e-12)
    if attention == "multi_head":  # has no positions
        np.testing.assert_allclose(unturned, wanted, rtol=1e-10, atol=1e-12)
    else:
        assert not np.allclose(unturned, wanted, rtol=0.01)


def report_score(center, precision, row, col):
    """The score of an offset in the report's code, from its features and weights."""
    (a, b), (_, c) = precision
    m, n = center
    features = row**2, col**2, row * col, row, col
    weights = a, c, 2 * b, -2 * (a * m + b * n), -2 * (c + n + b * m)
    return -0.5 * np.dot(weights, features)


@pytest.mark.parametrize("kind", ["isotropic", "nonisotropic"])
def test_the_columns_of_the_reports_gaussians(kind, x64):
    layer = make_layer(f"quadratic_{kind}_report", num_heads=2, dtype="float64")
    x = np.random.default_rng(1).normal(size=(1, *GRID, 4))
    params = draw_params(layer, x, scale=0.7)
    apply = functools.partial(layer.apply, train=False, mutable=["intermediates"])
    seen = jax.jit(apply, compiler_options=QUICK)({"params": params}, x)[1]
    probs = np.asarray(seen["intermediates"]["attention"][0])[0]
    looked_at, precisions = map(np.asarray, type(layer).gaussians(params))
    for head, spread in enumerate(params["spreads"]):
        spread = spread * np.eye(2) if kind == "isotropic" else spread
        np.testing.assert_allclose(precisions[head], spread @ spread.T)
        center = params["centers"][head]
        score = functools.partial(report_score, center, spread @ spread.T)
        for row, col in [(0, 0), (3, 2)]:
            weights = [
                [np.exp(score(k - row, j - col)) for j in range(GRID[1])]
                for k in range(GRID[0])
            ]
            wanted = weights / np.sum(weights)
            np.testing.assert_allclose(probs[head, row, col], wanted, rtol=1e-10)
        for step in ((1e-3, 0), (-1e-3, 0), (0, 1e-3), (0, -1e-3)):
            assert score(*(looked_at[head] + step)) < score(*looked_at[head])
        if kind == "isotropic":
            column = 1 + center[1] / precisions[head, 1, 1]
            np.testing.assert_allclose(looked_at[head], (center[0], column))
