"""Panels of convolutions, ablations and schematics; figures as files."""

import re

import matplotlib
import numpy as np
import pytest
from matplotlib.patches import FancyBboxPatch, Rectangle
from PIL import Image

from attn_cnn_jax.analysis import plots
from attn_cnn_jax.analysis.ablation import Ablation
from attn_cnn_jax.analysis.heads import HeadStatistics, HeadTable, LayerSummary
from attn_cnn_jax.analysis.learned_positions import GaussianHeads
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.results.curves import Curve, RunCurves

TITLE = "learned_seed1, step 500 (epoch 3)"
SQUARE = [(row, column) for row in (-1, 0, 1) for column in (-1, 0, 1)]


def head_table(kernel_size=3):
    """Eleven heads of a layer: a 3 x 3 kernel, (0, 0) twice, and one that fails."""
    masses = [*np.linspace(0.5, 0.9, 9), 0.55, 0.3]
    heads = [
        HeadStatistics(
            layer="layer 2",
            head=i + 1,
            expected_offset=(0.0, 0.0),
            mean_distance=0.1 * i,
            entropy=0.2 * i,
            best_offset=offset,
            best_mass=float(mass),
            covers=bool(mass >= 0.5),
            content_dependence=0.05 * i,
            class_mass=None,
        )
        for i, (offset, mass) in enumerate(
            zip([*SQUARE, (0, 0), (2, 0)], masses, strict=True)
        )
    ]
    layer = LayerSummary(
        layer="layer 2",
        grid=(6, 7),
        radius=2,
        num_queries=6,
        num_keys=16,
        uniform_distance=5.5,
        num_heads=11,
        covered=tuple(SQUARE),
        kernel_size=kernel_size,
    )
    return HeadTable("run", 500, 3.0, 1, 0.5, False, tuple(heads), (layer,))


def test_a_layer_that_is_a_convolution_is_seen_to_be(drawn):
    table = head_table()
    figure = plots.convolution_layers(table, title=TITLE)
    assert "layer 2: 3 × 3 convolution" in drawn.texts(figure)
    assert "10 of 11 heads cover 9 offsets" in drawn.texts(figure)
    axes = drawn.axes(figure, "layer 2")
    cells = drawn.array(axes)
    assert cells.shape == (5, 5)
    assert cells[1, 3] == table.heads[2].best_mass  # row -1, column 1
    assert cells[2, 2] == table.heads[4].best_mass == 0.7  # the larger of two
    assert cells[4, 2] == 0.3 and cells.astype(bool).sum() == 10
    numbers = {text.get_text(): text.get_position() for text in axes.texts}
    assert numbers["×2"] == (0, 0) and numbers["3"] == (1, -1)  # x, y
    assert numbers["11"] == (0, 2)
    (kernel,) = [patch for patch in axes.patches if patch.get_label() == "kernel"]
    assert drawn.middle(kernel) == (0, 0) and kernel.get_width() == 3
    query = [p for p in axes.patches if p.get_width() == 0.8]
    assert [drawn.middle(one) for one in query] == [(0, 0)]
    framed = [
        drawn.middle(p)
        for p in axes.patches
        if isinstance(p, Rectangle) and p.get_label() == "covered"
    ]
    assert sorted(framed) == SQUARE
    strips = {
        "mass": ([head.best_mass for head in table.heads], 1),
        "content": (0.05 * np.arange(11), 1),
        "entropy": (0.2 * np.arange(11), np.log(16)),
        "distance": (0.1 * np.arange(11), 5.5),
    }
    for name, (values, darkest) in strips.items():
        strip = drawn.axes(figure, f"layer 2, {name}")
        np.testing.assert_allclose(drawn.array(strip), [values])
        assert strip.get_images()[0].get_clim() == (0, darkest)


def test_a_layer_that_is_no_convolution_is_seen_to_be_none(drawn):
    table = head_table(kernel_size=0)
    figure = plots.convolution_layers(table, title=TITLE, noun="plane")
    assert "10 of 11 planes cover 9 offsets" in drawn.texts(figure)
    assert "layer 2: no convolution" in drawn.texts(figure)
    labels = [patch.get_label() for patch in drawn.axes(figure, "layer 2").patches]
    assert "kernel" not in labels


def test_ablation_shows_points_lost(drawn):
    result = Ablation(
        run="run",
        step=500,
        epoch=3.0,
        num_images=1000,
        accuracy=0.9,
        standard_error=0.009,
        layers=("layer 1", "layer 2"),
        accuracies=((0.5, 0.86), (0.95,)),
        standard_errors=((0.01, 0.03), (0.012,)),
    )
    figure = plots.ablated_accuracy(result, title=TITLE)
    axes = drawn.axes(figure, "points lost")
    np.testing.assert_allclose(drawn.array(axes), [[40, 4], [-5, np.nan]])
    assert axes.get_images()[0].get_clim() == pytest.approx((-40, 40))
    weights = {text.get_text(): text.get_fontweight() for text in axes.texts}
    assert weights["40.0"] == weights["−5.0"] == "bold"
    assert weights["4.0"] == "normal"  # more than one standard error, not two
    assert "–" in weights
    written = " ".join(drawn.texts(figure))
    assert "n = 1,000 images" in written and "at most 3.0 points" in written
    assert "90.0%" in written


