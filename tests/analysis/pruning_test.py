"""Degenerate heads, and runs without them."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_cnn_jax import checkpoint, models
from attn_cnn_jax import config as config_lib
from attn_cnn_jax.analysis.attention_maps import attention_maps
from attn_cnn_jax.analysis.figure_request import FigureRequest
from attn_cnn_jax.analysis.heads import as_text, head_statistics
from attn_cnn_jax.analysis.images import choose_images
from attn_cnn_jax.analysis.learned_positions import quadratic_heads
from attn_cnn_jax.analysis.pruning import degenerate_heads, prune, without_heads
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention import ATTENTIONS
from attn_cnn_jax.run import Run


def attention_of(variables, layer):
    name = "block" if "block" in variables["params"] else f"block_{layer}"
    return variables["params"][name]["attention"]


def logits(config, variables):
    model = models.build(config.model, 10)
    images = np.random.default_rng(1).normal(size=(2, 8, 8, 1))
    return jax.jit(lambda v, x: model.apply(v, x, train=False))(
        variables, jnp.asarray(images, jnp.float32)
    )


@pytest.fixture
def written(make_run):
    """`written(attention, change)`: a workdir of random variables after `change`."""

    def write(attention="quadratic_nonisotropic", change=lambda _: None, **fields):
        return make_run(attention, lambda _, drawn: change(drawn), **fields).workdir

    return write


ROTATION = np.array([[0.6, -0.8], [0.8, 0.6]])


def test_degenerate_by_hand_not_isotropic(tiny_config, random_variables):
    """Conditions of A^T A at both sides of the bound; what is uniform is no strip."""
    config = tiny_config("quadratic_nonisotropic")
    variables = random_variables(config)

    def spread(*singular_values):
        return ROTATION @ np.diag(singular_values) @ ROTATION.T[::-1]

    first, second = (attention_of(variables, i) for i in range(2))
    first["centers"][:] = second["centers"][:] = 0
    first["spreads"][:] = [
        spread(3, 0.09),  # condition 1111
        spread(3, 0.1),  # 900
        spread(0.003, 0.003),  # flat
        spread(0.1, 0.001),  # flat, of condition 10,000
    ]
    second["spreads"][:] = [
        spread(3, 0),
        np.zeros((2, 2)),
        spread(-1, 1),
        [[1, 1e5], [0, 1]],
    ]
    assert degenerate_heads(config, variables, (4, 4)) == [
        [(1, "strip"), (3, "uniform"), (4, "uniform")],
        [(1, "strip"), (2, "uniform"), (4, "strip")],
    ]


def test_what_is_uniform_depends_on_the_grid(tiny_config, random_variables):
    config = tiny_config("quadratic_isotropic")
    variables = random_variables(config)
    first, second = (attention_of(variables, i) for i in range(2))
    first["centers"][:] = second["centers"][:] = 0
    first["spreads"][:] = [0.001, -0.001, 0.2, -2]
    second["spreads"][:] = 1
    few, many = (degenerate_heads(config, variables, (n, n)) for n in (4, 16))
    assert few == [[(head, "uniform") for head in (1, 2, 3)], []]
    assert many == [[(head, "uniform") for head in (1, 2)], []]


@pytest.mark.parametrize(
    "family", ["quadratic_isotropic", "shared quadratic_isotropic"]
)
def test_the_numbers_of_heads_call_degenerate_what_is_pruned(family, make_run):
    """Some just below and above the bound, from the network's own maps."""

    def change(_, variables):
        for layer in variables["params"].values():
            if "attention" in layer:
                layer["attention"]["centers"][:] = [0.2, -0.3]
                layer["attention"]["spreads"][:] = [0.0, 0.2, 0.6, 1.0]

    run = make_run(family, change)
    images = choose_images(run.dataset, ["0-3"])
    table = FigureRequest(run, images, images).numbers
    found = degenerate_heads(run.config, run.variables, (4, 4))
    in_table = [h.head for h in table.heads if h.layer == table.layers[0].layer]
    told = [
        [(h.head, h.degenerate) for h in table.heads if h.layer == layer.layer]
        for layer in table.layers
    ]
    degenerate = [[pair for pair in layer if pair[1]] for layer in told]
    assert in_table == [1, 2, 3, 4] and len(degenerate) == 2
    assert degenerate == (found * 2 if family.startswith("shared") else found)
    assert 0 < len(degenerate[0]) < 4
    by_hand = quadratic_heads(run.model, run.variables, (4, 4))
    entropies = next(iter(by_hand.values())).entropies()
    measured = [h.entropy for h in table.heads[:4]]
    np.testing.assert_allclose(measured, entropies, rtol=1e-5)
    uniform = [h.degenerate == "uniform" for h in table.heads[:4]]
    assert uniform == [math.exp(e) >= 0.95 * 16 for e in entropies]


