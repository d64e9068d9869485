"""What parameters say of heads agrees with the attention that their layers sow."""

import numpy as np
import pytest
from matplotlib.patches import Ellipse

from attn_cnn_jax.analysis import learned_positions, plots
from attn_cnn_jax.analysis.attention_maps import attention_maps
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
    heads = learned_positions.quadratic_heads(run.config.model, run.variables)
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
    fields = run.config.model, run.variables
    with pytest.raises(UserError, match="only quadratic attention has centres"):
        learned_positions.quadratic_heads(*fields)
    with pytest.raises(UserError, match="score offsets alike for all images"):
        learned_positions.position_scores(*fields, (4, 4))