def test_schematics_differ_in_what_the_originals_differ(drawn):
    normal = [t for t in drawn.texts(plots.normal_attention()) if t.startswith("$W")]
    shared = [
        t for t in drawn.texts(plots.hierarchical_attention()) if t.startswith("$W")
    ]
    assert len(normal) == 9 == len(set(normal))
    assert shared.count("$W_K$") == 1 and shared.count("$W_Q$") == 3
    assert drawn.texts(plots.hierarchical_attention()).count("$K_1$") == 3
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
    with plots.use(plots.Style(formats=("png", "pdf", "svg"))):
        first = plots.save(figure, tmp_path / "a", "maps")
        again = plots.save(figure, tmp_path / "b", "maps")
        anew = plots.save(small_figure(), tmp_path / "c", "maps")
    names = [path.name for path in first]
    assert names == ["maps.png", "maps.pdf", "maps.svg", "maps.txt"]
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == sorted(names)
    for one, *others in zip(first, again, anew, strict=True):
        assert all(one.read_bytes() == other.read_bytes() for other in others)
    png, pdf, svg = (path.read_bytes() for path in first[:3])
    assert min(map(len, (png, pdf, svg))) > 5_000
    assert png.startswith(b"\x89PNG")
    assert pdf.startswith(b"%PDF") and b"FontFile2" in pdf
    assert b"CreationDate" not in pdf
    assert b"<svg" in svg and b"dc:date" not in svg


def test_titles_are_on_pngs_and_in_the_text_file(figure, tmp_path):
    """And where the style says so; without one the page ends below it."""

    def heights(style):
        with plots.use(style):
            paths = plots.save(figure, tmp_path / str(style.title), "maps")
        png, svg, text = paths
        with Image.open(png) as image:
            size = image.size[1] / style.dpi
        (points,) = re.findall(r'<svg [^>]*height="([\d.]+)pt"', svg.read_text())
        return size, float(points) / 72, text.read_text()

    formats = ("png", "svg")
    png, svg, text = heights(plots.Style(formats=formats, dpi=100))
    with_title = heights(plots.Style(formats=formats, dpi=100, title=True))
    assert with_title[:2] == pytest.approx((png, png), abs=0.02)
    assert png - svg == pytest.approx(figure.heading.alone(7.0), abs=0.02) != 0
    without = heights(plots.Style(formats=formats, dpi=100, title=False))
    assert without[:2] == pytest.approx((svg, svg), abs=0.02)
    assert text.startswith("Attention at the query pixel (row 1, column 2)\nrun_$1 $2")
    assert all(text.get_visible() for text in figure.texts)  # again


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
    expected, *_ = plots.save(figure, tmp_path, "plain")
    assert dict(matplotlib.rcParams) == before
    with matplotlib.rc_context({"font.size": 20, "savefig.facecolor": "red"}):
        other, *_ = plots.save(figure, tmp_path, "other")
    assert expected.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("width", [3.3, 7.0])
@pytest.mark.parametrize("font", plots.FONTS)
def test_letters_are_large_enough_and_on_the_page(font, width):
    curve = Curve(np.array([1.0, 2.0]), np.array([0.1, 0.5]))
    round_head = GaussianHeads(np.zeros((1, 2)), np.eye(2)[None], (4, 4))
    with plots.use(plots.Style(width=width, font=font)):
        figures = [
            small_figure(),
            plots.centers_of_layers([round_head], title=TITLE, layers=["layer 1"]),
            plots.convolution_layers(head_table(), title=TITLE),
            plots.learning_curves([RunCurves("a", "a", curve, curve, curve)]),
        ]
    families = {"sans": "DejaVu Sans", "serif": "STIXGeneral"}
    for one in figures:
        one.draw_without_rendering()
        texts = [t for t in one.findobj(matplotlib.text.Text) if t.get_text()]
        assert min(text.get_fontsize() for text in texts) >= 7
        assert {text.get_fontname() for text in texts} == {families[font]}
        assert one.get_figwidth() == width
        for text in one.texts:
            box = text.get_window_extent()
            assert one.bbox.x0 <= box.x0 and box.x1 <= one.bbox.x1, text


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"width": 2.0}, "3 to 20 inches wide, not 2"),
        ({"dpi": 5000}, "50 to 600 dots to an inch, not 5000"),
        ({"formats": ("png", "exe")}, "png, pdf, svg, not as 'exe'"),
        ({"formats": ()}, "not as nothing"),
        ({"font": "comic"}, "no font 'comic': take sans, serif"),
    ],
)
def test_styles_that_make_no_page_are_refused(fields, message):
    with pytest.raises(UserError, match=message):
        plots.Style(**fields)