def silence(*heads):
    """Sets the value kernels of (layer, head from 1) to zero: they add nothing."""

    def change(variables):
        for layer, head in heads:
            attention_of(variables, layer - 1)["value_kernel"][head - 1] = 0

    return change


OWN_HEADS = sorted(set(ATTENTIONS) - {"multi_head"})


@pytest.mark.parametrize("attention", OWN_HEADS)
def test_heads_that_add_nothing_leave_the_logits(attention, written, tmp_path):
    workdir = written(attention, silence((1, 2), (2, 1), (2, 4)))
    removal = prune(workdir, tmp_path / "pruned", heads=["1:2", "2:4", "2:1", "2:1"])
    assert [[h for h, _ in layer] for layer in removal.removed] == [[2], [1, 4]]
    old, new = checkpoint.load(workdir), checkpoint.load(tmp_path / "pruned")
    assert new.config.model.num_heads == (3, 2)
    config_lib.check(new.config)
    expected = models.initial_variables(
        models.build(new.config.model, 10), jax.random.key(0), (8, 8, 1)
    )
    checkpoint.refuse_other_shapes(expected, new.variables, "pruned")
    np.testing.assert_allclose(
        logits(new.config, new.variables),
        logits(old.config, old.variables),
        rtol=1e-5,
        atol=1e-6,
    )
    before, after = removal.parameters
    assert before == models.count_parameters(old.variables)
    assert after == models.count_parameters(new.variables) < before


def test_other_heads_and_all_else_are_untouched(written, tmp_path):
    workdir = written("learned_w_content_v1")
    prune(workdir, tmp_path / "pruned", heads=["1:2"])
    old, new = (
        checkpoint.load(w).variables["params"] for w in (workdir, tmp_path / "pruned")
    )
    kept = [0, 2, 3]
    for name, array in new["block_0"]["attention"].items():
        was = old["block_0"]["attention"][name]
        if array.shape != was.shape:
            axis = next(a for a in range(was.ndim) if array.shape[a] != was.shape[a])
            was = np.take(was, kept, axis)
        np.testing.assert_array_equal(array, was)
    del old["block_0"]["attention"], new["block_0"]["attention"]
    jax.tree.map(np.testing.assert_array_equal, old, new)


def make_degenerate(variables):
    attention_of(variables, 0)["spreads"][:] = np.eye(2)
    attention_of(variables, 0)["spreads"][2] = 1e-4 * np.eye(2)
    attention_of(variables, 1)["spreads"][:] = np.diag([1, 1e-3])


def test_a_pruned_run_evaluates_and_analyses(written, tmp_path):
    """A layer that loses all of its heads included."""
    workdir = written(change=make_degenerate)
    removal = prune(workdir, tmp_path / "pruned")
    assert [[h for h, _ in layer] for layer in removal.removed] == [[3], [1, 2, 3, 4]]
    line = str(removal)
    assert "\n" not in line and line.startswith(
        "tiny_seed3: 5 heads removed, layer:head 1:3 ("
    )
    a_head = 2 + 4 + 16 * 16
    before, after = removal.parameters
    assert before - after == 5 * a_head
    assert f"{before:,} - {5 * a_head:,} = {after:,} parameters in" in line
    assert checkpoint.read_config(tmp_path / "pruned").model.num_heads == (3, 0)
    result = Run(tmp_path / "pruned").evaluate()
    assert result["images"] == 360 and result["step"] == 0
    run = Run(tmp_path / "pruned")
    maps = attention_maps(run, run.dataset.test.images[:3])
    assert [p.shape for p in maps.probs] == [(1, 3, 4, 4, 4, 4), (1, 0, 4, 4, 4, 4)]
    table = head_statistics(maps)
    assert [layer.num_heads for layer in table.layers] == [3, 0]
    assert [layer.kernel_size for layer in table.layers][1] == 0
    assert "layer 2" in as_text(table)


