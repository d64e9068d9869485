"""Tables as Markdown and CSV, read back; hostile text stays text."""

import csv
import io
import json
import re

import pytest

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.results import tables
from attn_cnn_jax.results.runs import read_run, read_runs
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


@pytest.fixture
def all_kinds(make_run, bench_record):
    """Runs of several rows, with deviations, footnotes and bench records."""
    return read_runs(
        [
            make_run(
                "a", "resnet18", {300: 0.9}, seed=1, bench=json.dumps(bench_record)
            ),
            make_run("b", "resnet18", {300: 0.95}, seed=2),
            make_run("c", "resnet18", {10: 0.5}, seed=3),
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
                pairs.append((f"{column.name}, standard deviation", cell.std))
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
                number_shown, _, deviation = shown.partition(" ± ")
                scale = {"M": 1e6, "G": 1e9}.get(shown[-1], 1)
                digits = number_shown.rstrip(" MG").replace(",", "")
                tolerance = 5e-4 if column.kind in ("flops", "rounded count") else 1e-4
                assert float(digits) * scale == pytest.approx(cell.value, rel=tolerance)
                assert bool(deviation) == (cell.std is not None)
    footnotes = ["Footnotes:", *table.footnotes] if table.footnotes else []
    assert rest == [table.title, *footnotes, "Notes:", *table.notes]


def test_write_tables(make_run, tmp_path):
    workdir = make_run("run", "resnet18", {300: 0.9})
    paths = tables.write_tables(tmp_path / "deep" / "out", [workdir])
    assert [path.name for path in paths] == [
        f"table_{number}.{suffix}" for number in range(1, 5) for suffix in ("md", "csv")
    ]
    table = tables.table(1, read_runs([workdir]))
    assert paths[0].read_text(encoding="utf-8") == to_markdown(table)
    assert paths[1].read_text(encoding="utf-8") == to_csv(table)
    with pytest.raises(UserError, match="cannot be written"):
        tables.write_tables(paths[0] / "below_a_file", [workdir])


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
            {epoch: 0.9 for epoch in range(1, 71)},
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
