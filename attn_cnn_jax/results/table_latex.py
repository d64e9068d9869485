"""Tables as LaTeX, for papers that use booktabs and graphicx."""

from attn_cnn_jax.results.table_text import Cell, Column, Table, printable, shown

_ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "`": r"\textasciigrave{}",
    "±": r"$\pm$",
    **{character: f"\\{character}" for character in "{}$&#_%"},
}


def to_latex(table: Table) -> str:
    r"""Return the table as a `table` float as wide as the text, with its notes.

    A column without any value is left out. The preamble needs
    \usepackage{booktabs,graphicx} and, for quotation marks in names,
    \usepackage[T1]{fontenc}. Text is escaped: none of it is a command.
    """
    cells = list(zip(*table.rows, strict=True))
    filled = [
        index
        for index in range(len(table.columns))
        if not cells or any(cell.value is not None for cell in cells[index])
    ]
    columns = [table.columns[index] for index in filled]
    rows = [[row[index] for index in filled] for row in table.rows]
    kinds = "".join("l" if column.kind == "text" else "r" for column in columns)
    footnotes = (f"{_mark(i)} {escape(text)}" for i, text in enumerate(table.footnotes))
    notes = [*footnotes, *map(escape, table.notes)]
    return "\n".join(
        [
            r"% needs \usepackage{booktabs,graphicx} and \usepackage[T1]{fontenc}",
            r"\begin{table}",
            rf"\caption{{{escape(table.title)}}}",
            r"\resizebox{\linewidth}{!}{%",
            rf"\begin{{tabular}}{{{kinds}}}",
            r"\toprule",
            _line([escape(column.name) for column in columns]),
            r"\midrule",
            *(_line(list(map(_cell, columns, row))) for row in rows),
            r"\bottomrule",
            r"\end{tabular}}",
            r"\par\footnotesize",
            *(f"{text}\\par" for text in notes),
            r"\end{table}",
            "",
        ]
    )


def escape(text: str) -> str:
    """Return `text` on one line of LaTeX as it is written.

    A character that pdfLaTeX may not know stands as its code, such as U+4E2D.
    """
    return "".join(
        _ESCAPES.get(c, c if ord(c) < 256 else f"U+{ord(c):04X}")
        for c in printable(text)
    )


def _cell(column: Column, cell: Cell) -> str:
    return escape(shown(column, cell)) + "".join(map(_mark, cell.footnotes))


def _mark(index: int) -> str:
    return rf"\textsuperscript{{[{index + 1}]}}"


def _line(cells: list[str]) -> str:
    return f"{' & '.join(cells)} \\\\"
