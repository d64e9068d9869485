"""Figures of the theorem: what is lost where heads are not sharp."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from attn_cnn_jax.analysis.plots.page import Heading, Page
from attn_cnn_jax.analysis.plots.style import PAGE_WIDTH, color, marker, styled

_LEFT, _HEIGHT = 0.6, 2.9


@styled
def error_against_sharpness(curves: Sequence[Any], subject: str) -> Figure:
    """Draw the largest error of attention against the sharpness of its heads.

    `curves` are `theory.errors.ErrorCurve`s, a line and a dashed bound each.
    """
    heading = "Attention against the convolution that it computes"
    lines = [
        f"largest difference of any output: {subject}",
        "lines: measured; dashed: the bound that follows from the softmax and rounding",
    ]
    page = Page(Heading(heading, lines), 0.1 + _HEIGHT + 0.45, PAGE_WIDTH)
    axes = page.axes(_LEFT, page.top + 0.1, page.width - _LEFT - 0.15, _HEIGHT)
    for index, curve in enumerate(curves):
        style: dict[str, Any] = {"color": color(index), "linewidth": 1.0}
        axes.plot(
            curve.sharpness,
            curve.errors,
            marker=marker(index),
            markersize=3,
            label=curve.dtype,
            **style,
        )
        axes.plot(curve.sharpness, curve.bounds, linestyle=(0, (4, 1.5)), **style)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0e}".replace("-", "−"))
    axes.set_xlim(0, max(curves[0].sharpness))
    axes.set_xlabel("sharpness of the heads (their spread, 1 / pixels)")
    axes.set_ylabel("largest error")
    axes.grid(color="0.9", linewidth=0.5)
    axes.legend(frameon=False)
    return page.figure
