"""The look of the figures: print sizes, and colours for the colour-blind too."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import matplotlib
import numpy as np

PAGE_WIDTH, PAGE_HEIGHT = 7.0, 9.6  # inches: A4 or letter with margins
FONT_SIZE = 7.0  # points, nothing is smaller

SEQUENTIAL = "Blues"  # light to dark: readable in grey too
DIVERGING = "RdBu_r"  # blue below, white at, red above the centre
MARK = "#d55e00"  # of the query pixel; stands out from every blue

# Paul Tol's "muted" set, made for all kinds of colour blindness, its lightest darkened
# for thin lines; with a marker each, and a second turn that meets other markers.
COLORS = (
    "#332288",
    "#cc6677",
    "#117733",
    "#c2a83e",
    "#56b4e9",
    "#882255",
    "#44aa99",
    "#7d7d22",
    "#aa4499",
)
MARKERS = ("o", "s", "^", "v", "D", "P", "X", "*", "<", ">", "p")
DASHES = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)), (0, (8, 2)))

RC: dict[Any, Any] = {
    "axes.edgecolor": "0.35",
    "axes.facecolor": "white",
    "axes.labelsize": FONT_SIZE,
    "axes.linewidth": 0.5,
    "axes.titlesize": FONT_SIZE,
    "axes.unicode_minus": True,
    "figure.facecolor": "white",
    "font.family": ["DejaVu Sans"],  # comes with matplotlib
    "font.size": FONT_SIZE,
    "image.interpolation": "nearest",
    "image.origin": "upper",
    "legend.fontsize": FONT_SIZE,
    "pdf.fonttype": 42,  # TrueType, embedded
    "pdf.use14corefonts": False,
    "savefig.bbox": None,
    "savefig.facecolor": "white",
    "text.parse_math": False,  # names of runs and images are text
    "text.usetex": False,
    "xtick.labelsize": FONT_SIZE,
    "ytick.labelsize": FONT_SIZE,
}

P = ParamSpec("P")
R = TypeVar("R")


def styled(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function` run in the style of these figures; settings of others stay."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with matplotlib.rc_context(RC):
            return function(*args, **kwargs)

    return run


def ink(cmap: str, shade: float) -> str:
    """Return black or white: what reads better on a shade (0 to 1) of a colour map."""
    rgb = np.array(matplotlib.colormaps[cmap](min(max(shade, 0.0), 1.0))[:3])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    luminance = float(linear @ (0.2126, 0.7152, 0.0722))
    return "black" if (luminance + 0.05) ** 2 > 1.05 * 0.05 else "white"


def color(index: int) -> str:
    """Return the colour of head or run number `index`, counted from 0."""
    return COLORS[index % len(COLORS)]


def marker(index: int) -> str:
    """Return the marker of head or run number `index`; with the colour one of 99."""
    return MARKERS[index % len(MARKERS)]
