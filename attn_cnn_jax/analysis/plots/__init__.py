"""Every figure: functions from numbers to a matplotlib `Figure`, and `save`.

Nothing here loads a run or computes attention. Sizes are those of print: no letter is
smaller than 7 points, and pages are 7 inches wide unless a style says another width:

    with plots.use(plots.Style(width=3.3, font="serif", formats=("pdf",))):
        plots.save(plots.learning_curves(runs), "figures", "curves")

Heads are counted from 1.
"""

from matplotlib.figure import Figure

from attn_cnn_jax.analysis.plots.ablation import ablated_accuracy
from attn_cnn_jax.analysis.plots.centers import (
    centers_of_layer,
    centers_of_layers,
    centers_over_training,
)
from attn_cnn_jax.analysis.plots.closest_convolution import (
    closest_convolution,
    convolution_epochs,
)
from attn_cnn_jax.analysis.plots.convolutions import convolution_layers
from attn_cnn_jax.analysis.plots.curves import learning_curves
from attn_cnn_jax.analysis.plots.maps import (
    attention_at_query,
    average_attention,
    position_scores,
    tap_weights,
)
from attn_cnn_jax.analysis.plots.page import listed, save
from attn_cnn_jax.analysis.plots.paths import paths_of_centers
from attn_cnn_jax.analysis.plots.pixel_sums import PixelSum, pixel_sum
from attn_cnn_jax.analysis.plots.schematics import (
    hierarchical_attention,
    normal_attention,
)
from attn_cnn_jax.analysis.plots.style import FONTS, FORMATS, Style, use
from attn_cnn_jax.analysis.plots.theorem import error_against_sharpness

__all__ = [
    "FONTS",
    "FORMATS",
    "Figure",
    "PixelSum",
    "Style",
    "ablated_accuracy",
    "attention_at_query",
    "average_attention",
    "centers_of_layer",
    "centers_of_layers",
    "centers_over_training",
    "closest_convolution",
    "convolution_epochs",
    "convolution_layers",
    "error_against_sharpness",
    "hierarchical_attention",
    "learning_curves",
    "listed",
    "normal_attention",
    "paths_of_centers",
    "pixel_sum",
    "position_scores",
    "save",
    "tap_weights",
    "use",
]
