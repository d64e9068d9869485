"""Figures of a run by name, against what its layers sow."""

import jax
import numpy as np
import pytest

from attn_cnn_jax import data, models
from attn_cnn_jax.analysis import figures
from attn_cnn_jax.analysis.attention_maps import attention_maps
from attn_cnn_jax.analysis.figure_request import FigureRequest
from attn_cnn_jax.analysis.heads import head_statistics
from attn_cnn_jax.analysis.images import choose_images
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.layers import sown_layers

GRID = ("query", "query_mean", "average")
BY_POSITION = ("query", "average")  # the mean over images is that of each
CENTERS = ("centers", "centers_end", "centers_layer")
AVAILABLE = {
    "quadratic_isotropic": (*CENTERS, *BY_POSITION),
    "shared quadratic_nonisotropic": (*CENTERS, *BY_POSITION),
    "learned_wo_content": (*BY_POSITION, "positions"),
    "learned_w_content_v1": (*GRID, "positions"),
    "transformer_xl": (*GRID, "positions"),
    "learned_w_content": GRID,
    "learned_query_position": GRID,
    "multi_head": GRID,
    "shared vit": GRID,
    "san": ("taps",),
    "san_hierarchical": ("taps",),
    "resnet": (),
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
    run, names = make_run(family), ("curves",)
    if family != "resnet":
        shared = ("heads", "closest_convolution", "convolution_epochs")
        names = (*AVAILABLE[family], *shared, "curves", "viewer")
        names += () if family.startswith("san") else ("ablation",)
    assert figures.available(run) == names
    missing = min({"taps", "positions", "query"} - set(AVAILABLE[family]))
    message = f"no figure '{missing}'; it can show {', '.join(names)}.$"
    with pytest.raises(UserError, match=message):
        next(figures.draw(missing, request_of(run)))


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
    assert list(query) == list(column) == ["query_test_00005", "query_test_00002"]
    averages = ["average_test_00005", "average_test_00002"]
    assert list(average) == list(received) == averages
    for index in SHOWN:
        place = f"test_{index:05}"
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
            text = drawn.words(figure)
            assert run.title in text and f"test image {index} (" in text
            assert (dropped in text) == (family == "vit")
            assert "for all images" not in text
    assert "row 1, column 2" in drawn.words(query["query_test_00005"])
    assert "who attends to it" in drawn.words(column["query_test_00005"])
    assert "who attends to it" not in drawn.words(query["query_test_00005"])
    assert "Average Attention (received)" in drawn.words(received["average_test_00002"])
    [(file, mean)] = figures.draw("query_mean", request)
    assert file == "query_mean"
    assert_shows(drawn, mean, [a[:SAMPLE, :, 1, 2].mean(axis=0) for a in probs])
    assert "mean over 4 test images" in drawn.words(mean)
    assert (dropped in drawn.words(mean)) == (family == "vit")


def test_maps_of_positions_are_drawn_once_for_all_images(make_run, drawn):
    run = make_run("quadratic_nonisotropic")
    probs = sown(run, [0])
    [(file, figure)] = figures.draw("query", request_of(run))
    assert file == "query"
    assert_shows(drawn, figure, [layer[0, :, 2, 2] for layer in probs])  # the middle
    text = drawn.words(figure)
    assert "test image 5 (" in text and "maps are the same for all images" in text
    with pytest.raises(UserError, match="by position alone.* is --figure=query"):
        next(figures.draw("query_mean", request_of(run)))
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
    assert list(found) == ["taps_test_00005", "taps_test_00002"]
    stages = ["stage 1 block 1", "stage 1 block 2", "stage 2 block 1"]
    names = stages if family == "san" else ["pass 1", "pass 2"]
    for place, figure in enumerate(found.values()):
        for name, layer in zip(names, weights, strict=True):
            for tap, offset in [(0, "(−1, −1)"), (2, "(−1, 1)"), (7, "(1, 0)")]:
                axes = drawn.axes(figure, f"{name}, {offset}")
                wanted = layer[place, :, :, tap].mean(axis=-1)
                found_here = drawn.array(axes)
                np.testing.assert_allclose(found_here, wanted, rtol=1e-4, atol=1e-6)
        raw = "raw weights, no softmax" in drawn.words(figure)
        assert raw == (family == "san_hierarchical")  # which is patchwise
        assert f"test image {SHOWN[place]} (" in drawn.words(figure)


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
    text = drawn.words(figure)
    assert file == "heads"
    assert f"{run.title}; 4 test images, covered from mass 0.07" in text
    assert "4 of 4 heads cover" in text and "too small" not in text


def test_the_heads_picture_names_the_layers_that_it_leaves_out(make_run, drawn):
    run = make_run("san")
    [(_, figure)] = figures.draw("heads", request_of(run))
    text = drawn.words(figure)
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
    for name in ("query", "average"):
        [(_, figure)] = figures.draw(name, request)
        for layer, order in [("layer 1", [4, 3, 1, 2]), ("layer 2", [1, 2, 3, 4])]:
            heads = [drawn.axes(figure, f"{layer}, head {head}") for head in order]
            places = [axes.get_position().x0 for axes in heads]
            assert places == sorted(places), (name, layer)
    assert request_of(run).order is None


@pytest.mark.parametrize("num_heads", [(0, 2), (0, 0)])
@pytest.mark.parametrize("family", ["quadratic_isotropic", "learned_wo_content"])
def test_layers_without_heads_are_drawn_as_such(family, num_heads, make_run, drawn):
    run = make_run(family, num_heads=num_heads)
    for name in (*AVAILABLE[family], "heads"):
        [(_, figure)] = figures.draw(name, request_of(run))
        text = "0 of 0 heads cover 0 offsets" if name == "heads" else "no head"
        assert text in drawn.words(figure), name


def test_titles_say_where_scores_are_of_another_mode(make_run):
    run = make_run("san_hierarchical")
    assert "evaluation mode" not in run.title
    run.config.evaluate_in_training_mode = True
    assert run.title.endswith("in evaluation mode (its scores: in training mode)")
