"""Tables 1 to 4 from workdirs: what runs came to, beside the published."""

import json

import pytest

from attn_cnn_jax.goodput import ACTIVITIES
from attn_cnn_jax.results import tables
from attn_cnn_jax.results.entries import gather
from attn_cnn_jax.results.runs import read_run, read_runs
from attn_cnn_jax.results.table_files import write_tables
from attn_cnn_jax.results.table_text import Cell, to_markdown

CONFIGS = ("resnet18", "resnet18:cosine")


def test_mean_and_sample_deviation_over_seeds(make_run, evaluated_each_epoch, values):
    scores = {1: (0.90, 0.88), 2: (0.92, 0.90), 3: (0.94, 0.95)}
    runs = read_runs(
        make_run(
            f"seed{seed}",
            "resnet18",
            evaluated_each_epoch(300, {120: best, 300: final}),
            seed=seed,
        )
        for seed, (best, final) in scores.items()
    )
    table = tables.table(1, runs)
    [best] = values(table, "resnet18", "ours: best accuracy")
    # Best: .90, .92 and, in the last epoch itself, .95; squares .0544 ** 2 and so on.
    assert best.value == pytest.approx(0.9233333333333333, abs=1e-12)
    assert best.std == pytest.approx(0.0251661147842358, abs=1e-12)
    [final] = values(table, "resnet18", "ours: final accuracy")
    # Deviations -.03, -.01, .04: the root of .0026 / 2.
    assert final.value == pytest.approx(0.91, abs=1e-12)
    assert final.std == pytest.approx(0.036055512754639, abs=1e-12)
    assert [
        values(table, "resnet18", name)[0].value for name in ("runs", "epochs")
    ] == [
        3,
        300.0,
    ]
    [status] = values(table, "resnet18", "status")
    assert status == Cell("as published")
    assert values(table, "resnet18", "ours: parameters") == [Cell(11_173_962)]
    assert "0.9233 ± 0.0252" in to_markdown(table)


def test_one_run_has_no_deviation(make_run, values, notes_of):
    run = read_run(make_run("run", "resnet18", {150: 0.8, 300: 0.7}))
    table = tables.table(1, [run])
    assert values(table, "resnet18", "ours: best accuracy") == [Cell(0.8)]
    assert values(table, "resnet18", "ours: final accuracy") == [Cell(0.7)]
    [status] = values(table, "resnet18", "status")
    assert "best of 2." in notes_of(table, status)
    assert "±" not in to_markdown(table).split("Notes:")[0]


def test_a_missing_run_is_a_dash(make_run, parse_markdown):
    table = tables.table(1, read_runs([make_run("run", "resnet18", {300: 0.9})]))
    lines, _ = parse_markdown(to_markdown(table))
    [line] = [line for line in lines if "learned_w_content" in line]
    assert line == [
        "Learned embedding w/ content",
        "learned_w_content",
        "0.871",
        "0.864 [8]",
        *["-"] * 8,
        "29.5M [9]",
        "-",
        "15 G",
        *["-"] * 4,
    ]


def test_an_unfinished_run_is_marked_and_in_no_mean(make_run, values, notes_of):
    runs = read_runs(
        [
            make_run("a", "resnet18", {300: 0.9}, seed=1),
            make_run("b", "resnet18", {299: 0.5}, seed=2),
        ]
    )
    table = tables.table(1, runs)
    assert [c.value for c in values(table, "resnet18", "runs")] == [1, 1]
    complete, unfinished = values(table, "resnet18", "ours: final accuracy")
    assert complete == Cell(0.9)
    assert (unfinished.value, unfinished.std) == (0.5, None)
    assert "299 of 300 epochs" in notes_of(table, unfinished)
    _, status = values(table, "resnet18", "status")
    assert status.value == "unfinished"
    assert "299 of 300 epochs" in notes_of(table, status)
    assert "step 149500" in notes_of(table, status)


def test_a_run_that_has_only_begun_is_unfinished(make_run, values):
    workdir = make_run("run", "resnet18", {})
    (workdir / "metrics.jsonl").unlink()
    table = tables.table(1, read_runs([workdir]))
    assert values(table, "resnet18", "ours: best accuracy") == [Cell()]
    assert values(table, "resnet18", "epochs") == [Cell(0.0)]
    assert values(table, "resnet18", "status")[0].value == "unfinished"


