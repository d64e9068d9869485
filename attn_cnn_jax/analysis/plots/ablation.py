"""A table of what each head is worth: accuracy with that head switched off."""

import numpy as np
from matplotlib.figure import Figure

from attn_cnn_jax.analysis.ablation import Ablation
from attn_cnn_jax.analysis.plots.page import LINE, MARGIN, Heading, Page, bare
from attn_cnn_jax.analysis.plots.style import DIVERGING, current, ink, styled

_LEFT, _SMALLEST = 0.95, 0.28  # inches; a cell has room for −10.5


@styled
def ablated_accuracy(ablation: Ablation, *, title: str) -> Figure:
    """Draw the points of accuracy that each head is worth: layers as rows, heads along.

    Drops beyond two standard errors are bold.
    """
    layers, whole = ablation.layers, ablation.accuracy
    drops = [100 * (whole - np.array(one, float)) for one in ablation.accuracies]
    errors = [100 * np.array(one, float) for one in ablation.standard_errors]
    columns = max(1, *map(len, drops))
    width = max(current().width, _LEFT + MARGIN + columns * _SMALLEST)
    side = min((width - _LEFT - MARGIN) / columns, 0.62)
    height = 0.26
    largest = max((float(error.max()) for error in errors if len(error)), default=0.0)
    lines = [
        title,
        f"accuracy with all heads {whole:.1%} (n = {ablation.num_images:,} images); "
        "cells: points lost without this head",
        f"standard error of a drop at most {largest:.1f} points; bold: beyond two "
        "standard errors",
    ]
    heading = Heading("Accuracy without each head", lines, right=1.55, beside=0.4)
    page = Page(heading, 2 * LINE + len(drops) * height + 0.1, width)
    top = page.top + 2 * LINE
    finite = [abs(drop[np.isfinite(drop)]) for drop in drops]
    reach = max((float(drop.max()) for drop in finite if len(drop)), default=0.0) or 1.0
    page.colorbar(
        page.width - 1.5,
        page.beside,
        1.25,
        DIVERGING,
        (f"−{reach:.1f}", "0", f"{reach:.1f}"),
        "points lost",
    )
    table = np.full((len(drops), columns), np.nan)
    for index, drop in enumerate(drops):
        table[index, : len(drop)] = drop
    axes = page.axes(_LEFT, top, side * columns, len(drops) * height)
    axes.imshow(table, cmap=DIVERGING, vmin=-reach, vmax=reach, aspect="auto")
    axes.set_label("points lost")
    bare(axes)
    axes.set_xticks(range(columns), [str(head + 1) for head in range(columns)])
    axes.set_yticks(range(len(drops)), list(layers))
    axes.tick_params(length=0, labeltop=True, labelbottom=False, pad=2)
    axes.text(-0.01, 1.0, "head", transform=axes.transAxes, ha="right", va="bottom")
    edges = {"colors": "white", "linewidths": 1.0}
    axes.vlines(np.arange(columns - 1) + 0.5, -0.5, len(drops) - 0.5, **edges)
    axes.hlines(np.arange(len(drops) - 1) + 0.5, -0.5, columns - 0.5, **edges)
    for row, (drop, error) in enumerate(zip(drops, errors, strict=True)):
        for head in range(columns):
            if head >= len(drop):
                axes.text(head, row, "–", ha="center", va="center", color="0.6")
                continue
            sure = abs(drop[head]) > 2 * error[head]
            axes.text(
                head,
                row,
                f"{drop[head]:.1f}".replace("-", "−"),
                ha="center",
                va="center",
                fontweight="bold" if sure else "normal",
                color=ink(DIVERGING, 0.5 + float(drop[head]) / (2 * reach)),
            )
    return page.figure
