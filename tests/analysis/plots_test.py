"""Figures show the numbers that they were given, where they say they do."""

import dataclasses

import matplotlib
import numpy as np
import pytest
from matplotlib.patches import Ellipse, FancyBboxPatch, Rectangle

from attn_cnn_jax.analysis import plots
from attn_cnn_jax.analysis.attention_maps import AttentionMaps
from attn_cnn_jax.analysis.plots.page import two_digits
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.results.curves import Curve, RunCurves

TITLE = "learned_seed1, step 500 (epoch 3)"
LAYERS = ["layer 1", "layer 2"]


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def axes_of(figure, label):
    """The axes of that label, of which there is one."""
    (found,) = [axes for axes in figure.axes if axes.get_label() == label]
    return found


def shown(axes):
    (image,) = axes.get_images()
    return np.asarray(image.get_array())


def texts(figure):
    """All that is written on a figure."""
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text)]


def middle(patch):
    """(row, column) of the middle of a rectangle."""
    return patch.get_y() + patch.get_height() / 2, patch.get_x() + patch.get_width() / 2


# Attention maps


def test_maps_are_those_given_and_the_query_is_marked(rng):
    maps = [rng.random((9, 4, 6), np.float32), rng.random((7, 4, 6), np.float32)]
    image = rng.integers(0, 255, (8, 12, 3), np.uint8)
    figure = plots.attention_at_query(
        maps, query=(3, 1), title=TITLE, layers=LAYERS, image=image, image_name="dog"
    )
    for layer, layer_maps in zip(LAYERS, maps, strict=True):
        for head, one in enumerate(layer_maps):
            axes = axes_of(figure, f"{layer}, head {head + 1}")
            np.testing.assert_array_equal(shown(axes), one)
            (mark,) = axes.patches
            assert middle(mark) == (3, 1) and mark.get_width() == 1
            assert axes.get_images()[0].get_clim() == (0, one.max())
            assert float(axes.get_xlabel()) == pytest.approx(100 * one.max(), rel=0.06)
    picture = axes_of(figure, "input image")
    np.testing.assert_array_equal(shown(picture), image)
    (mark,) = picture.patches
    assert middle(mark) == (6.5, 2.5) and mark.get_width() == mark.get_height() == 2
    written = texts(figure)
    assert written.count("no\nhead") == 2
    assert {TITLE, "dog", "head 9", *LAYERS} <= set(written)
    assert "Attention at the query pixel (row 3, column 1)" in written


def test_a_mark_lies_on_the_pixel_of_its_query():
    """In the file, not only in numbers: rows go down, columns go right."""
    maps = [np.zeros((1, 5, 5), np.float32)]
    figure = plots.attention_at_query(
        maps, query=(4, 1), title=TITLE, layers=["layer 1"]
    )
    axes = axes_of(figure, "layer 1, head 1")
    (mark,) = axes.patches
    x, y = axes.transAxes.inverted().transform(axes.transData.transform((1, 4)))
    assert (x, y) == pytest.approx((0.3, 0.1))
    assert middle(mark) == (4, 1)


def test_gray_images_and_layers_without_heads(rng):
    image = rng.integers(0, 255, (8, 8, 1), np.uint8)
    maps = [np.zeros((0, 4, 4)), rng.random((16, 4, 4))]
    figure = plots.average_attention(
        maps, variant="received", title=TITLE, layers=LAYERS, image=image
    )
    np.testing.assert_array_equal(shown(axes_of(figure, "input image")), image[..., 0])
    assert texts(figure).count("no\nhead") == 16
    assert "Average Attention (received)" in texts(figure)
    assert not axes_of(figure, "layer 2, head 16").patches
    assert not axes_of(figure, "input image").patches


@pytest.mark.parametrize("scale", ["map", "layer", "figure"])
def test_what_shares_a_colour_scale(scale):
    maps = [np.full((2, 3, 3), 0.2), np.stack([np.full((3, 3), 0.4), np.eye(3)])]
    figure = plots.average_attention(
        maps, variant="Eqn 4", title=TITLE, layers=LAYERS, scale=scale
    )
    highest = [
        axes_of(figure, f"layer {layer}, head {head}").get_images()[0].get_clim()[1]
        for layer in (1, 2)
        for head in (1, 2)
    ]
    expected = {
        "map": [0.2, 0.2, 0.4, 1],
        "layer": [0.2, 0.2, 1, 1],
        "figure": [1, 1, 1, 1],
    }
    assert highest == expected[scale]