def test_entries_stand_by_likeness_then_number_then_length(make_run):
    """As published first, then by differences, seeds and epochs; unfinished last."""
    long, rate = {"num_epochs": 60}, {"optimizer__learning_rate": 0.2}
    workdirs = [
        make_run("unfinished", "resnet18", {299: 0.9}, seed=3),
        make_run("two differences", "resnet18", {60: 0.9}, **long, **rate),
        make_run("short", "resnet18", {60: 0.9}, **long),
        make_run("long", "resnet18", {300: 0.9}, **rate),
        make_run("seed 1", "resnet18", {300: 0.9}, label_smoothing=0.1),
        make_run("seed 2", "resnet18", {300: 0.9}, label_smoothing=0.1, seed=2),
        make_run("as published", "resnet18", {300: 0.9}),
    ]
    entries = gather(read_runs(workdirs))
    assert [[run.name for run in entry.runs] for entry in entries] == [
        ["as published"],
        ["seed 1", "seed 2"],
        ["long"],
        ["short"],
        ["two differences"],
        ["unfinished"],
    ]


def test_a_line_names_the_way_in_which_its_runs_were_trained(make_run, values):
    runs = read_runs(
        [
            make_run("a", "resnet18", {300: 0.9}),
            make_run("b", "resnet18:cosine", {300: 0.8}),
        ]
    )
    table = tables.table(1, runs)
    assert values(table, "resnet18", "ours: final accuracy") == [Cell(0.9)]
    assert values(table, "resnet18:cosine", "ours: final accuracy") == [Cell(0.8)]
    statuses = [values(table, name, "status")[0] for name in CONFIGS]
    assert [status.value for status in statuses] == ["as published"] * 2


@pytest.mark.parametrize(("count", "told"), [(299, False), (298, True)])
def test_evaluations_fewer_than_one_an_epoch_are_told(count, told, make_run):
    scores = {epoch: 0.5 for epoch in range(301 - count, 301)}
    [entry] = gather([read_run(make_run("run", "resnet18", scores))])
    assert entry.status == "as published"
    text = "Evaluations fewer than one an epoch: best of 298."
    assert entry.footnotes == ([text] if told else [])


def test_a_validation_split_chooses_the_best(make_run, values, notes_of):
    run = read_run(
        make_run(
            "run",
            "resnet18",
            {100: 0.95, 200: 0.8, 300: 0.7},
            validation={100: 0.5, 200: 0.9, 300: 0.6},
            dataset__validation_fraction=0.1,
        )
    )
    assert (run.best.step, run.best.accuracy) == (100_000, 0.8)
    table = tables.table(1, [run])
    [status] = values(table, "resnet18", "status")
    assert "best on the validation images" in notes_of(table, status)
    assert status.value == "other protocol"


def test_a_best_that_one_seed_lacks_is_no_mean(make_run, values):
    held_out = {"dataset__validation_fraction": 0.1}
    scores = {300: 0.7}
    runs = read_runs(
        [
            make_run("a", "resnet18", scores, seed=1, validation=scores, **held_out),
            make_run("b", "resnet18", scores, seed=2, **held_out),
        ]
    )
    table = tables.table(1, runs)
    assert values(table, "resnet18", "ours: best accuracy") == [Cell()]
    [final] = values(table, "resnet18", "ours: final accuracy")
    assert (final.value, final.std) == (0.7, 0.0)


def test_runs_trained_in_different_ways_are_not_averaged(make_run, values, notes_of):
    runs = read_runs(
        [
            make_run("a", "resnet18", {300: 0.9}, seed=1),
            make_run("b", "resnet18", {300: 0.5}, seed=2, batch_size=128),
            make_run("c", "resnet18", {6: 0.3}, seed=3, num_epochs=6),
        ]
    )
    table = tables.table(1, runs)
    finals = values(table, "resnet18", "ours: final accuracy")
    assert [cell.value for cell in finals] == [0.9, 0.5, 0.3]
    status = values(table, "resnet18", "status")
    assert [cell.value for cell in status] == ["as published"] + ["other protocol"] * 2
    assert [c.value for c in values(table, "resnet18", "epochs")] == [300, 300, 6]
    assert "num_epochs 6 instead of 300" in notes_of(table, status[2])
    changed = ["", "batch_size 128 instead of 100", "num_epochs 6 instead of 300"]
    for column in ("ours: best accuracy", "ours: final accuracy"):
        cells = values(table, "resnet18", column)
        for cell, fields in zip(cells, changed, strict=True):
            assert fields in notes_of(table, cell)
            assert bool(cell.footnotes) == bool(fields)


def test_bench_gives_flops_and_latency(make_run, values, bench_record):
    older = {**bench_record, "latency_ms": {"mean": 9.0}}
    lines = f"{json.dumps(older)}\n{json.dumps(bench_record)}\n{{half a li"
    run = read_run(make_run("run", "resnet18", {300: 0.9}, bench=lines))
    table = tables.table(1, [run])
    names = ["ours: FLOPs", "ours: FLOPs with attention", "ours: latency, ms", "device"]
    found = [values(table, "resnet18", name)[0].value for name in names]
    assert found == [1.11e9, 1.12e9, 1.25, "NVIDIA H200"]
    assert "| 1.1 G | 1.11 G | 1.12 G | 1.250 | NVIDIA H200 |" in to_markdown(table)


