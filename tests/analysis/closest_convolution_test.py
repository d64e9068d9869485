"""The convolutions that are closest to the layers of runs."""

import csv
import dataclasses
import json

import jax
import numpy as np
import pytest

from attn_cnn_jax import data
from attn_cnn_jax.analysis import closest_convolution, plots
from attn_cnn_jax.analysis.closest_convolution import (
    LeastSquares,
    as_text,
    closest_convolutions,
    layers,
)
from attn_cnn_jax.covered_offsets import Coverage
from attn_cnn_jax.errors import UserError

SQUARE = [(row, column) for row in (-1, 0, 1) for column in (-1, 0, 1)]


def sharp(offsets):
    """Sets isotropic heads that look sharply at these offsets, for every layer."""

    def change(_, variables):
        for block in ("block_0", "block_1"):
            layer = variables["params"][block]["attention"]
            layer["centers"][:], layer["spreads"][:] = offsets, 15.0

    return change


def test_the_layers_of_a_run_alone(make_run):
    """Sharp heads, whose layers are 3 x 3 convolutions, residual and norm or not."""
    run = make_run("quadratic_isotropic", sharp(SQUARE), num_heads=9, width=12)
    [table] = closest_convolutions(run)
    assert (table.run, table.step) == (run.name, run.step)
    assert [one.layer for one in table.layers] == ["layer 1", "layer 2"]
    for one in table.layers:
        assert (one.grid, one.in_width, one.out_width) == ((4, 4), 12, 12)
        assert table.kernel_sizes == (1, 3) and one.left_out == ()
        assert one.num_images == 180  # half of the test set
        assert 1 - one.r_squared(3) < 1e-7
        assert 0 < one.r_squared(1) < 0.95


def direct(run, block: str, rows) -> tuple[np.ndarray, np.ndarray]:
    """Input and output of a block's attention, as Flax captures what modules return."""
    names = ["attention", "embedding", "block_0"]
    without_remat = run.model.clone(remat=False)
    apply = jax.jit(
        lambda variables, x: without_remat.apply(
            variables,
            x,
            train=False,
            mutable=["intermediates"],
            capture_intermediates=lambda module, method: (
                module.name in names and method == "__call__"
            ),
        )[1]["intermediates"]
    )
    images = run.dataset.test.images[rows]
    pixels = data.normalize(images, run.dataset.mean, run.dataset.std)
    seen = apply(run.variables, pixels)
    if block == "block_0":
        x = seen["embedding"]["__call__"][0]
    else:
        x = seen["block_0"]["__call__"][0][0]
    return np.asarray(x), np.asarray(seen[block]["attention"]["__call__"][0][0])


@pytest.mark.parametrize("family", ["learned_w_content", "quadratic_nonisotropic"])
def test_inputs_and_outputs_are_those_of_the_attention(family, make_run):
    run = make_run(family, remat=family == "learned_w_content")
    [table] = closest_convolutions(run, [3, 1])
    rows = np.arange(2 * table.layers[0].num_images)
    for number, one in enumerate(table.layers):
        x, y = direct(run, f"block_{number}", rows)
        squares, half = LeastSquares((1, 3)), one.num_images
        squares.fit(x[:half], y[:half])
        squares.score(x[half:], y[half:])
        wanted = squares.convolutions()
        for found, right in zip(one.convolutions, wanted, strict=True):
            assert found.r_squared == pytest.approx(right.r_squared, abs=1e-5)
            assert found.r_squared < 0.999


