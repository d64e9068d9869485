"""Figures of a run by name, against what the layers sow and what the parameters say."""

import jax
import numpy as np
import pytest
from matplotlib.patches import Ellipse

from attn_cnn_jax import data, models
from attn_cnn_jax.analysis import figures
from attn_cnn_jax.analysis.attention_maps import attention_maps
from attn_cnn_jax.analysis.figure_request import FigureRequest
from attn_cnn_jax.analysis.heads import head_statistics
from attn_cnn_jax.analysis.images import choose_images
from attn_cnn_jax.checkpoint.folder import save_variables
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.layers import sown_layers

GRID_FIGURES = ("query", "query_mean", "average")
AVAILABLE = {
    "quadratic_isotropic": ("centers", "centers_end", "centers_layer", *GRID_FIGURES),
    "shared quadratic_nonisotropic": (
        "centers",
        "centers_end",
        "centers_layer",
        *GRID_FIGURES,
    ),
    "learned_wo_content": (*GRID_FIGURES, "positions"),
    "learned_w_content_v1": (*GRID_FIGURES, "positions"),
    "learned_w_content": GRID_FIGURES,
    "learned_query_position": GRID_FIGURES,
    "multi_head": GRID_FIGURES,
    "shared vit": GRID_FIGURES,
    "san": ("taps",),
    "san_hierarchical": ("taps",),
}
SHOWN = [5, 2]  # of the test set
SAMPLE = 4


def request_of(run, shown=SHOWN, **fields) -> FigureRequest:
    images = choose_images(run.dataset, [str(index) for index in shown])
    sample = choose_images(run.dataset, [f"0-{SAMPLE - 1}"])
    return FigureRequest(run, images, sample, **fields)


def sown(run, rows) -> list[np.ndarray]:
    """What the layers sow for images of the test set, from a pass of the test's own."""
    fields, rows = run.config.model, np.asarray(rows, np.int32)
    draws = models.evaluation_draws(
        run.model, jax.random.key(run.config.seed), jax.numpy.asarray(rows), 1
    )
    images = run.dataset.test.images[rows]
    pixels = data.normalize(images, run.dataset.mean, run.dataset.std)
    _, seen = jax.jit(
        lambda v, x: run.model.apply(
            v, x, train=False, mutable=["intermediates"], **draws
        )
    )(run.variables, pixels)
    sweeps = fields.get("num_sweeps", 1)
    layers = sown_layers(seen["intermediates"], fields.name, sweeps)
    return [np.asarray(probs) for _, probs in layers]


def words(drawn, figure) -> str:
    """All that is written on a figure, whose lines are broken anywhere."""
    return " ".join(" ".join(drawn.texts(figure)).split())


def assert_shows(drawn, figure, layers) -> None:
    """The heat maps of "layer 1, head 1" and so on are these, [N, H, W] a layer."""
    for number, layer in enumerate(layers, start=1):
        for head, wanted in enumerate(layer, start=1):
            axes = drawn.axes(figure, f"layer {number}, head {head}")
            found = drawn.array(axes)
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    names = [axes.get_label() for axes in figure.axes if " head " in axes.get_label()]
    assert len(names) == sum(map(len, layers))


@pytest.mark.parametrize("family", AVAILABLE)
def test_every_family_has_its_figures(family, make_run):
    run = make_run(family)
    assert figures.available(run) == (*AVAILABLE[family], "heads", "curves", "viewer")
    missing = min({"taps", "positions", "query"} - set(AVAILABLE[family]))
    with pytest.raises(UserError, match=f"no figure '{missing}'; it can show .*heads"):
        next(figures.draw(missing, request_of(run)))


def test_a_network_without_attention_has_curves_alone(make_run):
    run = make_run("resnet")
    assert figures.available(run) == ("curves",)
    with pytest.raises(UserError, match="no figure 'query'; it can show curves.$"):
        next(figures.draw("query", request_of(run)))


