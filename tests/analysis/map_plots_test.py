"""Pages of maps show the numbers that they were given, where they say they do."""

import numpy as np
import pytest

from attn_cnn_jax.analysis import plots
from attn_cnn_jax.analysis.plots.page import two_digits

TITLE = "learned_seed1, step 500 (epoch 3)"
LAYERS = ["layer 1", "layer 2"]


def test_maps_are_those_given_and_the_query_is_marked(rng, drawn):
    maps = [rng.random((9, 4, 6), np.float32), rng.random((7, 4, 6), np.float32)]
    image = rng.integers(0, 255, (8, 12, 3), np.uint8)
    figure = plots.attention_at_query(
        maps, query=(3, 1), title=TITLE, layers=LAYERS, image=image, image_name="dog"
    )
    for layer, layer_maps in zip(LAYERS, maps, strict=True):
        for head, one in enumerate(layer_maps):
            axes = drawn.axes(figure, f"{layer}, head {head + 1}")
            np.testing.assert_array_equal(drawn.array(axes), one)
            (mark,) = axes.patches
            assert drawn.middle(mark) == (3, 1) and mark.get_width() == 1
            assert axes.get_images()[0].get_clim() == (0, one.max())
            assert float(axes.get_xlabel()) == pytest.approx(100 * one.max(), rel=0.06)
    picture = drawn.axes(figure, "input image")
    np.testing.assert_array_equal(drawn.array(picture), image)
    (mark,) = picture.patches
    assert (
        drawn.middle(mark) == (6.5, 2.5) and mark.get_width() == mark.get_height() == 2
    )
    written = drawn.texts(figure)
    assert written.count("no\nhead") == 2
    assert {TITLE, "dog", "head 9", *LAYERS} <= set(written)
    assert "Attention at the query pixel (row 3, column 1)" in written


def test_a_mark_lies_on_the_pixel_of_its_query(drawn):
    """In the file, not only in numbers: rows go down, columns go right."""
    maps = [np.zeros((1, 5, 5), np.float32)]
    figure = plots.attention_at_query(
        maps, query=(4, 1), title=TITLE, layers=["layer 1"]
    )
    axes = drawn.axes(figure, "layer 1, head 1")
    (mark,) = axes.patches
    x, y = axes.transAxes.inverted().transform(axes.transData.transform((1, 4)))
    assert (x, y) == pytest.approx((0.3, 0.1))
    assert drawn.middle(mark) == (4, 1)


def test_gray_images_and_layers_without_heads(rng, drawn):
    image = rng.integers(0, 255, (8, 8, 1), np.uint8)
    maps = [np.zeros((0, 4, 4)), rng.random((16, 4, 4))]
    figure = plots.average_attention(
        maps, variant="received", title=TITLE, layers=LAYERS, image=image
    )
    np.testing.assert_array_equal(
        drawn.array(drawn.axes(figure, "input image")), image[..., 0]
    )
    assert drawn.texts(figure).count("no\nhead") == 16
    assert "Average Attention (received)" in drawn.texts(figure)
    assert not drawn.axes(figure, "layer 2, head 16").patches
    assert not drawn.axes(figure, "input image").patches


def test_heads_stand_in_the_order_asked_for(rng, drawn):
    maps = [rng.random((3, 2, 2))]
    figure = plots.attention_at_query(
        maps,
        query=(0, 0),
        title=TITLE,
        layers=["layer 1"],
        order=[np.array([2, 0, 1])],
    )
    heads = [drawn.axes(figure, f"layer 1, head {head}") for head in (3, 1, 2)]
    lefts = [axes.get_position().x0 for axes in heads]
    assert lefts == sorted(lefts)
    assert [axes.get_title() for axes in heads] == ["head 3", "head 1", "head 2"]
    np.testing.assert_array_equal(drawn.array(heads[0]), maps[0][2])
    with pytest.raises(ValueError, match="no permutation"):
        plots.average_attention(
            maps, variant="", title="", layers=["a"], order=[np.array([0, 0, 1])]
        )


def test_taps_name_their_offsets_and_diverge_from_zero(rng, drawn):
    maps = [rng.normal(size=(9, 5, 7)), rng.normal(size=(9, 5, 7))]
    figure = plots.tap_weights(maps, title=TITLE, layers=["pass 1", "pass 2"])
    axes = drawn.axes(figure, "pass 2, (−1, 1)")
    np.testing.assert_array_equal(drawn.array(axes), maps[1][2])
    reach = np.abs(maps[1]).max()
    assert axes.get_images()[0].get_clim() == pytest.approx((-reach, reach))
    extreme = maps[1][2].flat[np.abs(maps[1][2]).argmax()]
    label = float(axes.get_xlabel().replace("−", "-"))
    assert label == pytest.approx(extreme, rel=0.06)
    written = drawn.texts(figure)
    assert {"−max", "0", "+max", "scale of each layer"} <= set(written)
    above_zero = plots.tap_weights([abs(maps[0])], title=TITLE, layers=["pass 1"])
    one = drawn.axes(above_zero, "pass 1, (1, 0)").get_images()[0]
    assert one.get_clim() == (0, abs(maps[0]).max())