def test_heads_stand_in_the_order_asked_for(rng):
    maps = [rng.random((3, 2, 2))]
    figure = plots.attention_at_query(
        maps,
        query=(0, 0),
        title=TITLE,
        layers=["layer 1"],
        order=[np.array([2, 0, 1])],
    )
    heads = [axes_of(figure, f"layer 1, head {head}") for head in (3, 1, 2)]
    lefts = [axes.get_position().x0 for axes in heads]
    assert lefts == sorted(lefts)
    assert [axes.get_title() for axes in heads] == ["head 3", "head 1", "head 2"]
    np.testing.assert_array_equal(shown(heads[0]), maps[0][2])
    with pytest.raises(ValueError, match="no permutation"):
        plots.average_attention(
            maps, variant="", title="", layers=["a"], order=[np.array([0, 0, 1])]
        )


def test_reading_order_is_by_row_then_column():
    kernel = np.array([(r, c) for r in (-1, 0, 1) for c in (-1, 0, 1)], float)
    heads = np.array([4, 8, 0, 2, 6, 1, 5, 3, 7])
    noise = 0.2 * np.sin(np.arange(18.0)).reshape(9, 2)
    order = plots.reading_order((kernel + noise)[heads])
    np.testing.assert_array_equal(heads[order], np.arange(9))
    unknown = np.array([(np.nan, 0.0), (1.0, 1.0), (-2.0, 3.0)])
    np.testing.assert_array_equal(plots.reading_order(unknown), [2, 1, 0])


def test_taps_name_their_offsets_and_diverge_from_zero(rng):
    maps = [rng.normal(size=(9, 5, 7)), rng.normal(size=(9, 5, 7))]
    figure = plots.tap_weights(maps, title=TITLE, layers=["pass 1", "pass 2"])
    axes = axes_of(figure, "pass 2, (−1, 1)")
    np.testing.assert_array_equal(shown(axes), maps[1][2])
    reach = np.abs(maps[1]).max()
    assert axes.get_images()[0].get_clim() == pytest.approx((-reach, reach))
    extreme = maps[1][2].flat[np.abs(maps[1][2]).argmax()]
    label = float(axes.get_xlabel().replace("−", "-"))
    assert label == pytest.approx(extreme, rel=0.06)
    above_zero = plots.tap_weights([abs(maps[0])], title=TITLE, layers=["pass 1"])
    one = axes_of(above_zero, "pass 1, (1, 0)").get_images()[0]
    assert one.get_clim() == (0, abs(maps[0]).max())


def test_many_taps_stand_as_their_window(rng):
    figure = plots.tap_weights(
        [rng.random((9, 4, 4)), rng.random((25, 4, 4))], title=TITLE, layers=LAYERS
    )
    corner = axes_of(figure, "layer 2, (−2, −2)").get_position()
    lower = axes_of(figure, "layer 2, (2, −2)").get_position()
    right = axes_of(figure, "layer 2, (−2, 2)").get_position()
    assert corner.x0 == lower.x0 and corner.y0 > lower.y0
    assert corner.y0 == right.y0 and corner.x0 < right.x0
    with pytest.raises(ValueError, match="no window"):
        plots.tap_weights([rng.random((8, 4, 4))], title=TITLE, layers=["layer 1"])


def test_position_tables_mark_the_query_and_the_best_offset():
    table = np.zeros((1, 5, 7), np.float32)
    table[0, 0, 4] = 35.0  # row -2, column 1
    figure = plots.position_scores(
        [table], title=TITLE, layers=["layer 1"], softmaxed=False
    )
    axes = axes_of(figure, "layer 1, head 1")
    np.testing.assert_array_equal(shown(axes), table[0])
    assert axes.get_xlabel() == "−2,1"
    assert middle(axes.patches[0]) == (2, 3)
    low, high = axes.get_images()[0].get_clim()
    assert (low + high) / 2 == pytest.approx(table.mean())
    probs = plots.position_scores([table], title="", layers=["a"], softmaxed=True)
    assert axes_of(probs, "a, head 1").get_images()[0].get_clim() == (0, 35)
    with pytest.raises(ValueError, match="odd"):
        plots.position_scores(
            [np.zeros((1, 4, 5))], title="", layers=["a"], softmaxed=True
        )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (100.0, "100"),
        (99.6, "100"),
        (12.4, "12"),
        (9.96, "10"),
        (4.0, "4.0"),
        (0.996, "1.0"),
        (0.5, "0.50"),
        (-0.0312, "−0.031"),
        (0.0, "0"),
    ],
)
def test_numbers_have_two_digits(value, text):
    assert two_digits(value) == text


