"""The picture of a pixel that a layer computes: every number and place on it."""

import numpy as np

from attn_cnn_jax.analysis import plots
from attn_cnn_jax.analysis.plots.style import MARK


def computed(rng, heads=4, channels=2):
    """A sum over heads of random weights, on a grid that is not square."""
    image, weights = rng.uniform(size=(4, 6)), rng.uniform(size=(heads, 4, 6))
    weights /= weights.sum(axis=(1, 2), keepdims=True)
    kernel = rng.normal(size=(heads, channels))
    means = np.einsum("nhw,hw->n", weights, image)
    products = means[:, None] * kernel
    return plots.PixelSum(
        image=image,
        query=(1, 3),
        names=[f"head number {head}" for head in range(heads)],
        channels=("an edge", "a mean"),
        centers=rng.uniform(0, 3, size=(heads, 2)),
        weights=weights,
        means=means,
        kernel=kernel,
        products=products,
        output=products.sum(axis=0),
    )


def test_a_sum_over_heads_shows_all_of_its_parts(rng, drawn):
    pixel = computed(rng)
    look = {"lines": ["a line"], "mean": "$m$", "matrix": "$W$"}
    figure = plots.pixel_sum(pixel, title="A sum", **look)
    shown = drawn.texts(figure)
    told = {*pixel.names, *pixel.channels, "image, query (1, 3)"}
    assert {"A sum", "a line", *told} <= set(shown)
    assert shown.count("$m$") == shown.count("$W$") == 3  # above the first line

    def column(label):
        axes = drawn.axes(figure, label)
        values = drawn.array(axes)[:, 0]
        texts = [text.get_text() for text in axes.texts]
        wanted = [f"{v:.2f}".replace("0.", ".").replace("-", "−") for v in values]
        assert texts == wanted and not {".00", "−.00"} & set(wanted)
        return values

    for head in range(4):
        axes = drawn.axes(figure, f"weights {head + 1}")
        picture, overlay = (np.asarray(i.get_array()) for i in axes.get_images())
        np.testing.assert_array_equal(picture, pixel.image)
        weights = pixel.weights[head]
        np.testing.assert_allclose(overlay[..., 3], 0.8 * weights / weights.max())
        orange = [int(MARK[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        np.testing.assert_allclose(overlay[0, 0, :3], orange)
        (center,) = axes.lines
        (x,), (y,) = center.get_data()
        np.testing.assert_array_equal((y, x), pixel.centers[head])
        assert [drawn.middle(patch) for patch in axes.patches] == [(1, 3)]
        np.testing.assert_array_equal(column(f"mean {head + 1}"), pixel.means[[head]])
        np.testing.assert_array_equal(column(f"kernel {head + 1}"), pixel.kernel[head])
        np.testing.assert_array_equal(
            column(f"product {head + 1}"), pixel.products[head]
        )
    np.testing.assert_array_equal(column("output"), pixel.output)
