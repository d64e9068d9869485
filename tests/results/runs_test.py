"""Workdirs read: complete, unfinished, damaged."""

import json
import warnings

import pytest

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.results.runs import read_run, read_runs


def test_trained_to_the_end_but_not_evaluated_is_unfinished(make_run):
    workdir = make_run("run", "resnet18", {299: 0.5})
    record = {"step": 150000, "split": "train", "epoch": 300.0, "accuracy": 0.9}
    with (workdir / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({**record, "loss": 0.1}) + "\n")
    run = read_run(workdir)
    assert not run.finished and run.epochs == 300 and run.final.accuracy == 0.5


def test_of_equal_accuracies_the_latest_is_the_best(make_run):
    scores = {100: 0.9, 200: 0.9, 300: 0.8}
    assert read_run(make_run("a", "resnet18", scores)).best.step == 100_000
    held_out = {"validation": scores, "dataset__validation_fraction": 0.1}
    test = {100: 0.5, 200: 0.6, 300: 0.7}
    best = read_run(make_run("b", "resnet18", test, **held_out)).best
    assert (best.step, best.accuracy) == (100_000, 0.6)


def test_scores_are_ordered_by_step(make_run):
    run = read_run(make_run("run", "resnet18", {300: 0.7, 100: 0.9, 200: 0.8}))
    assert run.series["test"].epochs.tolist() == [100, 200, 300]
    assert run.finished and run.final.accuracy == 0.7


def test_a_seed_counts_once(make_run):
    workdirs = [
        make_run("short", "resnet18", {150: 0.5}),
        make_run("long", "resnet18", {300: 0.9}),
    ]
    with pytest.warns(UserWarning, match="short repeats the seed 1"):
        runs = read_runs(workdirs)
    assert [run.name for run in runs] == ["long"]
    assert len(read_runs([workdirs[1], workdirs[1], f"{workdirs[1]}/"])) == 1


def test_what_is_no_run_is_named_and_the_others_go_on(make_run, tmp_path):
    good = make_run("good", "resnet18", {300: 0.9})
    (tmp_path / "empty").mkdir()
    texts = {
        "config": ("config.json", "{"),
        "list": ("config.json", "[1]"),
        "deep": ("config.json", "[" * 100_000),
        "seedless": ("config.json", '{"model": {}}'),
        "metrics": ("metrics.jsonl", "garbage\n"),
        "digits": ("metrics.jsonl", "9" * 5000 + "\n"),
    }
    for folder, (file, text) in texts.items():
        (make_run(folder, "resnet18", {300: 0.5}, seed=9) / file).write_text(text)
    workdirs = [tmp_path / name for name in ("absent", "empty", *texts)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        runs = read_runs([*workdirs, good])
    assert [run.name for run in runs] == ["good"]
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == len(workdirs)
    for workdir, message in zip(workdirs, messages, strict=True):
        assert str(workdir) in message and "\n" not in message
        assert message.endswith("It is left out.")
    with pytest.raises(UserError, match=r"--workdirs=runs/\*"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read_runs(workdirs)


def test_broken_lines_are_counted_and_left_out(make_run):
    workdir = make_run("run", "resnet18", {100: 0.9, 300: 0.8})
    test = {"step": 5, "split": "test", "epoch": 1.0, "loss": 1.0}
    bad = [
        "{",
        json.dumps({**test, "accuracy": float("nan")}),
        json.dumps({**test, "accuracy": 1.5}),
        json.dumps({**test, "accuracy": True}),
        json.dumps({**test, "accuracy": 0.99, "step": 10**30}),
        json.dumps({**test, "accuracy": 0.99, "epoch": "x"}),
    ]
    with (workdir / "metrics.jsonl").open("a") as file:
        file.write("\n".join(bad) + "\n")
    with pytest.warns(UserWarning) as caught:
        run = read_run(workdir)
    assert [str(warning.message).partition(": ")[2] for warning in caught] == [
        "line 3 is broken.",
        "5 lines have no scores.",
    ]
    assert run.best.accuracy == 0.9 and run.final.accuracy == 0.8


def test_two_broken_lines_are_damage(make_run):
    workdir = make_run("run", "resnet18", {300: 0.8})
    with (workdir / "metrics.jsonl").open("a") as file:
        file.write("{\n{\n")
    with pytest.warns(UserWarning, match="metrics.jsonl: lines 2, 3 are broken"):
        assert read_run(workdir).finished


def test_a_half_written_last_line_is_no_damage(make_run):
    workdir = make_run("run", "resnet18", {300: 0.8})
    with (workdir / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "spl')
    assert read_run(workdir).finished


@pytest.mark.parametrize("text", ["not JSON", "[" * 100_000, "[1]", ""])
def test_a_bench_that_cannot_be_read_is_named(text, make_run):
    workdir = make_run("run", "resnet18", {300: 0.9}, bench=text)
    with pytest.warns(UserWarning, match="bench.jsonl has no line that can be read"):
        run = read_run(workdir)
    assert run.bench is None and run.final.accuracy == 0.9


def test_a_bench_of_another_model_is_left_out(make_run, bench_record):
    text = json.dumps({**bench_record, "parameters": 5})
    workdir = make_run("run", "resnet18", {300: 0.9}, bench=text)
    with pytest.warns(UserWarning, match="is about a model of 5 parameters"):
        assert read_run(workdir).bench is None


def test_a_bench_of_wrong_types_gives_dashes(make_run):
    odd = {"latency_ms": "fast", "flops": "1e9", "flops_paper": -1, "device_kind": 3}
    run = read_run(make_run("r", "resnet18", {}, bench=json.dumps(odd)))
    assert (run.bench.latency_ms, run.bench.flops, run.bench.flops_paper) == (None,) * 3