def test_maps_that_are_not_finite_say_so():
    maps = [np.full((1, 3, 3), np.nan)]
    figure = plots.average_attention(maps, variant="", title="", layers=["layer 1"])
    assert axes_of(figure, "layer 1, head 1").get_xlabel() == "not finite"


def test_a_title_names_run_and_checkpoint():
    maps = AttentionMaps(
        kind="grid",
        layers=(),
        probs=(),
        class_mass=None,
        images=np.zeros((0, 8, 8, 1), np.uint8),
        names=(),
        run="quadratic_seed3",
        step=150_000,
        epoch=300.0,
    )
    assert plots.describe(maps) == "quadratic_seed3, step 150,000 (epoch 300)"


# Centres of attention


def gaussians(rng, count=3):
    spreads = rng.normal(size=(count, 2, 2)) + np.eye(2)
    precisions = spreads @ spreads.transpose(0, 2, 1)
    return plots.GaussianHeads(rng.normal(size=(count, 2)), precisions)


def ellipse(axes, head, mass):
    (found,) = [
        patch
        for patch in axes.patches
        if isinstance(patch, Ellipse) and patch.get_label() == f"head {head}, {mass}%"
    ]
    return found


def test_contours_hold_their_share_of_the_mass(rng):
    heads = gaussians(rng)
    figure = plots.centers_of_layers([heads], title=TITLE, layers=["layer 1"])
    axes = axes_of(figure, "layer 1")
    for head in range(3):
        covariance = np.linalg.inv(heads.precisions[head])
        sample = rng.multivariate_normal(heads.centers[head], covariance, 40_000)
        for mass, style in ((50, "-"), (90, None)):
            patch = ellipse(axes, head + 1, mass)
            path = patch.get_patch_transform().transform_path(patch.get_path())
            inside = path.contains_points(sample[:, ::-1]).mean()
            assert inside == pytest.approx(mass / 100, abs=0.01)
            assert (patch.get_linestyle() == "-") == (style == "-")


def test_a_contour_lies_along_its_gaussian_with_rows_down():
    """Mass along row = column runs from the upper left to the lower right."""
    long, short = np.array([1, 1]) / 2**0.5, np.array([1, -1]) / 2**0.5
    precision = np.outer(long, long) / 4 + np.outer(short, short) * 4
    heads = plots.GaussianHeads(np.array([[1.0, 3.0]]), precision[None])
    figure = plots.centers_of_layers([heads], title=TITLE, layers=["layer 1"])
    axes = axes_of(figure, "layer 1")
    patch = ellipse(axes, 1, 50)
    assert patch.center == (3.0, 1.0)
    corners = patch.get_patch_transform().transform([(1, 0), (-1, 0)])
    ends = axes.transData.transform(corners)
    (right, down) = ends[ends[:, 0].argmax()] - ends[ends[:, 0].argmin()]
    assert right > 0 and down == pytest.approx(-right)
    assert patch.width == pytest.approx(2 * 2 * np.sqrt(2 * np.log(2)))
    assert patch.height == pytest.approx(2 * 0.5 * np.sqrt(2 * np.log(2)))


def test_degenerate_heads_are_drawn_and_named():
    precisions = np.stack(
        [np.zeros((2, 2)), np.diag([4.0, 0.0]), np.eye(2) * 1e12, np.full((2, 2), 9e9)]
    )
    precisions[3, 0, 0] = np.inf
    heads = plots.GaussianHeads(np.zeros((4, 2)), precisions)
    figure = plots.centers_of_layers([heads], title=TITLE, layers=["layer 1"])
    assert "flat: 1\nstrip: 2\nnot finite: 4" in texts(figure)
    axes = axes_of(figure, "layer 1")
    strip = ellipse(axes, 2, 50)
    # A precision of 4 along the rows: narrow in rows, endless along the columns.
    assert strip.angle % 180 == pytest.approx(0)
    assert strip.height == pytest.approx(np.sqrt(2 * np.log(2)))
    assert strip.width > 1000
    assert ellipse(axes, 3, 90).width < 0.01
    assert len([p for p in axes.patches if isinstance(p, Ellipse)]) == 6
    figure.draw_without_rendering()