@pytest.mark.parametrize("family", ["learned_w_content", "vit"])
def test_pictures_of_heads_are_what_was_sown(family, make_run, drawn):
    """For each image at a query pixel, from a key pixel, averaged; and their mean."""
    run = make_run(family)
    probs, dropped = sown(run, range(6)), "class token dropped"
    if family == "vit":  # token 0 is the class token
        probs = [layer[:, :, 1:, 1:] for layer in probs]
    probs = [layer.reshape(*layer.shape[:2], 4, 4, 4, 4) for layer in probs]
    request = request_of(run, query="1,2")
    query, column, average, received = (
        dict(figures.draw(name, one))
        for name, one in [
            ("query", request),
            ("query", request_of(run, query="1,2", by_key=True)),
            ("average", request),
            ("average", request_of(run, average="received")),
        ]
    )
    assert list(query) == list(column) == ["query_1", "query_2"]
    assert list(average) == list(received) == ["average_1", "average_2"]
    for place, index in enumerate(SHOWN, start=1):
        assert_shows(drawn, query[f"query_{place}"], [a[index, :, 1, 2] for a in probs])
        keys = [layer[index, :, :, :, 1, 2] for layer in probs]
        assert_shows(drawn, column[f"query_{place}"], keys)
        means = [layer[index].mean(axis=(1, 2)) for layer in probs]
        assert_shows(drawn, received[f"average_{place}"], means)
        shares = [a[index] / a[index].sum(axis=(1, 2), keepdims=True) for a in probs]
        means = [layer.mean(axis=(3, 4)) for layer in shares]
        assert_shows(drawn, average[f"average_{place}"], means)
        for figure in (query[f"query_{place}"], average[f"average_{place}"]):
            picture = drawn.array(drawn.axes(figure, "input image"))
            np.testing.assert_array_equal(
                picture, run.dataset.test.images[index][..., 0]
            )
            text = words(drawn, figure)
            assert run.title in text and f"test image {index} (" in text
            assert (dropped in text) == (family == "vit")
            assert "for all images" not in text
    assert "row 1, column 2" in words(drawn, query["query_1"])
    assert "who attends to it" in words(drawn, column["query_1"])
    assert "who attends to it" not in words(drawn, query["query_1"])
    assert "Average Attention (received)" in words(drawn, received["average_2"])
    [(file, mean)] = figures.draw("query_mean", request)
    assert file == "query_mean"
    assert_shows(drawn, mean, [a[:SAMPLE, :, 1, 2].mean(axis=0) for a in probs])
    assert "mean over 4 test images" in words(drawn, mean)
    assert (dropped in words(drawn, mean)) == (family == "vit")


def test_maps_of_positions_are_drawn_once_for_all_images(make_run, drawn):
    run = make_run("quadratic_nonisotropic")
    probs = sown(run, [0])
    [(file, figure)] = figures.draw("query", request_of(run))
    assert file == "query"
    assert_shows(drawn, figure, [layer[0, :, 2, 2] for layer in probs])  # the middle
    text = words(drawn, figure)
    assert "test image 5 (" in text and "maps are the same for all images" in text
    [(_, mean)] = figures.draw("query_mean", request_of(run))
    assert_shows(drawn, mean, [layer[0, :, 2, 2] for layer in probs])
    alone = dict(figures.draw("query", request_of(run, shown=[3])))
    assert list(alone) == ["query"]


def test_literal_averages_that_are_infinite_are_left_white(make_run, drawn):
    """All heads look far beyond the right border, so that float32 gives others 0."""

    def change(_, variables):
        for block in ("block_0", "block_1"):
            layer = variables["params"][block]["attention"]
            layer["centers"][:], layer["spreads"][:] = [0.0, 40.0], 3.0

    run = make_run("quadratic_isotropic", change)
    [(file, figure)] = figures.draw("average", request_of(run, average="literal"))
    assert file == "average"
    shown = drawn.array(drawn.axes(figure, "layer 1, head 1"))
    assert np.isnan(shown[:, :3]).all() and np.isfinite(shown[:, 3]).all()