def test_maps_share_a_scale_if_asked(rng, drawn):
    """A head that looks everywhere is then pale beside one that does not."""
    sharp, flat = np.zeros((4, 4)), np.full((4, 4), 1 / 16)
    sharp[1, 2] = 0.8
    maps = [np.stack([sharp, np.full((4, 4), np.nan)]), flat[None]]
    look = {"query": (1, 2), "title": TITLE, "layers": LAYERS}
    own = plots.attention_at_query(maps, **look)
    common = plots.attention_at_query(maps, **look, common_scale=True)
    limits = [
        drawn.axes(figure, "layer 2, head 1").get_images()[0].get_clim()
        for figure in (own, common)
    ]
    assert limits == [(0, 1 / 16), (0, 0.8)]
    assert {"80 %", "scale of all maps"} <= set(drawn.texts(common))
    assert {"max", "scale of each map"} <= set(drawn.texts(own))


def test_a_common_scale_of_scores_goes_as_far_around_each_mean(drawn):
    tables = [np.zeros((2, 3, 3))]
    tables[0][0, 0, 0], tables[0][1] = 9.0, 5.0  # mean 1, farthest 8; all 5
    look = {"title": TITLE, "layers": ["layer 1"], "common_scale": True}
    figure = plots.position_scores(tables, **look)
    limits = [
        drawn.axes(figure, f"layer 1, head {head}").get_images()[0].get_clim()
        for head in (1, 2)
    ]
    assert limits == [(-7, 9), (-3, 13)]
    assert {"−8.0", "mean", "+8.0"} <= set(drawn.texts(figure))


def test_heads_stand_in_lines_on_a_narrow_page(rng, drawn):
    with plots.use(plots.Style(width=3.3)):
        figure = plots.attention_at_query(
            [rng.random((9, 4, 4))], query=(0, 0), title=TITLE, layers=["layer 1"]
        )
    places = [
        drawn.axes(figure, f"layer 1, head {head}").get_position()
        for head in range(1, 10)
    ]
    assert len({round(place.y0, 6) for place in places}) == 2
    assert max(place.x1 for place in places) < 1 and figure.get_figwidth() == 3.3


def test_many_taps_stand_as_their_window(rng, drawn):
    figure = plots.tap_weights(
        [rng.random((9, 4, 4)), rng.random((25, 4, 4))], title=TITLE, layers=LAYERS
    )
    corner = drawn.axes(figure, "layer 2, (−2, −2)").get_position()
    lower = drawn.axes(figure, "layer 2, (2, −2)").get_position()
    right = drawn.axes(figure, "layer 2, (−2, 2)").get_position()
    assert corner.x0 == lower.x0 and corner.y0 > lower.y0
    assert corner.y0 == right.y0 and corner.x0 < right.x0
    with pytest.raises(ValueError, match="no window"):
        plots.tap_weights([rng.random((8, 4, 4))], title=TITLE, layers=["layer 1"])


def test_position_tables_mark_the_query_and_the_best_offset(drawn):
    table = np.zeros((1, 5, 7), np.float32)
    table[0, 0, 4] = 35.0  # row -2, column 1
    figure = plots.position_scores([table], title=TITLE, layers=["layer 1"])
    axes = drawn.axes(figure, "layer 1, head 1")
    np.testing.assert_array_equal(drawn.array(axes), table[0])
    assert axes.get_xlabel() == "−2,1"
    assert drawn.middle(axes.patches[0]) == (2, 3)
    limits = axes.get_images()[0].get_clim()
    assert limits == pytest.approx((1 - 34, 1 + 34))  # around the mean, 35 / 35
    scale = {"low", "mean", "high", "scale of each map"}
    assert scale <= set(drawn.texts(figure))
    with pytest.raises(ValueError, match="odd"):
        plots.position_scores([np.zeros((1, 4, 5))], title="", layers=["a"])


def test_numbers_have_two_digits():
    values = [100.0, 99.6, 12.4, 9.96, 4.0, 0.996, 0.5, -0.0312, 0.0]
    text = "100 100 12 10 4.0 1.0 0.50 −0.031 0"
    assert [two_digits(value) for value in values] == text.split()


def test_maps_that_are_not_finite_say_so(drawn):
    maps = [np.full((1, 3, 3), np.nan)]
    figure = plots.average_attention(maps, variant="", title="", layers=["layer 1"])
    assert drawn.axes(figure, "layer 1, head 1").get_xlabel() == "not finite"
