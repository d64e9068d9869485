"""The look of the figures: print sizes, and colours for the colour-blind too."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

import matplotlib
import numpy as np

from attn_cnn_jax.errors import UserError

PAGE_WIDTH, PAGE_HEIGHT = 7.0, 9.6  # inches: A4 or letter with margins
FONT_SIZE = 7.0  # points, nothing is smaller
FORMATS = ("png", "pdf", "svg")

# Both come with matplotlib. STIX looks like Times and has bold letters and signs,
# which its Computer Modern lacks: that is for formulas alone.
FONTS: dict[str, dict[str, Any]] = {
    "sans": {"font.family": ["DejaVu Sans"], "mathtext.fontset": "dejavusans"},
    "serif": {
        "font.family": ["STIXGeneral", "DejaVu Serif"],
        "mathtext.fontset": "cm",
    },
}


@dataclasses.dataclass(frozen=True)
class Style:
    """How figures are drawn and written, by all functions within `with use(style)`.

    `width` is that of the page in inches, 3 to 20; letters keep their size. `font` is
    "sans" or "serif", which goes with LaTeX. `formats` are those of the files, `dpi`
    the dots to an inch of PNGs and heat maps, 50 to 600. `title` says whether the files
    have the heading; without it, PNGs have it and the others, which are for papers, do
    not. Raises a `UserError` for anything else.
    """

    width: float = PAGE_WIDTH
    font: str = "sans"
    formats: tuple[str, ...] = ("png", "pdf")
    dpi: int = 250
    title: bool | None = None

    def __post_init__(self):
        if not 3 <= self.width <= 20:
            raise UserError(f"a figure is 3 to 20 inches wide, not {self.width:g}.")
        if not 50 <= self.dpi <= 600:
            raise UserError(f"a figure has 50 to 600 dots to an inch, not {self.dpi}.")
        if self.font not in FONTS:
            raise UserError(f"there is no font {self.font!r}: take {', '.join(FONTS)}.")
        unknown = [name for name in self.formats if name not in FORMATS]
        if unknown or not self.formats:
            raise UserError(
                f"figures are written as {', '.join(FORMATS)}, not as "
                f"{', '.join(map(repr, unknown)) or 'nothing'}."
            )

    def has_title(self, format: str) -> bool:
        """Return whether files of that format have the heading."""
        return format == "png" if self.title is None else self.title

    @property
    def rc(self) -> dict[Any, Any]:
        """The settings of matplotlib."""
        return RC | FONTS[self.font]


_STYLE: ContextVar[Style | None] = ContextVar("style", default=None)


def current() -> Style:
    """Return the style in use."""
    return _STYLE.get() or Style()


@contextlib.contextmanager
def use(style: Style) -> Iterator[None]:
    """Draw and save in this style."""
    token = _STYLE.set(style)
    try:
        yield
    finally:
        _STYLE.reset(token)


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
    "font.size": FONT_SIZE,
    "image.interpolation": "nearest",
    "image.origin": "upper",
    "legend.fontsize": FONT_SIZE,
    "pdf.fonttype": 42,  # TrueType, embedded
    "pdf.use14corefonts": False,
    "savefig.bbox": None,
    "savefig.facecolor": "white",
    "svg.fonttype": "path",  # looks the same everywhere
    "svg.hashsalt": "attn_cnn_jax",  # the same file for the same figure
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
        with matplotlib.rc_context(current().rc):
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