def test_the_newest_bench_of_the_seeds_and_the_other_device(
    make_run, values, notes_of, bench_record
):
    newer = {**bench_record, "date": "2026-11-21", "device_kind": "A100"}
    newer |= {"compute_dtype": "bfloat16", "latency_ms": {"mean": 80.0}}
    runs = read_runs(
        [
            make_run("a", "resnet18", {300: 0.9}, seed=1, bench=json.dumps(newer)),
            make_run(
                "b", "resnet18", {300: 0.9}, seed=2, bench=json.dumps(bench_record)
            ),
        ]
    )
    table = tables.table(1, runs)
    [latency] = values(table, "resnet18", "ours: latency, ms")
    assert latency.value == 80.0
    assert notes_of(table, latency) == "Another seed: 1.250 ms on NVIDIA H200."
    assert values(table, "resnet18", "device")[0].value == "A100, bfloat16"


def test_goodput_is_the_mean_of_the_runs_that_know_it(make_run, values):
    workdirs = [make_run(n, "resnet18", {300: 0.9}, seed=ord(n)) for n in "abcd"]
    for workdir, training in zip(workdirs, (90, 70, "?"), strict=False):
        seconds = {**dict.fromkeys(ACTIVITIES, 0), "training": training}
        end = {"step": 150_000, "split": "goodput", **seconds, "saving": 10}
        with (workdir / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(end) + "\n")
    table = tables.table(1, read_runs(workdirs))
    assert values(table, "resnet18", "goodput") == [Cell((90 / 100 + 70 / 80) / 2)]
    assert "| 89% |" in to_markdown(table)


def test_digits_are_listed_apart(make_run, tmp_path, values):
    workdir = make_run("demo", "quickstart", {35: 0.95, 110: 0.98})
    runs = read_runs([workdir])
    for number in (1, 2, 3):
        status = [c.name for c in tables.table(number, runs).columns].index("status")
        assert all(r[status] == Cell() for r in tables.table(number, runs).rows)
    others = tables.other_runs(runs)
    assert [cell.value for cell in others.rows[0][:11]] == [
        "demo",
        "digits_8x8",
        "self_attention, quadratic_isotropic",
        0.98,
        0.98,
        None,  # it was made by hand, and knows neither its number of images,
        1,
        110.0,
        None,  # nor its goodput,
        "complete",
        None,  # nor a digest
    ]
    assert values(others, "demo", "ours: parameters") == [Cell(46_064)]
    paths = write_tables(tmp_path / "out", [workdir])
    assert [path.name for path in paths][-2:] == ["other_runs.md", "other_runs.csv"]


def test_table_4_has_our_fields_under_the_published(make_run, notes_of):
    runs = read_runs(
        [
            make_run("a", "resnet18", {300: 0.9}),
            make_run("b", "resnet18:cosine", {300: 0.9}),
            make_run("c", "quadratic_isotropic", {300: 0.9}, batch_size=50),
        ]
    )
    table = tables.table(4, runs)
    lines = [[cell.value for cell in row] for row in table.rows]
    assert lines[:5] == [
        ["ResNet18", "report, Table 4", None]
        + [300, 100, 0.1, "cosine", 0.9, 0.0001, "10"],
        ["ResNet18", "ours: resnet18:cosine", 1]
        + [300, 100, 0.1, "cosine", 0.9, 0.0001, "10"],
        ["ResNet18", "ours: resnet18:report", *[None] * 8],
        [
            "ResNet18, the paper's code",
            "paper's code: drops at 80, 150, 250, taken one epoch early",
            None,
        ]
        + [300, 100, 0.1, "multistep", 0.9, 0.0001, "79, 149, 249"],
        ["ResNet18, the paper's code", "ours: resnet18", 1]
        + [300, 100, 0.1, "multistep", 0.9, 0.0001, "79, 149, 249"],
    ]
    assert lines[6][1:5] == ["ours: quadratic_isotropic", 1, 300, 50]
    assert "batch_size 50 instead of 100" in notes_of(table, table.rows[6][1])
    shown = "| 1 | 300 | 100 | 0.1 | multistep | 0.9 | 0.0001 | 79, 149, 249 |"
    assert shown in to_markdown(table)
    assert lines[7][1:] == ["ours: quadratic_nonisotropic", *[None] * 8]


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_only_what_was_measured_is_shown_if_asked(number, make_run):
    run = read_run(make_run("run", "resnet18:cosine", {300: 0.9}))
    rows = tables.table(number, [run], only_measured=True).rows
    names = [[cell.value for cell in row[:2]] for row in rows]
    wanted = {
        1: [["ResNet18", "resnet18:cosine"]],
        4: [["ResNet18", "report, Table 4"], ["ResNet18", "ours: resnet18:cosine"]],
    }
    assert names == wanted.get(number, [])