def test_a_network_without_any_head_analyses(written, tmp_path):
    workdir = written()
    heads = [f"{layer}:{head}" for layer in (1, 2) for head in (1, 2, 3, 4)]
    prune(workdir, tmp_path / "pruned", heads=heads)
    run = Run(tmp_path / "pruned")
    maps = attention_maps(run, run.dataset.test.images[:3])
    assert [p.shape[1] for p in maps.probs] == [0, 0]
    assert head_statistics(maps).heads == ()
    assert Run(tmp_path / "pruned").evaluate()["images"] == 360
    with pytest.raises(UserError, match="layer 1 has 0 heads"):
        prune(tmp_path / "pruned", tmp_path / "again", heads=["1:1"])


def test_nothing_degenerate_writes_nothing(written, tmp_path):
    def round_spreads(variables):
        for layer in range(2):
            attention_of(variables, layer)["spreads"][:] = np.eye(2)

    workdir = written(change=round_spreads)
    removal = prune(workdir, tmp_path / "pruned")
    assert str(removal).startswith("tiny_seed3: no head is degenerate (uniform or a")
    assert "as in --heads=2:1" in str(removal)
    assert removal.parameters[0] == removal.parameters[1]
    assert not (tmp_path / "pruned").exists()


def test_shared_weights_lose_a_head_in_all_passes(written, tmp_path):
    workdir = written(change=silence((1, 2)), share_weights=True)
    removal = prune(workdir, tmp_path / "pruned", heads=["1:2"])
    assert removal.removed == (((2, "as named"),),)
    old, new = checkpoint.load(workdir), checkpoint.load(tmp_path / "pruned")
    assert new.config.model.num_heads == 3
    np.testing.assert_allclose(
        logits(new.config, new.variables),
        logits(old.config, old.variables),
        rtol=1e-5,
        atol=1e-6,
    )
    with pytest.raises(UserError, match="the layers to prune are 1 to 1"):
        prune(workdir, tmp_path / "other", heads=["2:1"])
    with pytest.raises(UserError, match="has to keep one head"):
        prune(workdir, tmp_path / "other", heads=["1:1", "1:2", "1:3", "1:4"])


@pytest.mark.parametrize(
    "heads, match",
    [
        (["3:1"], "head 3:1: the layers to prune are 1 to 2"),
        (["0:1"], "head 0:1: the layers"),
        (["1:5"], "head 1:5: layer 1 has 4 heads"),
        (["1:0"], "head 1:0: layer 1 has 4 heads"),
        (["1-2"], "'1-2' is no head; give layer:head"),
        (["1:2:3"], "is no head"),
        ([], "no head was named"),
    ],
)
def test_heads_that_are_not_there_are_named(heads, match, written, tmp_path):
    workdir = written()
    with pytest.raises(UserError, match=match) as error:
        prune(workdir, tmp_path / "pruned", heads=heads)
    assert "\n" not in str(error.value) and not (tmp_path / "pruned").exists()


def test_what_cannot_be_pruned_is_said(
    written, tmp_path, tiny_config, random_variables
):
    workdir = written("learned_wo_content")
    with pytest.raises(UserError, match="learned_wo_content do not degenerate.*name"):
        prune(workdir, tmp_path / "pruned")
    config = tiny_config("multi_head")
    with pytest.raises(UserError, match="multi_head share the width"):
        without_heads(config, random_variables(config), [[1], []])
    config.model = config_lib.resnet("resnet10")
    with pytest.raises(UserError, match="self_attention, not from resnet10"):
        degenerate_heads(config, {}, (4, 4))
    with pytest.raises(UserError, match="already holds a run"):
        prune(workdir, workdir, heads=["1:1"])
    with pytest.raises(UserError, match="is not the workdir of a run"):
        prune(tmp_path / "nowhere", tmp_path / "pruned")


def test_a_removed_head_of_the_published_network_is_160_006_parameters():
    config = config_lib.base_config()
    config.model = config_lib.self_attention("quadratic_nonisotropic")
    config.model.num_layers = 1
    model = models.build(config.model, 10)
    shapes = jax.eval_shape(
        lambda: models.initial_variables(model, jax.random.key(0), (32, 32, 3))
    )
    full = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), shapes)
    pruned, left = without_heads(config, full, [[9, 4]])
    assert pruned.model.num_heads == 7
    lost = models.count_parameters(full) - models.count_parameters(left)
    assert lost == 2 * 160_006