def test_centres_stand_where_they_are_or_on_the_border(rng):
    far = plots.GaussianHeads(
        np.array([[-9.0, 3.0], [1.0, -2.0]]), np.stack([np.eye(2)] * 2)
    )
    rows = [[gaussians(rng, 2), far], [far, gaussians(rng, 2)]]
    figure = plots.centers_over_training(
        rows, title=TITLE, checkpoint_names=["epoch 0", "epoch 50"], layers=LAYERS
    )
    upper, lower = (
        axes_of(figure, "epoch 0, layer 2"),
        axes_of(figure, "epoch 50, layer 1"),
    )
    assert upper.get_position().y0 > lower.get_position().y0
    assert upper.get_position().x0 > lower.get_position().x0
    marks = {line.get_label(): line for line in upper.get_lines()}
    numbers = {text.get_text(): text.get_position() for text in upper.texts}
    assert marks["head 1"].get_xydata().tolist() == [[1.5, -4.5]]
    assert numbers["2"] == (-2.0, 1.0)
    assert {"epoch 50", "layer 2", "head 1", "head 2"} <= set(texts(figure))


def test_one_layer_over_training_has_a_panel_a_checkpoint(rng):
    names = [f"epoch {epoch}" for epoch in range(0, 301, 50)]
    heads = [gaussians(rng) for _ in names]
    figure = plots.centers_of_layer(
        heads, title=TITLE, layer="layer 4", checkpoint_names=names
    )
    for name, one in zip(names, heads, strict=True):
        patch = ellipse(axes_of(figure, name), 2, 90)
        assert patch.center == pytest.approx(tuple(one.centers[1][::-1]))
    assert "Centres of attention of layer 4 over training" in texts(figure)


# Convolutions


def layer_offsets(**changes):
    best = np.array([(r, c) for r in (-1, 0, 1) for c in (-1, 0, 1)] + [(0, 0), (2, 0)])
    masses = np.linspace(0.5, 0.9, 11)
    masses[9:] = 0.55, 0.3
    layer = plots.LayerOffsets(
        name="layer 2",
        best=best,
        masses=masses,
        covered=masses >= 0.5,
        kernel_size=3,
        reach=2,
        content_dependence=np.linspace(0, 1, 11),
    )
    return dataclasses.replace(layer, **changes)


def test_a_layer_that_is_a_convolution_is_seen_to_be():
    layer = layer_offsets()
    figure = plots.convolution_layers([layer], title=TITLE)
    assert "layer 2: 3 × 3 convolution" in texts(figure)
    assert "10 of 11 heads cover 9 offsets" in texts(figure)
    axes = axes_of(figure, "layer 2")
    cells = shown(axes)
    assert cells.shape == (5, 5)
    assert cells[1, 3] == layer.masses[2]  # row -1, column 1
    assert cells[2, 2] == layer.masses[4]  # the larger of two
    assert cells[4, 2] == 0.3 and cells.astype(bool).sum() == 10
    assert {t.get_text(): t.get_position() for t in axes.texts}["×2"] == (0, 0)
    (kernel,) = [patch for patch in axes.patches if patch.get_label() == "kernel"]
    assert middle(kernel) == (0, 0) and kernel.get_width() == 3
    frames = [p for p in axes.patches if isinstance(p, Rectangle)]
    assert len(frames) == 9 + 2  # covered cells, the query, the kernel
    strip = shown(axes_of(figure, "layer 2, content"))
    np.testing.assert_array_equal(strip[0], layer.content_dependence)


def test_a_layer_that_is_no_convolution_is_seen_to_be_none():
    layer = layer_offsets(kernel_size=0, entropies=np.ones(11), num_keys=16)
    layer = dataclasses.replace(layer, distances=np.ones(11), uniform_distance=5.5)
    layers = [layer, layer_offsets(name="b")]
    figure = plots.convolution_layers(layers, title=TITLE, noun="plane")
    assert "10 of 11 planes cover 9 offsets" in texts(figure)
    assert "layer 2: no convolution" in texts(figure)
    axes = axes_of(figure, "layer 2")
    assert "kernel" not in [patch.get_label() for patch in axes.patches]
    entropy = axes_of(figure, "layer 2, entropy").get_images()[0]
    assert entropy.get_clim() == (0, np.log(16))
    distance = axes_of(figure, "layer 2, distance").get_images()[0]
    assert distance.get_clim() == (0, 5.5)
    with pytest.raises(ValueError, match="beyond"):
        plots.convolution_layers([layer_offsets(reach=1)], title=TITLE)


# Ablation


