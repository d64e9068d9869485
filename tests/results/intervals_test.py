"""95 % intervals against numbers of tables, and in the cells of ours."""

import json

import pytest

from attn_cnn_jax import records
from attn_cnn_jax.results import intervals, tables
from attn_cnn_jax.results.runs import read_run, read_runs
from attn_cnn_jax.results.table_text import to_markdown


def test_students_t_of_a_printed_table():
    """t of 1 and 2 degrees of freedom is 12.706 and 4.303."""
    low, high = intervals.student([0.50, 0.52])  # s / sqrt(2) = .01
    assert (low, high) == pytest.approx((0.51 - 0.12706, 0.51 + 0.12706), abs=1e-5)
    low, high = intervals.student([0.4, 0.5, 0.6])  # s = .1
    assert (low, high) == pytest.approx((0.25159, 0.74841), abs=1e-5)
    assert intervals.student([0.1, 0.99]) == (0.0, 1.0)


def test_equal_runs_say_nothing_of_how_seeds_differ():
    assert intervals.student([0.5, 0.5]) is None


@pytest.mark.parametrize(
    "right, images, wanted",
    [
        (81, 263, (0.2553, 0.3662)),  # Newcombe 1998, table I, method 3
        (15, 148, (0.0624, 0.1605)),
        (0, 20, (0.0, 0.1611)),
        (1, 29, (0.0061, 0.1718)),
        (29, 29, (0.8830, 1.0)),
    ],
)
def test_wilsons_interval_of_a_printed_table(right, images, wanted):
    found = intervals.wilson(right / images, images)
    assert found == pytest.approx(wanted, abs=6e-5)


def test_one_run_has_the_interval_of_its_test_images(make_run, values):
    run = read_run(make_run("run", "resnet18", {150: 0.8, 300: 0.7}, images=360))
    table = tables.table(1, [run])
    [best] = values(table, "resnet18", "ours: best accuracy")
    [final] = values(table, "resnet18", "ours: final accuracy")
    assert best.interval == intervals.wilson(0.8, 360)
    assert final.interval == intervals.wilson(0.7, 360) and final.std is None
    [over] = values(table, "resnet18", "95 % interval over")
    assert over.value == "360 test images (Wilson)"
    assert "0.7000 (0.6508 to 0.7450)" in to_markdown(table)


def test_seeds_have_that_of_their_mean(make_run, values):
    accuracies = {1: 0.90, 2: 0.93, 3: 0.93}
    runs = read_runs(
        make_run(f"s{seed}", "resnet18", {300: accuracy}, seed=seed, images=360)
        for seed, accuracy in accuracies.items()
    )
    table = tables.table(1, runs)
    [final] = values(table, "resnet18", "ours: final accuracy")
    assert final.interval == intervals.student([0.90, 0.93, 0.93])
    [over] = values(table, "resnet18", "95 % interval over")
    assert over.value == "3 seeds (Student's t)"


@pytest.mark.parametrize("images", ["360", -5, True, 1e300, float("nan"), [360]])
def test_a_number_of_images_that_is_none_gives_no_interval(images, make_run, values):
    run = read_run(make_run("run", "resnet18", {300: 0.7}, images=images))
    [final] = values(tables.table(1, [run]), "resnet18", "ours: final accuracy")
    assert final.value == 0.7 and final.interval is None


def test_a_cell_names_the_logs_that_it_comes_from(make_run, values):
    """Two runs with logs as a training writes them, and one without digests."""
    marks = []
    workdirs = [
        make_run(f"s{seed}", "resnet18", {300: 0.9}, seed=seed) for seed in (3, 1, 2)
    ]
    for workdir in workdirs[:2]:
        (workdir / "metrics.jsonl").unlink()
        with records.Records(workdir, 0, enabled=True) as log:
            scores = {"epoch": 300.0, "accuracy": 0.9, "loss": 0.1 * len(marks)}
            log.write(150_000, "test", scores)
            marks.append(log.mark()["chain"])
    table = tables.table(1, read_runs(workdirs))
    [logs] = values(table, "resnet18", "logs")
    assert logs.value == f"{marks[1][:8]}, -, {marks[0][:8]}"  # by rising seed


@pytest.mark.parametrize("chain", ["0123", "G" * 16, 5, None, ["0" * 16]])
def test_what_is_no_digest_is_a_dash(chain, make_run):
    workdir = make_run("run", "resnet18", {300: 0.9})
    record = json.loads((workdir / "metrics.jsonl").read_text())
    (workdir / "metrics.jsonl").write_text(json.dumps({**record, "chain": chain}))
    assert read_run(workdir).digest is None
