"""The closest convolution of maps whose convolution is known, and of runs' layers."""

import csv
import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.datasets import load_sample_images

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
from attn_cnn_jax.models.attention import QuadraticAttention

SQUARE = [(row, column) for row in (-1, 0, 1) for column in (-1, 0, 1)]


@pytest.fixture(scope="module")
def photographs() -> np.ndarray:
    """2,080 pieces of two photographs, [B, 16, 16, 3] of mean 0 and deviation 1."""
    whole = np.stack(load_sample_images().images)  # [2, 427, 640, 3]
    pieces = whole[:, :416].reshape(2, 26, 16, 40, 16, 3).swapaxes(2, 3)
    pieces = pieces.reshape(-1, 16, 16, 3).astype(np.float32)
    pieces = np.random.default_rng(0).permutation(pieces)
    return (pieces - pieces.mean()) / pieces.std()


def convolve(x: np.ndarray, kernel: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """JAX's convolution of x, float64, on a map that repeats its border."""
    reach = len(kernel) // 2
    around = ((0, 0), (reach, reach), (reach, reach), (0, 0))
    with jax.enable_x64(True):
        y = jax.lax.conv_general_dilated(
            jnp.asarray(np.pad(x, around, mode="edge"), jnp.float64),
            jnp.asarray(kernel, jnp.float64),
            (1, 1),
            "VALID",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        return np.asarray(y) + bias


def fitted(x, y, sizes, parts=1) -> LeastSquares:
    """Fitted to the first half of the images and scored on the second."""
    squares, half = LeastSquares(sizes), len(x) // 2
    for add, rows in (
        (squares.fit, np.arange(half)),
        (squares.score, np.arange(half, len(x))),
    ):
        for part in np.array_split(rows, parts):
            add(x[part], y[part])
    return squares


def test_a_known_convolution_comes_back(photographs, rng):
    x = photographs[:400]
    kernel, bias = rng.normal(size=(3, 3, 3, 5)), rng.normal(size=5)
    y = convolve(x, kernel, bias)
    one, three, five = fitted(x, y, (1, 3, 5)).convolutions()
    assert [c.kernel_size for c in (one, three, five)] == [1, 3, 5]
    np.testing.assert_allclose(three.kernel, kernel, atol=1e-6)
    np.testing.assert_allclose(three.bias, bias, atol=1e-6)
    around = np.pad(kernel, ((1, 1), (1, 1), (0, 0), (0, 0)))
    np.testing.assert_allclose(five.kernel, around, atol=1e-5)
    assert 1 - three.r_squared < 1e-12 and 1 - five.r_squared < 1e-12
    assert 1 - three.r_squared_fitted < 1e-12
    assert 0.1 < one.r_squared < 0.97  # neighbours are alike, but it has one of nine


def test_r_squared_is_that_of_a_plain_regression(photographs, rng):
    """y is no convolution; by `lstsq` on neighbourhoods that a loop gathers."""
    x = photographs[:60, :5, :6]
    y = np.tanh(convolve(x, rng.normal(size=(5, 5, 3, 2)), np.ones(2))) * [3.0, 0.5]
    found = fitted(x, y, (1, 3), parts=4).convolutions()
    for size, convolution in zip((1, 3), found, strict=True):
        rows = []
        for image in x.astype(np.float64):
            for i in range(5):
                for j in range(6):
                    near = [
                        image[min(max(i + r, 0), 4), min(max(j + c, 0), 5)]
                        for r in range(-(size // 2), size // 2 + 1)
                        for c in range(-(size // 2), size // 2 + 1)
                    ]
                    rows.append(np.append(np.concatenate(near), 1.0))
        inputs, outputs = np.array(rows), y.reshape(-1, 2)
        half = 30 * 30
        solution = np.linalg.lstsq(inputs[:half], outputs[:half])[0]
        kernel = solution[:-1].reshape(size, size, 3, 2)
        np.testing.assert_allclose(convolution.kernel, kernel, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(convolution.bias, solution[-1], rtol=1e-6)
        for score, part in (
            (convolution.r_squared, slice(half, None)),
            (convolution.r_squared_fitted, slice(half)),
        ):
            wanted = outputs[part]
            residual = ((wanted - inputs[part] @ solution) ** 2).sum()
            total = ((wanted - wanted.mean(axis=0)) ** 2).sum()
            assert score == pytest.approx(1 - residual / total, rel=1e-9)
            assert score < 0.95


def attend(x: np.ndarray, spread: float, width: int = 8) -> tuple[np.ndarray, ...]:
    """Input and output of nine isotropic heads at the 3 x 3 offsets, float32."""
    rng = np.random.default_rng(1)
    mapped = (x @ rng.normal(size=(3, width))).astype(np.float32)
    layer = QuadraticAttention(
        9, 0.0, jnp.float32, isotropic=True, center_std=1.0, spread_std=0.0
    )
    params = {
        "centers": np.array(SQUARE, np.float32),
        "spreads": np.full(9, spread, np.float32),
        "value_kernel": rng.normal(size=(9, width, width)).astype(np.float32),
        "value_bias": rng.normal(size=width).astype(np.float32),
    }
    apply = jax.jit(lambda params, x: layer.apply({"params": params}, x, train=False))
    return mapped, np.asarray(apply(params, mapped)[0])


def test_sharp_heads_are_a_convolution_and_wide_ones_are_not(photographs):
    """Beyond the border a sharp head looks at the nearest pixel inside."""
    x, y = attend(photographs[:100], spread=15.0)
    one, three = fitted(x, y, (1, 3)).convolutions()
    assert 1 - three.r_squared < 1e-8
    assert one.r_squared < 0.98
    # Three channels lie behind the eight: the kernel is not unique, what it does is.
    wanted = convolve(x[:9], three.kernel, three.bias)
    np.testing.assert_allclose(wanted, y[:9], atol=1e-2)
    scores = [
        fitted(*attend(photographs[:100], spread), (1, 3)).convolutions()[1].r_squared
        for spread in (2.0, 0.5, 0.1)
    ]
    assert 1 > scores[0] > scores[1] > scores[2]
    assert 1 - scores[2] > 0.03  # though neighbours are alike


def test_what_does_not_vary_has_no_r_squared(photographs):
    x, y = photographs[:20], np.full((20, 16, 16, 4), 0.7, np.float32)
    (convolution,) = fitted(x, y, (3,)).convolutions()
    assert convolution.r_squared is None and convolution.r_squared_fitted is None
    np.testing.assert_allclose(convolution.bias, 0.7, rtol=1e-6)
    (nothing,) = fitted(0 * x, photographs[:20], (1,)).convolutions()
    assert nothing.r_squared_fitted == 0 and not nothing.kernel.any()


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
        wanted = fitted(x, y, (1, 3)).convolutions()
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
