"""A page: a figure whose parts are placed in inches, and its files."""

import contextlib
import dataclasses
import os
import pathlib
import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from attn_cnn_jax.analysis.plots.style import FONT_SIZE, Style, current
from attn_cnn_jax.errors import UserError

MARGIN = 0.1  # inches
LINE = 0.145  # inches from line to line
_CHARACTERS = 18.0  # of text at FONT_SIZE, to an inch
_BOLD = 0.72  # as many bold ones
_NARROWEST = 2.2  # inches, of text between pictures

# Nothing of the day or the machine, so that the same figure gives the same bytes.
_NO_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": {"Creator": None, "Producer": None, "CreationDate": None},
    "svg": {"Creator": None, "Date": None, "Format": None, "Type": None},
}


@dataclasses.dataclass(frozen=True)
class Heading:
    """The text above a figure, and what else a reader has to know.

    `title` and `lines` stand on the page. `caption` are sentences for the text file
    beside it, which has all of them. At `left` and `right` so many inches are kept for
    pictures, `beside` high; on a narrow page these stand below the text.
    """

    title: str
    lines: Sequence[str] = ()
    caption: Sequence[str] = ()
    left: float = 0.0
    right: float = 0.0
    beside: float = 0.0

    def is_above(self, width: float) -> bool:
        """Return whether the text stands above the pictures, not between them."""
        between = width - 2 * MARGIN - self.left - self.right
        return bool(self.beside) and between < _NARROWEST

    def room(self, width: float) -> float:
        """Return how wide the text may be on a page of that width."""
        beside = 0.0 if self.is_above(width) else self.left + self.right
        return width - 2 * MARGIN - beside

    def text_height(self, width: float) -> float:
        """Return the inches that the text takes."""
        room = self.room(width)
        bold = 1.25 * len(wrapped(self.title, room * _BOLD))
        return LINE * (bold + sum(len(wrapped(line, room)) for line in self.lines))

    def alone(self, width: float) -> float:
        """Return the height of the part that has nothing but text."""
        height = self.text_height(width)
        if self.is_above(width):
            return height + 0.05
        return max(0.0, height - self.beside)

    def height(self, width: float) -> float:
        """Return the inches from the upper edge to what stands below."""
        return MARGIN + self.alone(width) + self.beside


class PageFigure(Figure):
    """A figure that knows its heading, so that `save` can leave its texts out."""

    heading: Heading
    texts_of_heading: list[Text]
    style: Style


class Page:
    """A figure with a heading and `below` inches under it.

    Places count in inches from the upper left. Without `width` it is the style's. What
    is below begins at `top`, and pictures beside the heading at `beside`.
    """

    def __init__(self, heading: Heading, below: float, width: float | None = None):
        self.width = width or current().width
        self.top = heading.height(self.width)
        self.beside = self.top - heading.beside
        self.height = self.top + below
        self.figure = PageFigure(figsize=(self.width, self.height))
        self.figure.style, self.figure.heading = current(), heading
        self.figure.texts_of_heading = self._write(heading)

    def _write(self, heading: Heading) -> list[Text]:
        left = MARGIN + (0.0 if heading.is_above(self.width) else heading.left)
        room, top, texts = heading.room(self.width), MARGIN, []
        bold = {"fontsize": FONT_SIZE + 1.5, "fontweight": "bold"}
        for piece in wrapped(heading.title, room * _BOLD):
            texts.append(self.text(left, top, piece, **bold))
            top += LINE * 1.25
        for piece in (p for line in heading.lines for p in wrapped(line, room)):
            texts.append(self.text(left, top, piece))
            top += LINE
        return texts

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


def save(
    figure: Figure, folder: str | os.PathLike, name: str
) -> tuple[pathlib.Path, ...]:
    """Write `folder/name.png` and so on, as the style says, and return their paths.

    The last one is `name.txt`, with the heading and the caption, where the figure has
    them. PDF and SVG keep lines and letters as such, a PDF with the fonts in it; heat
    maps are pictures. Equal figures give equal files. Raises a `UserError` if it cannot
    write.
    """
    if not name or pathlib.Path(name).name != name:
        raise ValueError(f"{name!r} is no file name")
    folder = pathlib.Path(folder)
    paths = [folder / f"{name}.{format}" for format in current().formats]
    if isinstance(figure, PageFigure):
        paths.append(folder / f"{name}.txt")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            new = folder / f"{path.name}.new"
            if path.suffix == ".txt" and isinstance(figure, PageFigure):
                new.write_text(_caption(figure), encoding="utf-8")
            else:
                _write(figure, new, path.suffix[1:])
            new.replace(path)
    except OSError as error:
        raise UserError(f"the figure {name} cannot be written: {error}.") from error
    return tuple(paths)


def listed(paths: Sequence[pathlib.Path]) -> str:
    """Return the files in a line, with their folder once: "runs/a.png, a.pdf"."""
    return ", ".join([str(paths[0]), *(path.name for path in paths[1:])])


def _caption(figure: PageFigure) -> str:
    heading = figure.heading
    parts = ["\n".join([heading.title, *heading.lines]), *heading.caption]
    return "\n\n".join(parts) + "\n"


def _write(figure: Figure, path: pathlib.Path, format: str) -> None:
    """Write the figure in its own font, and without its heading as the style says."""
    style, own = current(), current()
    hidden, bounds = [], None
    if isinstance(figure, PageFigure):
        own = figure.style
        if not style.has_title(format):
            hidden = figure.texts_of_heading
            width, height = map(float, figure.get_size_inches())
            below = height - figure.heading.alone(width)
            bounds = Bbox.from_bounds(0, 0, width, below)
    with contextlib.ExitStack() as stack:
        stack.enter_context(matplotlib.rc_context(own.rc))
        for text in hidden:
            text.set_visible(False)
            stack.callback(text.set_visible, True)
        figure.savefig(
            path,
            format=format,
            dpi=style.dpi,
            metadata=_NO_METADATA[format],
            bbox_inches=bounds,
        )
