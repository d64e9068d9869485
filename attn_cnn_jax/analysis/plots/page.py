"""A page: a figure whose parts are placed in inches, and its files."""

import os
import pathlib
import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.text import Text

from attn_cnn_jax.analysis.plots.style import FONT_SIZE, styled
from attn_cnn_jax.errors import UserError

LINE = 0.145  # inches from line to line
_CHARACTERS = 18.0  # of text at FONT_SIZE, to an inch
_BOLD = 0.72  # as many bold ones
_DOTS_PER_INCH = 250

# Nothing of the day or the machine, so that the same figure gives the same bytes.
_NO_METADATA = {
    ".png": {"Software": None},
    ".pdf": {"Creator": None, "Producer": None, "CreationDate": None},
}


class Page:
    """A figure of `width` x `height` inches, whose places count from the upper left."""

    def __init__(self, width: float, height: float):
        self.figure = Figure(figsize=(width, height))
        self.width, self.height = width, height

    def axes(
        self, left: float, top: float, width: float, height: float, **options: Any
    ) -> Axes:
        """Add axes, inches from the left and upper edge."""
        box = (
            left / self.width,
            1 - (top + height) / self.height,
            width / self.width,
            height / self.height,
        )
        return self.figure.add_axes(box, **options)

    def text(self, left: float, top: float, text: str, **options: Any) -> Text:
        """Write text whose upper left corner (unless `ha`, `va` say else) is there."""
        options = {"va": "top", "ha": "left", "fontsize": FONT_SIZE} | options
        return self.figure.text(
            left / self.width, 1 - top / self.height, text, **options
        )

    def heading(
        self, left: float, top: float, width: float, title: str, lines: Sequence[str]
    ) -> None:
        """Write a bold title and lines under it; `heading_height` high."""
        for piece in wrapped(title, width * _BOLD):
            self.text(left, top, piece, fontsize=FONT_SIZE + 1.5, fontweight="bold")
            top += LINE * 1.25
        for line in lines:
            for piece in wrapped(line, width):
                self.text(left, top, piece)
                top += LINE

    def colorbar(
        self,
        left: float,
        top: float,
        width: float,
        cmap: str,
        ticks: tuple[str, ...],
        title: str,
    ) -> Axes:
        """Draw a horizontal scale with `ticks` at equal distances from end to end."""
        axes = self.axes(left, top + LINE, width, 0.09)
        bar = self.figure.colorbar(
            ScalarMappable(Normalize(0, 1), cmap), cax=axes, orientation="horizontal"
        )
        places = [index / (len(ticks) - 1) for index in range(len(ticks))]
        bar.set_ticks(places, labels=list(ticks))
        axes.tick_params(length=2, pad=1.5, width=0.5, labelsize=FONT_SIZE)
        self.text(left + width / 2, top, title, ha="center")
        return axes


def heading_height(width: float, title: str, lines: Sequence[str]) -> float:
    """Return the inches that `Page.heading` takes."""
    bold = 1.25 * len(wrapped(title, width * _BOLD))
    return LINE * (bold + sum(len(wrapped(line, width)) for line in lines))


def wrapped(text: str, width: float) -> list[str]:
    """Return `text` in lines that fit into `width` inches."""
    return textwrap.wrap(text, max(8, int(width * _CHARACTERS)))


def two_digits(value: float) -> str:
    """Return a number with two digits that say something: 95, 9.5, 0.95, −0.095."""
    size = abs(value)
    if size >= 0.995:
        text = f"{value:.1f}" if size < 9.95 else f"{value:.0f}"
    else:
        text = f"{value:#.2g}" if value else "0"
    return text.replace("-", "−")


def bare(axes: Axes) -> None:
    """Take the ticks off, leave the frame."""
    axes.set(xticks=[], yticks=[])


@styled
def save(
    figure: Figure, folder: str | os.PathLike, name: str
) -> tuple[pathlib.Path, pathlib.Path]:
    """Write `folder/name.png` and `.pdf` and return their paths.

    The PDF keeps lines and letters as such, with the fonts in it; heat maps are
    pictures. Equal figures give equal files. Raises a `UserError` if it cannot write.
    """
    if not name or pathlib.Path(name).name != name:
        raise ValueError(f"{name!r} is no file name")
    folder = pathlib.Path(folder)
    paths = folder / f"{name}.png", folder / f"{name}.pdf"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            new = folder / f"{path.name}.new"
            figure.savefig(
                new,
                format=path.suffix[1:],
                dpi=_DOTS_PER_INCH,
                metadata=_NO_METADATA[path.suffix],
            )
            new.replace(path)
    except OSError as error:
        raise UserError(f"the figure {name} cannot be written: {error}.") from error
    return paths
