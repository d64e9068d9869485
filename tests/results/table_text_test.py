"""Tables as Markdown and CSV, read back; hostile text stays text."""

import csv
import io
import json
import re

import pytest

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.results import tables
from attn_cnn_jax.results.runs import read_run, read_runs
from attn_cnn_jax.results.table_files import write_tables
from attn_cnn_jax.results.table_latex import to_latex
from attn_cnn_jax.results.table_text import (
    Cell,
    Column,
    Footnotes,
    Table,
    escape,
    to_csv,
    to_markdown,
)

HOSTILE = (
    "a|b\n## `x` <script>alert(1)</script> [l](http://h) *e* \\| _i_ \u202e ~s~ &lt;"
)


LATEX = r"\input{/etc/passwd} $x$ a_b & c % d # e ~ ^ < > | " + "中"


@pytest.fixture
def all_kinds(make_run, bench_record):
    """Runs of several rows, with deviations, footnotes and bench records."""
    return read_runs(
        [
            make_run(
                "a", "resnet18", {300: 0.9}, seed=1, bench=json.dumps(bench_record)
            ),
            make_run("b", "resnet18", {300: 0.95}, seed=2),
            make_run("c", "resnet18", {10: 0.5}, seed=3, images=10_000),
            make_run("d", "resnet18:cosine", {300: 0.9}, seed=3),
            make_run("e", "learned_w_content_16heads", {300: 0.8}, batch_size=64),
        ]
    )


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_csv_reads_back(number, all_kinds, notes_of):
    table = tables.table(number, all_kinds)
    header, *lines = csv.reader(io.StringIO(to_csv(table)))
    assert len(lines) == len(table.rows) > 0
    for line, row in zip(lines, table.rows, strict=True):
        read = dict(zip(header, line, strict=True))
        for column, cell in zip(table.columns, row, strict=True):
            pairs = [(column.name, cell.value)]
            if column.over_seeds:
                ends = cell.interval or (None, None)
                pairs += [
                    (f"{column.name}, standard deviation", cell.std),
                    (f"{column.name}, 95 % from", ends[0]),
                    (f"{column.name}, 95 % to", ends[1]),
                ]
            for name, value in pairs:
                if isinstance(value, int | float):
                    assert float(read[name]) == value
                else:
                    assert read[name] == ("-" if value is None else value)
            assert notes_of(table, cell) in read["footnotes"]


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_markdown_reads_back(number, all_kinds, parse_markdown):
    table = tables.table(number, all_kinds)
    (header, *lines), rest = parse_markdown(to_markdown(table))
    assert header == [column.name for column in table.columns]
    assert len(lines) == len(table.rows)
    for line, row in zip(lines, table.rows, strict=True):
        for column, cell, shown in zip(table.columns, row, line, strict=True):
            marks = [int(mark) - 1 for mark in re.findall(r"\[(\d+)\]", shown)]
            assert marks == list(cell.footnotes)
            shown = re.sub(r" \[\d+\]", "", shown)
            if cell.value is None:
                assert shown == "-"
            elif isinstance(cell.value, str):
                assert shown == cell.value
            else:
                number_shown, _, interval = shown.partition(" (")
                ends = [float(end) for end in interval.rstrip(")").split(" to ") if end]
                assert ends == pytest.approx(cell.interval or [], abs=5e-5)
                number_shown, _, deviation = number_shown.partition(" ± ")
                scale = {"M": 1e6, "G": 1e9}.get(shown[-1], 1)
                digits = number_shown.rstrip(" MG").replace(",", "")
                tolerance = 5e-4 if column.kind in ("flops", "rounded count") else 1e-4
                assert float(digits) * scale == pytest.approx(cell.value, rel=tolerance)
                assert bool(deviation) == (cell.std is not None)
    footnotes = ["Footnotes:", *table.footnotes] if table.footnotes else []
    assert rest == [table.title, *footnotes, "Notes:", *table.notes]


def test_write_tables(make_run, tmp_path):
    workdir = make_run("run", "resnet18", {300: 0.9})
    paths = write_tables(tmp_path / "deep" / "out", [workdir])
    assert [path.name for path in paths] == [
        f"table_{number}.{suffix}" for number in range(1, 5) for suffix in ("md", "csv")
    ]
    table = tables.table(1, read_runs([workdir]))
    assert paths[0].read_text(encoding="utf-8") == to_markdown(table)
    assert paths[1].read_text(encoding="utf-8") == to_csv(table)
    with pytest.raises(UserError, match="cannot be written"):
        write_tables(paths[0] / "below_a_file", [workdir])


