"""Tables as data, and their text as Markdown and CSV."""

import csv
import dataclasses
import io
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

Value = str | int | float | None
Kind = Literal[
    "text",
    "count",
    "rounded count",
    "accuracy",
    "published accuracy",
    "number",
    "flops",
    "milliseconds",
    "percent",
]

MISSING = "-"
_LONGEST = 2000  # characters of a text that comes from a workdir


@dataclasses.dataclass(frozen=True)
class Column:
    """A column's heading and what its cells are."""

    name: str
    kind: Kind = "text"
    over_seeds: bool = False  # its cells may have a deviation and an interval


@dataclasses.dataclass(frozen=True)
class Cell:
    """A value, or None where there is none, and the footnotes to it."""

    value: Value = None
    std: float | None = None  # sample standard deviation over seeds
    interval: tuple[float, float] | None = None  # of 95 %
    footnotes: tuple[int, ...] = ()  # indices, from 0, into those of the table


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of cells under columns; `footnotes` belong to cells, `notes` to all."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    footnotes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclasses.dataclass
class Footnotes:
    """The footnotes of a table while it is built, each text once."""

    texts: list[str] = dataclasses.field(default_factory=list)

    def add(self, texts: Iterable[str]) -> tuple[int, ...]:
        """Return the indices of these texts."""
        new = [text for text in dict.fromkeys(texts) if text not in self.texts]
        self.texts += new
        return tuple(self.texts.index(text) for text in dict.fromkeys(texts))


def to_markdown(table: Table) -> str:
    """Return the table in GitHub's Markdown.

    Footnotes stand as [1] behind a cell and are listed below. Text is escaped: it
    shows as it is written and can be neither markup nor HTML.
    """
    lines = [f"## {escape(table.title)}", ""]
    lines.append(_markdown_line([escape(column.name) for column in table.columns]))
    lines.append(
        _markdown_line(["---" if c.kind == "text" else "--:" for c in table.columns])
    )
    for row in table.rows:
        cells = zip(table.columns, row, strict=True)
        lines.append(_markdown_line([_markdown_cell(*pair) for pair in cells]))
    if table.footnotes:
        lines += ["", "Footnotes:", ""]
        lines += [f"{i}. {escape(text)}" for i, text in enumerate(table.footnotes, 1)]
    if table.notes:
        lines += ["", "Notes:", "", *(f"- {escape(text)}" for text in table.notes)]
    return "\n".join(lines) + "\n"


def to_csv(table: Table) -> str:
    """Return the table as CSV of full precision: accuracies in [0, 1], FLOPs in units.

    A column over seeds is followed by one of standard deviations and by the two ends of
    95 % intervals, and the last column holds a row's footnotes. Text
    that a spreadsheet would take for a formula begins with an apostrophe.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    header = []
    for column in table.columns:
        header.append(column.name)
        if column.over_seeds:
            ends = ("standard deviation", "95 % from", "95 % to")
            header += [f"{column.name}, {end}" for end in ends]
    writer.writerow([*header, "footnotes"])
    for row in table.rows:
        values = []
        for column, cell in zip(table.columns, row, strict=True):
            values.append(_csv_value(cell.value))
            if column.over_seeds:
                numbers = (cell.std, *(cell.interval or (None, None)))
                values += [_csv_value(number) for number in numbers]
        indices = dict.fromkeys(index for cell in row for index in cell.footnotes)
        notes = " ".join(table.footnotes[index] for index in indices)
        writer.writerow([*values, _csv_value(notes) if notes else ""])
    return text.getvalue()


def escape(text: str) -> str:
    """Return `text` on one line of Markdown, in a table cell too, as it is written.

    Characters that do not print become spaces; what is very long is cut.
    """
    line = printable(text)
    for character in "&<>|":  # & first: the entities of the others have one
        line = line.replace(character, f"&#{ord(character)};")
    line = re.sub(r"[\\`*\[\]~]", r"\\\g<0>", line)
    # Inside a word an underscore is no markup.
    line = re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", line)
    return line.replace("://", ":&#47;/")  # nor does an address become a link


def shown(column: Column, cell: Cell) -> str:
    """Return what a cell shows, without its footnotes and not escaped yet."""
    show = _SHOW[column.kind]
    if cell.value is None:
        return MISSING
    text = cell.value if isinstance(cell.value, str) else show(cell.value)
    if cell.std is not None:
        text += f" ± {show(cell.std)}"
    if cell.interval is not None:
        text += " ({} to {})".format(*map(show, cell.interval))
    return text


def printable(text: str) -> str:
    """Return `text` with spaces for what does not print, cut where it is very long."""
    line = "".join(c if c.isprintable() else " " for c in text)
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."


def _markdown_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_cell(column: Column, cell: Cell) -> str:
    marks = "".join(f" \\[{index + 1}\\]" for index in cell.footnotes)
    return escape(shown(column, cell)) + marks


def _csv_value(value: Value) -> str:
    if value is None:
        return MISSING
    if not isinstance(value, str):
        return str(value)
    text = printable(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def _three_digits_or_four(value: float) -> str:
    """Published accuracies have three digits, a few of the report's logs four."""
    return f"{value:.3f}" if round(value, 3) == value else f"{value:.4f}"


# How Markdown shows the numbers of a column.
_SHOW: dict[Kind, Callable[[int | float], str]] = {
    "text": str,
    "count": "{:,}".format,
    "rounded count": lambda value: f"{value / 1e6:.3g}M",
    "accuracy": "{:.4f}".format,
    "published accuracy": _three_digits_or_four,
    "number": "{:.6g}".format,
    "flops": lambda value: f"{value / 1e9:.4g} G",
    "milliseconds": "{:.3f}".format,
    "percent": "{:.0%}".format,
}
