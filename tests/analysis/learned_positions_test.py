"""Centres and scores of offsets: as the parameters hold them, and as layers sow."""

import jax
import numpy as np
import pytest
from matplotlib.patches import Ellipse

from attn_cnn_jax.analysis import figures, learned_positions, plots
from attn_cnn_jax.analysis.attention_maps import attention_maps
from attn_cnn_jax.analysis.figure_request import FigureRequest
from attn_cnn_jax.analysis.images import choose_images
from attn_cnn_jax.checkpoint.folder import save_variables
from attn_cnn_jax.errors import UserError


def fitted(probs, query):
    """Precision and center of the Gaussian that a query's attention [H, W] samples."""
    rows, columns = np.indices(probs.shape)
    d = np.stack([rows - query[0], columns - query[1]], axis=-1).reshape(-1, 2)
    terms = [d[:, 0] ** 2, d[:, 0] * d[:, 1], d[:, 1] ** 2, d[:, 0], d[:, 1]]
    terms = np.stack([*terms, np.ones(len(d))], axis=1)
    a, b, c, *linear, _ = np.linalg.lstsq(
        terms, np.log(probs.astype(np.float64)).ravel(), rcond=None
    )[0]
    precision = -np.array([[2 * a, b], [b, 2 * c]])
    return precision, np.linalg.solve(precision, linear)


@pytest.mark.parametrize("family", ["quadratic_nonisotropic", "quadratic_isotropic"])
def test_contours_are_those_of_the_attention_that_is_sown(family, make_run, drawn):
    """Of spreads A that are not symmetric, for which A A^T is not A^T A."""

    def change(_, variables):
        layer = variables["params"]["block_1"]["attention"]
        layer["centers"][:] = [(0.5, -1.0), (0.0, 0.3), (-0.4, 0.2), (1.0, 1.0)]
        spread = [[1.0, 0.9], [-0.2, 0.4]]
        layer["spreads"][:] = 0.8 if family.endswith("_isotropic") else spread

    run = make_run(family, change)
    heads = learned_positions.quadratic_heads(run.model, run.variables, (4, 4))
    figure = plots.centers_of_layers(list(heads.values()), title="", layers=list(heads))
    axes = drawn.axes(figure, "layer 2")
    contours = {patch.get_label(): patch for patch in axes.patches}
    sown = attention_maps(run, run.dataset.test.images[:1]).probs[1][0]
    for head in range(4):
        precision, center = fitted(sown[head, 1, 2], (1, 2))
        for mass in (0.5, 0.9):
            patch = contours[f"head {head + 1}, {mass:.0%}"]
            assert isinstance(patch, Ellipse)
            path = patch.get_patch_transform().transform(patch.get_path().vertices[:-1])
            d = path[::3, ::-1] - center  # x, y to row, column; not control points
            squares = np.einsum("ni,ij,nj->n", d, precision, d)
            wanted = -2 * np.log(1 - mass)
            np.testing.assert_allclose(squares, wanted, rtol=2e-3)


def test_only_layers_of_their_kind_have_centres_or_scores(make_run):
    run = make_run("learned_w_content")
    fields = run.model, run.variables
    with pytest.raises(UserError, match="only quadratic attention has centres"):
        learned_positions.quadratic_heads(*fields, (4, 4))
    with pytest.raises(UserError, match="score offsets alike for all images"):
        learned_positions.position_scores(*fields, (4, 4))


@pytest.mark.parametrize("family", ["learned_wo_content", "shared learned_wo_content"])
def test_positions_are_the_learned_scores(family, make_run, drawn):
    """For one layer with shared weights, which has no order of its own."""
    run = make_run(family)
    images = choose_images(run.dataset, ["0-3"])
    request = FigureRequest(run, images, images, reorder=True)
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
    assert file == "positions" and run.title in drawn.words(figure)


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
    images = choose_images(run.dataset, ["0-3"])
    request = FigureRequest(run, images, images, layer=2)
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
    assert "tiny_seed3 (self_attention, quadratic_nonisotropic)" in drawn.words(figure)
    assert "of layer 2 over training" in drawn.words(panels)
    assert run.title in drawn.words(last)
    for wrong in (0, 3):
        with pytest.raises(UserError, match=f"--layer={wrong}: the layers are 1 to 2"):
            next(
                figures.draw(
                    "centers_layer", FigureRequest(run, images, images, layer=wrong)
                )
            )
    steps = [one.step for one in figures.checkpoints(run.at(28))]
    assert steps == [28, 140]  # 0 is the last checkpoint of this run, and no snapshot