def test_write_some_tables(make_run, tmp_path):
    workdirs = [make_run("run", "resnet18", {300: 0.9})]
    [path] = write_tables(tmp_path / "one", workdirs, ["3"], ["latex"])
    assert path.name == "table_3.tex" and len(list(path.parent.iterdir())) == 1
    measured = write_tables(tmp_path / "two", workdirs, only_measured=True)
    assert [path.name for path in measured[::2]] == ["table_1.md", "table_4.md"]
    for tables_, formats, message in [
        (["2"], ["csv"], "none of these runs is in the tables 2"),
        (["5"], ["csv"], "no table '5'; choose from 1, 2, 3, 4, other"),
        (["1"], ["pdf"], "no format 'pdf'; choose from markdown, csv, latex"),
        (["1"], [], "no format to write"),
    ]:
        with pytest.raises(UserError, match=message):
            write_tables(tmp_path / "x", workdirs, tables_, formats, True)


@pytest.mark.parametrize("number", [1, 4])
def test_latex_has_every_cell_and_no_command_of_ours_to_others(number, all_kinds):
    """Each row has its cells, and what remains without our commands is harmless."""
    table = tables.table(number, all_kinds)
    text = to_latex(table)
    lines = text.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
    assert len(lines) == len(table.rows)
    by_column = zip(*table.rows, strict=True)
    filled = [any(cell.value is not None for cell in column) for column in by_column]
    assert number == 4 or not all(filled)  # no run here knows its goodput
    for line, row in zip(lines, table.rows, strict=True):
        shown = [cell for cell, there in zip(row, filled, strict=True) if there]
        cells = re.split(r" & ", line.removesuffix(r" \\"))
        marks = [len(re.findall("textsuperscript", cell)) for cell in cells]
        assert marks == [len(cell.footnotes) for cell in shown]
    assert text.count("{") == text.count("}")
    assert number == 4 or r"0.9250 $\pm$ 0.0354" in text


def test_hostile_strings_are_no_latex():
    escaped = to_latex(Table("t", (Column("run"),), ((Cell(LATEX),),)))
    [line] = [line for line in escaped.splitlines() if "U+4E2D" in line]
    bare = re.sub(r"\\(text\w+\{\}|[{}$&#_%\\])", "", line)
    assert not set(bare) & set("\\{}$&#_%^~<>|")
    assert r"\textbackslash{}input\{/etc/passwd\}" in line


def test_a_footnote_stands_once():
    footnotes = Footnotes()
    marks = [footnotes.add(texts) for texts in (["a", "b", "a"], ["c", "b"], [])]
    assert marks == [(0, 1), (2, 1), ()] and footnotes.texts == ["a", "b", "c"]


def test_there_are_four_tables():
    with pytest.raises(UserError, match="no table 5"):
        tables.table(5, [])


def test_hostile_strings_stay_in_their_cell(make_run, parse_markdown):
    bench = {"device_kind": HOSTILE, "latency_ms": {"mean": 1.0}}
    run = read_run(
        make_run(
            "x|y<b>`z`\nq",
            "quickstart",
            {epoch: 0.9 for epoch in range(1, 111)},
            dataset__name=HOSTILE,
            bench=json.dumps(bench),
        )
    )
    others = tables.other_runs([run])
    text = to_markdown(others)
    assert "<" not in text
    (header, line), rest = parse_markdown(text)
    assert rest == [others.title, "Notes:", *others.notes]
    shown = HOSTILE.replace("\n", " ").replace("\u202e", " ")
    assert line[header.index("device")] == shown
    assert line[header.index("data")] == shown
    assert line[0] == r"x|y<b>`z`\nq"
    row = list(csv.reader(io.StringIO(to_csv(others))))[1]
    assert row[1] == shown


@pytest.mark.parametrize("number", [1, 4])
def test_hostile_protocols_stay_in_their_footnote(number, make_run, parse_markdown):
    name = f"<img src=x>\n{HOSTILE}"[:90]
    run = read_run(make_run("run", "resnet18", {300: 0.9}, schedule__name=name))
    rows, rest = parse_markdown(to_markdown(tables.table(number, [run])))
    assert len(rows) == len(tables.table(number, [run]).rows) + 1
    shown = name.replace("\n", " ").replace("\u202e", " ")
    assert any(f"schedule.name {shown} instead of" in text for text in rest)


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)"])
def test_no_text_is_a_formula_in_csv(text):
    table = Table("t", (Column("run"),), ((Cell(text),),))
    assert to_csv(table).splitlines()[1].startswith(f"'{text}")


def test_long_text_is_cut():
    assert len(escape("x" * 100_000)) == 2000
