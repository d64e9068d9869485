"""Workdirs made by hand, and tables read back from their text."""

import json

import pytest
from markdown_it import MarkdownIt

from attn_cnn_jax.results import published


@pytest.fixture
def make_run(tmp_path):
    """`make_run(folder, config, accuracies, ...)` writes a workdir and returns it.

    `test` and `validation` map epochs to accuracies; an epoch has 500 steps; the loss
    is 1 - accuracy, `images` how many were scored. `fields` changes the config by
    dotted path.
    """

    def make(
        folder,
        config,
        test,
        *,
        seed=1,
        validation=None,
        bench=None,
        images=None,
        **fields,
    ):
        config = published.load_config(config)
        config.seed = seed
        for field, value in fields.items():
            block = config
            *parents, key = field.split("__")
            for parent in parents:
                block = block[parent]
            block[key] = value
        workdir = tmp_path / folder
        workdir.mkdir()
        (workdir / "config.json").write_text(json.dumps(config.to_dict()))
        records = []
        for split, scores in (("test", test), ("validation", validation or {})):
            for epoch, accuracy in scores.items():
                values = {"epoch": float(epoch), "accuracy": accuracy}
                values["loss"] = 1 - accuracy
                values |= {} if images is None else {"images": images}
                records.append({"step": int(500 * epoch), "split": split, **values})
        text = "".join(json.dumps(record) + "\n" for record in records)
        (workdir / "metrics.jsonl").write_text(text)
        if bench is not None:
            (workdir / "bench.jsonl").write_text(bench)
        return workdir

    return make


@pytest.fixture
def evaluated_each_epoch():
    """`evaluated_each_epoch(300, {120: .9, 300: .8})`: low scores but for those."""

    def scores(num_epochs: int, chosen: dict[int, float]) -> dict[int, float]:
        return {epoch: chosen.get(epoch, 0.1) for epoch in range(1, num_epochs + 1)}

    return scores


@pytest.fixture
def bench_record():
    """What bench writes of ResNet-18."""
    return {
        "config": "resnet18",
        "model": "resnet18",
        "device_kind": "NVIDIA H200",
        "platform": "gpu",
        "devices": 1,
        "compute_dtype": "float32",
        "date": "2026-11-20T10:00:00",
        "parameters": 11_173_962,
        "flops_paper": 1_110_000_000,
        "flops": 1_120_000_000,
        "latency_ms": {"mean": 1.25, "std": 0.1, "median": 1.2, "calls": 300},
    }


@pytest.fixture
def values():
    """`values(table, config or run, column)`: that column's cells in its lines."""

    def select(table, row, column):
        names = [c.name for c in table.columns]
        where = names.index("config" if "config" in names else "run")
        at = names.index(column)
        return [line[at] for line in table.rows if line[where].value == row]

    return select


@pytest.fixture
def notes_of():
    """The text of a cell's footnotes."""
    return lambda table, cell: " ".join(table.footnotes[i] for i in cell.footnotes)


@pytest.fixture
def parse_markdown():
    """`parse_markdown(text)`: the table's cells as shown, header first, and all else.

    Anything but plain text (links, emphasis, code, HTML) fails the test.
    """
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])

    def parse(text):
        rows, rest, row = [], [], None
        for token in parser.parse(text):
            assert token.type not in ("html_block", "fence", "code_block")
            if token.type in ("tr_open", "tr_close"):
                if row:
                    rows.append(row)
                row = [] if token.type == "tr_open" else None
            elif token.type == "inline":
                assert {child.type for child in token.children} <= {"text"}
                shown = "".join(child.content for child in token.children)
                (rest if row is None else row).append(shown)
        return rows, rest

    return parse
