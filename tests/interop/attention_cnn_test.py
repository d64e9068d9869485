"""Every attention of the original against its formulas, and what is refused.

The original is written here in NumPy with its own names, layouts and axes.
"""

import math

import jax
import numpy as np
import pytest

from attn_cnn_jax import models
from attn_cnn_jax.config import self_attention
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.interop import from_attention_cnn, to_attention_cnn

WIDTH, HEADS, LAYERS, MLP, MAX_POSITION, CLASSES = 8, 4, 2, 6, 16, 10
POSITIONS = 2 * MAX_POSITION - 1
_QUERY = {"query": (HEADS * WIDTH, WIDTH)}
_KEY = {"key": (HEADS * WIDTH, WIDTH)}
_VALUE = {"value": (WIDTH, HEADS * WIDTH)}
_TABLES = {"row_embeddings": (POSITIONS, WIDTH), "col_embeddings": (POSITIONS, WIDTH)}
_HALVES = {name: (POSITIONS, WIDTH // 2) for name in _TABLES}
_HEAD_KEYS = {"head_keys_row": (HEADS, WIDTH), "head_keys_col": (HEADS, WIDTH)}
_CENTERS = {"attention_centers": (HEADS, 2)}
# Names and shapes under attention.self. of every variant of the original.
VARIANTS = {
    "quadratic_isotropic": {**_CENTERS, "attention_spreads": (HEADS,), **_VALUE},
    "quadratic_nonisotropic": {
        **_CENTERS,
        "attention_spreads": (HEADS, 2, 2),
        **_VALUE,
    },
    "learned_wo_content": {**_TABLES, **_HEAD_KEYS, **_VALUE},
    "learned_w_content": {**_HALVES, **_QUERY, **_KEY, **_VALUE},
    "learned_query_position": {**_HALVES, **_QUERY, **_VALUE},
    "learned_w_content_v1": {**_TABLES, **_HEAD_KEYS, **_QUERY, **_KEY, **_VALUE},
    "multi_head": {name: (WIDTH, WIDTH) for name in ("query", "key", "value")},
}


def config_model(attention):
    """The small network in float32."""
    model = self_attention(attention)
    model.update(width=WIDTH, num_layers=LAYERS, num_heads=HEADS, mlp_dim=MLP)
    return model


def state_shapes(attention):
    """Names and shapes of the original's state_dict, without buffers."""
    linear = {"features_upscale": (WIDTH, 12), "classifier": (CLASSES, WIDTH)}
    shapes = {}
    for i in range(LAYERS):
        layer = f"encoder.layer.{i}"
        linear[f"{layer}.attention.output.dense"] = (WIDTH, WIDTH)
        linear[f"{layer}.intermediate.dense"] = (MLP, WIDTH)
        linear[f"{layer}.output.dense"] = (WIDTH, MLP)
        for norm in ("attention.output.LayerNorm", "output.LayerNorm"):
            for leaf in ("weight", "bias"):
                shapes[f"{layer}.{norm}.{leaf}"] = (WIDTH,)
        for name, shape in VARIANTS[attention].items():
            name = f"{layer}.attention.self.{name}"
            if name.endswith(("query", "key", "value")):
                linear[name] = shape
            elif name.endswith(("centers", "spreads")):
                shapes[name] = shape
            else:
                shapes[f"{name}.weight"] = shape
    for name, shape in linear.items():
        shapes.update({f"{name}.weight": shape, f"{name}.bias": shape[:1]})
    return shapes


def random_state(shapes, seed=0):
    """Normal numbers."""
    rng = np.random.default_rng(seed)
    return {
        name: (0.5 * rng.normal(size=shape)).astype(np.float32)
        for name, shape in shapes.items()
    }


def original_scores(attention, get, z):
    """Scores [B, i, j, head, k, l] of the original's formulas."""
    batch, height, width, depth = z.shape
    grid = (batch, height, width)
    down = np.arange(height)[None] - np.arange(height)[:, None]  # [i, k]
    right = np.arange(width)[None] - np.arange(width)[:, None]  # [j, l]

    def project(name, size):
        y = z @ get(f"{name}.weight").T + get(f"{name}.bias")
        return y.reshape(*grid, HEADS, size)

    if attention.startswith("quadratic"):
        spreads = get("attention_spreads")
        if attention == "quadratic_isotropic":
            spreads = spreads[:, None, None] * np.eye(2)
        precision = spreads @ spreads.transpose(0, 2, 1)
        offset = np.stack(
            np.broadcast_arrays(down[:, None, :, None], right[:, None]), -1
        )
        d = offset[:, :, None] - get("attention_centers")[:, None, None]
        return -0.5 * np.einsum("ijhklx,hxy,ijhkly->ijhkl", d, precision, d)[None]
    if attention == "multi_head":
        q, k = (project(name, WIDTH // HEADS) for name in ("query", "key"))
        return np.einsum("bijhd,bklhd->bijhkl", q, k) / math.sqrt(WIDTH // HEADS)
    rows, cols = get("row_embeddings.weight"), get("col_embeddings.weight")
    scores = 0
    if attention in ("learned_wo_content", "learned_w_content_v1"):
        # "row" follows the columns here: l - j.
        row_scores = get("head_keys_row.weight") @ rows.T  # [head, position]
        col_scores = get("head_keys_col.weight") @ cols.T
        by_col = row_scores[:, right + MAX_POSITION - 1]  # [head, j, l]
        by_row = col_scores[:, down + MAX_POSITION - 1]  # [head, i, k]
        scores = by_row[:, :, None, :, None] + by_col[:, None, :, None, :]
        scores = scores.transpose(1, 2, 0, 3, 4)[None]
        if attention == "learned_wo_content":
            return scores
    scale, half = 1 / math.sqrt(depth), depth // 2
    q = project("query", depth)
    if attention != "learned_query_position":
        k = project("key", depth)
        scores = scores + scale * np.einsum("bijhd,bklhd->bijhkl", q, k)
    if attention != "learned_w_content_v1":
        # ... and the rows here: k - i.
        by_row = np.einsum("bijhd,ikd->bijhk", q[..., :half], rows[down + 15])
        by_col = np.einsum("bijhd,jld->bijhl", q[..., half:], cols[right + 15])
        scores = scores + scale * (by_row[..., :, None] + by_col[..., None, :])
    return scores


def layer_norm(x, weight, bias):
    """Over the channels."""
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True)) * weight + bias


def original_logits(attention, state, images):
    """The original network; images [B, C, H, W]."""
    state = {name: value.astype(np.float64) for name, value in state.items()}

    def linear(name, x):
        return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    batch, channels, height, width = images.shape
    x = images.reshape(batch, channels, height // 2, 2, width // 2, 2)
    x = x.transpose(0, 2, 4, 3, 5, 1).reshape(batch, height // 2, width // 2, -1)
    z = linear("features_upscale", x)
    gelu = np.vectorize(lambda v: v / 2 * (1 + math.erf(v / math.sqrt(2))))
    for i in range(LAYERS):
        layer = f"encoder.layer.{i}."
        own = f"{layer}attention.self."
        scores = original_scores(attention, lambda n, own=own: state[own + n], z)
        probs = np.exp(scores - scores.max(axis=(-2, -1), keepdims=True))
        probs = probs / probs.sum(axis=(-2, -1), keepdims=True)
        probs = np.broadcast_to(probs, (batch, *probs.shape[1:]))
        if attention == "multi_head":
            values = linear(f"{own}value", z).reshape(*z.shape[:3], HEADS, -1)
            a = np.einsum("bijhkl,bklhd->bijhd", probs, values).reshape(z.shape)
        else:
            heads = np.einsum("bijhkl,bkld->bijhd", probs, z)
            a = linear(f"{own}value", heads.reshape(*z.shape[:3], -1))
        for name, update in (
            ("attention.output", lambda z, a=a: a),
            ("output", lambda z, n=layer: gelu(linear(f"{n}intermediate.dense", z))),
        ):
            y = z + linear(f"{layer}{name}.dense", update(z))
            norm = f"{layer}{name}.LayerNorm"
            z = layer_norm(y, state[f"{norm}.weight"], state[f"{norm}.bias"])
    return linear("classifier", z.mean(axis=(1, 2)))


def our_logits(model, state, images):
    """Our network with the state's weights."""
    variables = from_attention_cnn(state, model)
    network = models.build(model, CLASSES)
    apply = jax.jit(lambda v, x: network.apply(v, x, train=False))
    with jax.default_matmul_precision("highest"):
        return np.asarray(apply(variables, images.transpose(0, 2, 3, 1)))


@pytest.mark.parametrize("attention", VARIANTS)
def test_every_attention_computes_what_the_original_does(attention):
    state = random_state(state_shapes(attention))
    images = np.random.default_rng(1).normal(size=(2, 3, 6, 10)).astype(np.float32)
    wanted = original_logits(attention, state, images)
    actual = our_logits(config_model(attention), state, images)
    np.testing.assert_allclose(actual, wanted, atol=3e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("attention", VARIANTS)
def test_there_and_back_again(attention):
    state = random_state(state_shapes(attention))
    model = config_model(attention)
    variables = from_attention_cnn(state, model)
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {np.dtype("float32")}
    back = to_attention_cnn(variables, model)
    assert set(back) == set(state)
    for name, value in state.items():
        np.testing.assert_array_equal(back[name], value)


def test_checkpoints_prefixes_and_buffers_are_understood():
    attention = "learned_w_content"
    state, model = random_state(state_shapes(attention)), config_model(attention)
    own = "module.encoder.layer.0.attention.self."
    wrapped = {
        "epoch": 299,
        "test_accuracy": 0.9,
        "model_state_dict": {
            **{f"module.{name}": value for name, value in state.items()},
            "module.attention_mask": np.float32(1),
            f"{own}relative_indices": np.zeros((16, 16), np.int64),
        },
    }
    wanted, actual = (
        from_attention_cnn(state, model),
        from_attention_cnn(wrapped, model),
    )
    assert jax.tree.all(jax.tree.map(np.array_equal, wanted, actual))


def test_the_classifier_says_how_many_classes_there_are():
    state = random_state(state_shapes("quadratic_isotropic"))
    state["classifier.weight"] = np.zeros((100, WIDTH), np.float32)
    state["classifier.bias"] = np.zeros(100, np.float32)
    variables = from_attention_cnn(state, config_model("quadratic_isotropic"))
    assert variables["params"]["classifier"]["kernel"].shape == (WIDTH, 100)


DENSE = "encoder.layer.1.attention.output.dense.weight"


@pytest.mark.parametrize(
    "change, match",
    [
        ({DENSE: None}, f"{DENSE} is missing"),
        ({"encoder.layer.2.output.dense.bias": np.zeros(8)}, "layer.2.* is left over"),
        ({DENSE: np.zeros((8, 9))}, rf"{DENSE} has shape \(8, 9\), not \(8, 8\)"),
        ({DENSE: np.zeros((8, 8), int)}, f"{DENSE} is int64, not floating"),
        ({"classifier.weight": None}, "no classifier.weight or linear.weight"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_by_name(change, match):
    state = random_state(state_shapes("quadratic_isotropic"))
    state = {k: v for k, v in {**state, **change}.items() if v is not None}
    with pytest.raises(UserError, match=match):
        from_attention_cnn(state, config_model("quadratic_isotropic"))


def test_another_variants_state_is_refused():
    state = random_state(state_shapes("learned_wo_content"))
    with pytest.raises(UserError, match="and [0-9]+ more"):
        from_attention_cnn(state, config_model("quadratic_isotropic"))
    with pytest.raises(UserError, match="num_heads=3"):
        model = config_model("multi_head")
        model.num_heads = 3
        from_attention_cnn(random_state(state_shapes("multi_head")), model)
