"""FLOPs: the papers' numbers to the digit, and every rule against a count by hand."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax import lax

from attn_cnn_jax import config as config_lib
from attn_cnn_jax import models
from attn_cnn_jax.models.attention import LearnedContentAttention, Parameter, never
from attn_cnn_jax.models.flops import paper_flops, program_flops

IMAGE = (32, 32, 3)
# Exact, and in 1e9 as rounded: the first four are the rows of the paper's Table 1.
PAPER = [
    ("resnet18", {}, 1_110_845_440, 1.11),
    ("quadratic_isotropic", {}, 6_175_956_800, 6.18),
    ("learned_wo_content", {}, 6_198_075_200, 6.20),
    ("learned_w_content", {}, 15_023_316_800, 15.02),
    ("quadratic_nonisotropic", {}, 6_175_956_800, 6.18),
    ("learned_w_content_v1", {}, 15_045_435_200, 15.05),
    ("quadratic_isotropic", {"num_heads": 16}, 9_616_596_800, 9.62),
]


def shape(*sizes):
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


def network(name, **changes):
    """The full-size model of a name and its variables without arrays."""
    if name.startswith("resnet"):
        config_model = config_lib.resnet(name)
    else:
        config_model = config_lib.self_attention(name)
    config_model.update(changes)
    model = models.build(config_model, 10)
    init = functools.partial(models.initial_variables, model, image_shape=IMAGE)
    return model, jax.eval_shape(init, jax.random.key(0))


def paper_flops_of(layer, image_shape):
    """Of one layer that is called with `train` like a model."""

    class Model(nn.Module):
        @nn.compact
        def __call__(self, images, *, train):
            return layer(images)

    model = Model()
    images = jnp.zeros((1, *image_shape))
    variables = model.init(jax.random.key(0), images, train=False)
    return paper_flops(model, variables, image_shape)


@pytest.mark.parametrize("name, changes, exact, rounded", PAPER)
def test_flops_of_the_papers(name, changes, exact, rounded):
    model, variables = network(name, **changes)
    assert paper_flops(model, variables, IMAGE) == exact
    assert round(exact / 1e9, 2) == rounded


def test_dense_counts_every_position_of_any_rank():
    def taps(x):
        return nn.Dense(7)(jnp.stack([x] * 9, axis=3))

    def pooled(x):
        return nn.Dense(7)(x.mean((1, 2)))

    assert paper_flops_of(lambda x: nn.Dense(7)(x), (4, 5, 3)) == 2 * 20 * 3 * 7
    assert paper_flops_of(taps, (4, 5, 3)) == 2 * 20 * 9 * 3 * 7
    assert paper_flops_of(pooled, (4, 5, 3)) == 2 * 3 * 7


def test_dense_general_contracts_its_axes():
    def split(x):
        return nn.DenseGeneral((2, 6))(x)

    def merge(x):
        return nn.DenseGeneral(6, axis=(-2, -1))(x)

    assert paper_flops_of(split, (4, 5, 3)) == 2 * 20 * 3 * 12
    assert paper_flops_of(merge, (4, 5, 3)) == 2 * 4 * 15 * 6


@pytest.mark.parametrize(
    "size, fields, positions, kernel",
    [
        ((3, 3), {}, 20, 9 * 6 * 8),
        ((3, 3), {"strides": 2, "padding": 1}, 6, 9 * 6 * 8),
        ((1, 3), {"feature_group_count": 2}, 20, 3 * 3 * 8),
        (3, {}, 20, 3 * 6 * 8),  # along the second axis of the grid
    ],
)
def test_a_convolution_counts_its_kernel_at_every_output(
    size, fields, positions, kernel
):
    flops = paper_flops_of(lambda x: nn.Conv(8, size, **fields)(x), (4, 5, 6))
    assert flops == 2 * positions * kernel


def test_a_shared_layer_counts_each_time():
    def thrice(x):
        layer = nn.Dense(6)
        return layer(layer(layer(x)))

    assert paper_flops_of(thrice, (4, 5, 6)) == 3 * 2 * 20 * 36


def test_keys_that_are_handed_in_do_not_count():
    width, heads, passes = 6, 2, 3

    class Attention(nn.Module):
        """Kernels as an attention layer holds them; what it computes is no matter."""

        parameters = LearnedContentAttention.parameters

        @nn.compact
        def __call__(self, x, keys=None, *, train):
            shapes = {
                "value_kernel": (heads, width, width),
                "value_projection_kernel": (heads, width, width),
                "query_kernel": (width, heads, width),
                "key_kernel": (width, heads, width),
                "row_keys": (width, heads),
                "col_keys": (width, heads),
            }
            for name, shape in shapes.items():
                self.param(name, nn.initializers.ones, shape)
            return x, x if keys is None else keys

    class Hierarchical(nn.Module):
        by_name: bool

        @nn.compact
        def __call__(self, images, *, train):
            x, keys, shared = images, None, Attention()
            for _ in range(passes):
                if self.by_name:
                    x, keys = shared(x, keys=keys, train=train)
                else:
                    x, keys = shared(x, keys, train=train)
            return x

    kernel, pixels = heads * width * width, 4 * 5
    tables = (4**2 + 5**2) * width * heads
    multiply_adds = passes * (3 * pixels * kernel + tables) + pixels * kernel
    for by_name in (True, False):
        model = Hierarchical(by_name)
        variables = model.init(jax.random.key(0), jnp.zeros((1, 4, 5, 6)), train=False)
        assert paper_flops(model, variables, (4, 5, 6)) == 2 * multiply_adds


def test_a_kernel_that_a_layer_does_not_declare_is_not_skipped():
    """The FLOPs of such a network are unknown, not those of its other kernels."""

    class Attention(nn.Module):
        parameters = {"scores": Parameter(0, never)}

        @nn.compact
        def __call__(self, x):
            self.param("bias", nn.initializers.zeros, x.shape[-1:])
            for name in names:
                self.param(name, nn.initializers.ones, (2, 3))
            return nn.Dense(7)(x)

    names = ["scores"]
    assert paper_flops_of(lambda x: Attention()(x), (4, 5, 3)) == 2 * 20 * 3 * 7
    names.append("kernel")
    assert paper_flops_of(lambda x: Attention()(x), (4, 5, 3)) is None


def test_matrix_products_count_two_a_multiply_add():
    assert program_flops(jnp.matmul, shape(3, 4), shape(4, 5)) == 2 * 3 * 4 * 5
    batched = functools.partial(jnp.einsum, "bnijkl,bkld->bijnd")
    probs, pixels = shape(2, 3, 4, 5, 4, 5), shape(2, 4, 5, 6)
    assert program_flops(batched, probs, pixels) == 2 * 2 * 3 * 20 * 20 * 6


def convolution_by_hand(x, kernel, stride, padding, groups):
    """The convolution of [H, W, C] and how many multiply-adds it took."""
    height, width, depth, features = kernel.shape
    padded = np.pad(x, ((padding, padding), (padding, padding), (0, 0)))
    rows = (padded.shape[0] - height) // stride + 1
    cols = (padded.shape[1] - width) // stride + 1
    y, count = np.zeros((rows, cols, features)), 0
    for i, j, o in itertools.product(range(rows), range(cols), range(features)):
        group = o // (features // groups)
        for k, m, c in itertools.product(range(height), range(width), range(depth)):
            value = padded[i * stride + k, j * stride + m, group * depth + c]
            y[i, j, o] += value * kernel[k, m, c, o]
            count += 1
    return y, count


@pytest.mark.parametrize("stride, padding, groups", [(1, 1, 1), (2, 1, 2), (1, 0, 6)])
def test_convolutions_count_two_a_multiply_add(stride, padding, groups):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(4, 5, 6)).astype(np.float32)
    kernel = generator.normal(size=(3, 3, 6 // groups, 12)).astype(np.float32)

    def convolve(x, kernel):
        return lax.conv_general_dilated(
            x[None],
            kernel,
            (stride, stride),
            [(padding, padding)] * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        )[0]

    y, count = convolution_by_hand(x, kernel, stride, padding, groups)
    np.testing.assert_allclose(convolve(x, kernel), y, rtol=1e-4, atol=1e-5)
    assert program_flops(convolve, x, kernel) == 2 * count


def test_a_scan_counts_as_often_as_it_turns():
    x, kernel = shape(10, 3, 4), shape(4, 5)
    one = 2 * 3 * 4 * 5

    def mapped(x, kernel):
        return lax.map(lambda row: row @ kernel, x)

    def nested(x, kernel):
        def turn(total, row):
            return total + mapped(jnp.tile(row, (7, 1, 1)), kernel).sum(), None

        return lax.scan(turn, 0.0, x)[0]

    def loop(x, kernel):
        return lax.fori_loop(0, 6, lambda _, y: (y @ kernel) @ kernel.T, x[0])

    assert program_flops(mapped, x, kernel) == 10 * one
    assert program_flops(nested, x, kernel) == 10 * (7 * one + 7 * 15 + 1)
    assert program_flops(loop, x, kernel) == 6 * 2 * one


def test_a_loop_of_unknown_length_is_refused():
    def until(condition, change, start):
        return lambda: lax.while_loop(condition, change, start)

    with pytest.raises(ValueError, match="unknown length"):
        program_flops(until(lambda x: x < 9, lambda x: 2 * x, 1.0))
    assert program_flops(until(lambda x: x < 9, lambda x: 2 * x, 1)) == 0


def test_a_condition_counts_its_largest_branch():
    def choose(x):
        return lax.cond(x[0, 0] > 0, lambda x: x @ x, lambda x: x + 1, x)

    assert program_flops(choose, shape(4, 4)) == 2 * 4**3


def test_programs_inside_programs_count():
    x = shape(4, 4)

    @jax.custom_vjp
    def custom(x):
        return x @ x

    custom.defvjp(lambda x: (x @ x, None), lambda _, g: (g,))
    for inside in (
        jax.jit(lambda x: x @ x),
        jax.checkpoint(lambda x: x @ x),
        custom,
    ):
        assert program_flops(lambda x, inside=inside: inside(x) + 1, x) == 2 * 4**3 + 16
    assert program_flops(jax.nn.relu, x) == 16  # custom_jvp


def test_other_arithmetic_counts_one_an_element():
    x, row = shape(4, 6), shape(1, 6)
    assert program_flops(lambda x: jnp.exp(2 * x) - 1, x) == 3 * 24
    assert program_flops(lambda x: x.sum(), x) == 24
    assert program_flops(jnp.add, x, row) == 24
    pool = functools.partial(nn.max_pool, window_shape=(2, 2), strides=(2, 2))
    assert program_flops(pool, shape(1, 8, 8, 3)) == 4 * 4 * 3 * 4
    rows = jnp.array([0, 0, 1])
    assert program_flops(lambda x: x.at[rows].add(1.0), x) == 18


def test_moving_comparing_and_integers_count_nothing():
    def moves(x):
        y = jnp.concatenate([x.T.reshape(4, 6), x], axis=0)[1:, ::-1]
        y = jnp.where(y > 0, y, 0.0).astype(jnp.bfloat16)
        return jnp.pad(y, 1)[jnp.arange(5) + 1]

    assert program_flops(moves, shape(4, 6)) == 0
    assert program_flops(lambda: jax.random.bits(jax.random.key(0), (3, 4))) == 0


def test_what_has_no_rule_is_refused():
    with pytest.raises(ValueError, match="no rule for the operations of cholesky"):
        program_flops(jnp.linalg.cholesky, shape(4, 4))


@pytest.mark.parametrize("name", ["resnet18", "learned_wo_content"])
def test_the_program_of_a_model_holds_what_the_paper_counts(name):
    """Small additions to the papers' number: norms, activations, mixing."""
    model, variables = network(name)
    forward = functools.partial(model.apply, train=False)
    program = program_flops(forward, variables, shape(1, *IMAGE))
    paper = paper_flops(model, variables, IMAGE)
    assert paper < program < 1.1 * paper