@pytest.mark.parametrize("family", ["san", "san_hierarchical"])
def test_taps_are_means_over_planes(family, make_run, drawn):
    run = make_run(family)
    weights = sown(run, SHOWN)  # [B, H, W, T, G]
    found = dict(figures.draw("taps", request_of(run)))
    assert list(found) == ["taps_1", "taps_2"]
    stages = ["stage 1 block 1", "stage 1 block 2", "stage 2 block 1"]
    names = stages if family == "san" else ["pass 1", "pass 2"]
    for place, figure in enumerate(found.values()):
        for name, layer in zip(names, weights, strict=True):
            for tap, offset in [(0, "(−1, −1)"), (2, "(−1, 1)"), (7, "(1, 0)")]:
                axes = drawn.axes(figure, f"{name}, {offset}")
                wanted = layer[place, :, :, tap].mean(axis=-1)
                found_here = drawn.array(axes)
                np.testing.assert_allclose(found_here, wanted, rtol=1e-4, atol=1e-6)
        raw = "raw weights, no softmax" in words(drawn, figure)
        assert raw == (family == "san_hierarchical")  # which is patchwise
        assert f"test image {SHOWN[place]} (" in words(drawn, figure)


def test_numbers_of_heads_are_those_of_the_sample(make_run, drawn):
    run = make_run("learned_w_content")
    request = request_of(run, threshold=0.07)
    [(file, figure)] = figures.draw("heads", request)
    maps = attention_maps(run, run.dataset.test.images[:SAMPLE])
    table = head_statistics(maps, 0.07)
    for layer in table.layers:
        heads = [head for head in table.heads if head.layer == layer.layer]
        strip = drawn.array(drawn.axes(figure, f"{layer.layer}, content"))
        wanted = [[head.content_dependence for head in heads]]
        np.testing.assert_allclose(strip, wanted, rtol=1e-4, atol=1e-7)
        assert np.min(wanted) > 0
    text = words(drawn, figure)
    assert file == "heads"
    assert f"{run.title}; 4 test images, covered from mass 0.07" in text
    assert "4 of 4 heads cover" in text and "too small" not in text


def test_the_heads_picture_names_the_layers_that_it_leaves_out(make_run, drawn):
    run = make_run("san")
    [(_, figure)] = figures.draw("heads", request_of(run))
    text = words(drawn, figure)
    assert "grid too small for numbers: stage 2 block 1" in text
    assert " of 2 planes cover " in text and "heads cover" not in text


def look_at(*layers):
    """Sets isotropic heads that look sharply at these offsets, for every layer."""

    def change(_, variables):
        for number, offsets in enumerate(layers):
            layer = variables["params"][f"block_{number}"]["attention"]
            layer["centers"][:], layer["spreads"][:] = offsets, 3.0

    return change


def test_heads_stand_in_reading_order_if_asked(make_run, drawn):
    right, left, up, down = (0, 1), (0, -1), (-1, 0), (1, 0)
    change = look_at([right, down, left, up], [up, left, right, down])
    run = make_run("quadratic_isotropic", change)
    request = request_of(run, reorder=True)
    for name in ("query", "query_mean", "average"):
        [(_, figure)] = figures.draw(name, request)
        for layer, order in [("layer 1", [4, 3, 1, 2]), ("layer 2", [1, 2, 3, 4])]:
            heads = [drawn.axes(figure, f"{layer}, head {head}") for head in order]
            places = [axes.get_position().x0 for axes in heads]
            assert places == sorted(places), (name, layer)
    assert request_of(run).order is None


@pytest.mark.parametrize("family", ["learned_wo_content", "shared learned_wo_content"])
def test_positions_are_the_learned_scores(family, make_run, drawn):
    """For one layer with shared weights, which has no order of its own."""
    run = make_run(family)
    request = request_of(run, reorder=True)
    [(file, figure)] = figures.draw("positions", request)
    shared = family.startswith("shared ")
    names = {"block": "all layers"} if shared else {"block_1": "layer 2"}
    for block, name in names.items():
        layer = run.variables["params"][block]["attention"]
        rows, columns = (
            layer[f"{axis}_embeddings"] @ layer[f"{axis}_keys"]
            for axis in ("row", "col")
        )
        for head in range(4):
            shown = drawn.array(drawn.axes(figure, f"{name}, head {head + 1}"))
            assert shown.shape == (7, 7) and len(rows) == 31
            wanted = rows[12:19, None, head] + columns[None, 12:19, head]
            np.testing.assert_allclose(shown, wanted, rtol=1e-4, atol=1e-6)
        heads = [drawn.axes(figure, f"{name}, head {i + 1}") for i in range(4)]
        lefts = np.array([axes.get_position().x0 for axes in heads])
        order = np.arange(4) if shared else request.order[1]
        np.testing.assert_array_equal(np.argsort(lefts), order)
    assert file == "positions" and run.title in words(drawn, figure)


