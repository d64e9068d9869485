"""Figures as files, and many of them on one sheet."""

import os
import pathlib
from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.image import imread

from attn_cnn_jax.analysis.plots.page import LINE, Page
from attn_cnn_jax.analysis.plots.style import FONT_SIZE, PAGE_WIDTH, styled
from attn_cnn_jax.errors import UserError

_DOTS_PER_INCH = 250

# Nothing of the day or the machine: the same figure gives the same bytes.
_NO_METADATA = {
    ".png": {"Software": None},
    ".pdf": {"Creator": None, "Producer": None, "CreationDate": None},
}


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


@styled
def contact_sheet(
    paths: Sequence[str | os.PathLike],
    *,
    columns: int = 3,
    width: float = 2 * PAGE_WIDTH,
) -> Figure:
    """All of these PNG files on one page, each with its name, in reading order."""
    gap, cell = 0.15, (width - 0.15) / columns
    images = [imread(os.fspath(path)) for path in paths]
    inside = cell - gap
    heights = [image.shape[0] / image.shape[1] * inside for image in images]
    lines = [heights[i : i + columns] for i in range(0, len(heights), columns)]
    page = Page(width, gap + sum(max(line) + LINE + gap for line in lines))
    top = gap
    for index, (path, image) in enumerate(zip(paths, images, strict=True)):
        line, column = divmod(index, columns)
        left = gap + column * cell
        page.text(left, top, pathlib.Path(path).stem, fontsize=FONT_SIZE + 1)
        axes = page.axes(left, top + LINE, inside, heights[index])
        axes.imshow(image, interpolation="antialiased", aspect="auto")
        axes.set_axis_off()
        if column == columns - 1:
            top += max(lines[line]) + LINE + gap
    return page.figure