def test_ablation_shows_points_lost():
    figure = plots.ablated_accuracy(
        [np.array([0.5, 0.86]), np.array([0.91])],
        baseline=0.9,
        standard_errors=[np.array([0.01, 0.03]), np.array([0.012])],
        num_images=1000,
        title=TITLE,
        layers=LAYERS,
    )
    axes = axes_of(figure, "points lost")
    np.testing.assert_allclose(shown(axes), [[40, 4], [-1, np.nan]])
    weights = {text.get_text(): text.get_fontweight() for text in axes.texts}
    assert weights["40.0"] == "bold" and weights["4.0"] == weights["−1.0"] == "normal"
    assert "–" in weights
    written = " ".join(texts(figure))
    assert "n = 1,000 images" in written and "at most 3.0 points" in written
    assert "90.0%" in written


# Schematics, sheets, files


def test_schematics_differ_in_what_the_originals_differ():
    normal = [t for t in texts(plots.normal_attention()) if t.startswith("$W")]
    shared = [t for t in texts(plots.hierarchical_attention()) if t.startswith("$W")]
    assert len(normal) == 9 == len(set(normal))
    assert shared.count("$W_K$") == 1 and shared.count("$W_Q$") == 3
    assert texts(plots.hierarchical_attention()).count("$K_1$") == 3
    assert plots.normal_attention().findobj(FancyBboxPatch)


def small_figure():
    maps = [np.random.default_rng(1).random((2, 4, 4))]
    return plots.attention_at_query(
        maps, query=(1, 2), title="run_$1 $2", layers=["layer 1"]
    )


@pytest.fixture
def figure():
    return small_figure()


def test_files_are_written_twice_alike(figure, tmp_path):
    first = plots.save(figure, tmp_path / "a", "maps")
    again = plots.save(figure, tmp_path / "b", "maps")
    anew = plots.save(small_figure(), tmp_path / "c", "maps")
    assert [path.name for path in first] == ["maps.png", "maps.pdf"]
    for one, *others in zip(first, again, anew, strict=True):
        assert all(one.read_bytes() == other.read_bytes() for other in others)
        assert len(one.read_bytes()) > 5_000
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == [
        "maps.pdf",
        "maps.png",
    ]
    assert first[0].read_bytes().startswith(b"\x89PNG")
    pdf = first[1].read_bytes()
    assert pdf.startswith(b"%PDF") and b"FontFile2" in pdf
    assert b"CreationDate" not in pdf


def test_a_folder_that_cannot_be_written_is_the_users_error(figure, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        plots.save(figure, tmp_path / "file", "maps")
    with pytest.raises(ValueError, match="no file name"):
        plots.save(figure, tmp_path, "../maps")


def test_names_are_text_and_no_formulas(figure):
    (title,) = [t for t in figure.findobj(matplotlib.text.Text) if "$" in t.get_text()]
    assert title.get_text() == "run_$1 $2" and not title.get_parse_math()


def test_settings_of_others_stay_and_do_not_matter(figure, tmp_path):
    before = dict(matplotlib.rcParams)
    (expected, _) = plots.save(figure, tmp_path, "plain")
    assert dict(matplotlib.rcParams) == before
    with matplotlib.rc_context({"font.size": 20, "savefig.facecolor": "red"}):
        (other, _) = plots.save(figure, tmp_path, "other")
    assert expected.read_bytes() == other.read_bytes()


def test_letters_are_large_enough(figure, rng):
    curve = Curve(np.array([1.0, 2.0]), np.array([0.1, 0.5]))
    figures = [
        figure,
        plots.centers_of_layers([gaussians(rng)], title=TITLE, layers=["layer 1"]),
        plots.convolution_layers([layer_offsets()], title=TITLE),
        plots.learning_curves([RunCurves("a", "a", curve, curve, curve)]),
        plots.hierarchical_attention(),
    ]
    for one in figures:
        one.draw_without_rendering()
        sizes = {
            t.get_fontsize() for t in one.findobj(matplotlib.text.Text) if t.get_text()
        }
        assert min(sizes) >= 7
        assert one.get_figwidth() <= 7


def test_a_contact_sheet_shows_every_picture(figure, tmp_path):
    paths = [plots.save(figure, tmp_path, name)[0] for name in ("a", "b", "c", "d")]
    sheet = plots.contact_sheet(paths, columns=3)
    assert texts(sheet)[:1] and {"a", "b", "c", "d"} <= set(texts(sheet))
    tops = [axes.get_position().y1 for axes in sheet.axes]
    assert len(tops) == 4 and tops[0] == tops[2] > tops[3]
    pixels = matplotlib.image.imread(paths[0])
    np.testing.assert_array_equal(shown(sheet.axes[1]), pixels)