def ellipses(axes) -> dict[int, tuple]:
    """Head: (row, column) of the middle of its contours."""
    found = [patch for patch in axes.patches if isinstance(patch, Ellipse)]
    return {int(p.get_label().split()[1][:-1]): p.center[::-1] for p in found}


def test_centres_over_training_are_those_of_each_checkpoint(make_run, drawn):
    """An epoch is of 14 steps; sorted as text, 140 steps would come before 28."""
    run = make_run("quadratic_nonisotropic")
    block = run.variables["params"]["block_1"]["attention"]
    epochs = {0: 1.0, 2: 2.0, 10: 3.0}
    for epoch, factor in epochs.items():
        if epoch:
            changed = jax.tree.map(lambda leaf, f=factor: f * leaf, run.variables)
            folder = run.workdir / "snapshots" / str(14 * epoch)
            save_variables(folder, run.config, 14 * epoch, changed)
    request = request_of(run, layer=2)
    [(file, figure)] = figures.draw("centers", request)
    [(of_layer, panels)] = figures.draw("centers_layer", request)
    [(at_end, last)] = figures.draw("centers_end", request)
    names = ["centers", "centers_layer_2", "centers_end"]
    assert [file, of_layer, at_end] == names
    tops, lefts = [], []
    for epoch, factor in epochs.items():
        axes = drawn.axes(figure, f"epoch {epoch}, layer 2")
        panel = drawn.axes(panels, f"epoch {epoch}")
        for head, center in enumerate(factor * block["centers"], start=1):
            assert ellipses(axes)[head] == pytest.approx(tuple(center))
            assert ellipses(panel)[head] == pytest.approx(tuple(center))
        tops.append(-axes.get_position().y0)
        lefts.append(panel.get_position().x0)
    assert tops == sorted(tops) and lefts == sorted(lefts)
    for head, center in enumerate(block["centers"], start=1):
        here = ellipses(drawn.axes(last, "layer 2"))
        assert here[head] == pytest.approx(tuple(center))
    assert "tiny_seed3 (self_attention, quadratic_nonisotropic)" in words(drawn, figure)
    assert "of layer 2 over training" in words(drawn, panels)
    assert run.title in words(drawn, last)
    for wrong in (0, 3):
        with pytest.raises(UserError, match=f"--layer={wrong}: the layers are 1 to 2"):
            next(figures.draw("centers_layer", request_of(run, layer=wrong)))
    steps = [one.step for one in figures.checkpoints(run.at(28))]
    assert steps == [28, 140]  # 0 is the last checkpoint of this run, and no snapshot


@pytest.mark.parametrize("num_heads", [(0, 2), (0, 0)])
@pytest.mark.parametrize("family", ["quadratic_isotropic", "learned_wo_content"])
def test_layers_without_heads_are_drawn_as_such(family, num_heads, make_run, drawn):
    run = make_run(family, num_heads=num_heads)
    for name in (*AVAILABLE[family], "heads"):
        [(_, figure)] = figures.draw(name, request_of(run))
        text = "0 of 0 heads cover 0 offsets" if name == "heads" else "no head"
        assert text in words(drawn, figure), name


def test_titles_say_where_scores_are_of_another_mode(make_run):
    run = make_run("san_hierarchical")
    assert "evaluation mode" not in run.title
    run.config.evaluate_in_training_mode = True
    assert run.title.endswith("in evaluation mode (its scores: in training mode)")