# Family: the layers, their grids, and the channels that they map to what.
FAMILIES = {
    "shared quadratic_isotropic": (["layer 1", "layer 2"], [(4, 4)] * 2, [(16, 16)]),
    "vit": (["layer 1", "layer 2"], [(4, 4)] * 2, [(16, 16)]),
    "san": (
        ["stage 1 block 1", "stage 1 block 2", "stage 2 block 1"],
        [(4, 4), (4, 4), (2, 2)],
        [(64, 16)],
    ),
    "san_hierarchical": (["pass 1", "pass 2"], [(8, 8)] * 2, [(64, 16)]),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_its_layers(family, make_run):
    names, grids, [widths] = FAMILIES[family]
    [table] = closest_convolutions(make_run(family), [1])
    assert [one.layer for one in table.layers] == names
    assert [one.grid for one in table.layers] == grids
    for one in table.layers:
        assert (one.in_width, one.out_width) == widths
        assert one.convolutions[0].kernel.shape == (1, 1, *widths)
        assert one.r_squared(1) < 1


def test_images_are_enough_for_the_coefficients():
    """A layer of the paper's networks: 16 x 16 pixels, 400 channels."""

    def planned(sizes, num_test_images, width=400):
        shapes = layers._Shapes("layer 1", (16, 16), (16, 16), width, 400)
        plan = layers._plan(shapes, sizes, num_test_images)
        return plan.sizes, plan.num_images, plan.left_out

    assert planned([], 10_000) == ((1, 3), 200, ())
    assert planned([], 10_000, width=48) == ((1, 3, 5, 7, 9), 200, ())
    assert planned([5], 10_000) == ((5,), 313, ())  # 8 x 10,001 / 256 = 312.5
    assert planned([3, 5], 400) == ((3, 5), 200, ())  # 4 x 10,001 / 256 = 156.3
    assert planned([3, 5], 300) == ((3,), 150, (5,))
    assert planned([], 100) == ((1,), 50, (3,))
    message = "7 x 7 convolution of layer 1 has 19,601 .* than 16,384: leave 7 out"
    with pytest.raises(UserError, match=message):
        planned([7], 10_000)


def test_sizes_are_what_grid_and_test_set_allow(make_run):
    run = make_run("quadratic_isotropic", width=64)
    [table] = closest_convolutions(run, [1, 3, 5])
    for one in table.layers:
        assert table.kernel_sizes == (1, 3) and one.left_out == (5,)
    assert "layer 1 5 x 5, layer 2 5 x 5" in as_text(table)
    for sizes, message in [
        ([2], "odd, from 1 on, not 2"),
        ([-1], "odd, from 1 on, not -1"),
        ([5], "no kernel can be fitted on the grids .* with 360 test images"),
    ]:
        with pytest.raises(UserError, match=message):
            closest_convolutions(run, sizes)


def test_checkpoints_share_a_program_and_files_say_the_numbers(make_run, tmp_path):
    run = make_run("quadratic_isotropic")
    both = closest_convolutions([run, run.at(run.step)], [3])
    assert both[0].layers[0].r_squared(3) == both[1].layers[0].r_squared(3)
    coverage = {"layer 1": Coverage.of("layer 1", [(0, 0), (0, 1)])}
    tables = [dataclasses.replace(table, coverage=coverage) for table in both]
    closest_convolution.write_csv(tables, tmp_path / "a.csv")
    closest_convolution.write_json(tables, tmp_path / "a.json")
    with (tmp_path / "a.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 4
    assert [line["covered_offsets"] for line in lines] == ["2", ""] * 2
    assert [line["largest_kernel_covered"] for line in lines] == ["1", ""] * 2
    for line, record in zip(
        lines, json.loads((tmp_path / "a.json").read_text()), strict=True
    ):
        assert float(line["r_squared"]) == record["r_squared"]
        assert record["num_images"] == 180 and record["kernel_size"] == 3
    assert lines[0]["r_squared"] == str(both[0].layers[0].r_squared(3))
    text = as_text(tables[0])
    assert f"{both[0].layers[0].r_squared(3):.4f}" in text and "1 x 1" in text


def test_the_figures_show_the_numbers(make_run, drawn):
    run = make_run("quadratic_isotropic", sharp(SQUARE[:4]))
    tables = closest_convolutions([run, run.at(run.step)])
    coverage = {"layer 1": Coverage.of("layer 1", [(0, 0)])}
    tables = [
        dataclasses.replace(table, coverage=coverage, epoch=float(epoch))
        for epoch, table in enumerate(tables)
    ]
    figure = plots.closest_convolution(tables[0], title="a title")
    lines = drawn.axes(figure, "R²").get_lines()
    for line, one in zip(lines, tables[0].layers, strict=True):
        scores = [one.r_squared(1), one.r_squared(3)]
        np.testing.assert_array_equal(
            line.get_xydata(), [[0, scores[0]], [1, scores[1]]]
        )
    assert [line.get_label() for line in lines] == [
        "layer 1 (1 offset covered)",
        "layer 2",
    ]
    assert "a title" in drawn.words(figure)
    figure = plots.convolution_epochs(tables, kernel_size=3, title="a title")
    lines = drawn.axes(figure, "R²").get_lines()
    for line, one in zip(lines, tables[0].layers, strict=True):
        np.testing.assert_array_equal(line.get_xdata(), [0, 1])
        np.testing.assert_array_equal(line.get_ydata(), [one.r_squared(3)] * 2)
    first, second = drawn.axes(figure, "covered offsets").get_lines()
    np.testing.assert_array_equal(first.get_ydata(), [1, 1])
    assert np.isnan(second.get_ydata()).all()
