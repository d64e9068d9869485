"""Variants take turns in processes of their own, and one that fails says so."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from benchmarks import our_step, report, scaling, turns, variants

ROOT = Path(__file__).parent.parent.parent


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.compare", *arguments],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
    )


def test_the_command_measures_both_sides(tmp_path):
    """Without PyTorch its row says so, and ours is measured all the same."""
    try:
        import torch  # noqa: F401
    except ImportError:
        torch_is_here = False
    else:
        torch_is_here = True
    lines = tmp_path / "new" / "lines.jsonl"
    names = "ours_float32,published"
    result = command(
        *("--configs=quickstart", "--batch_sizes=4", f"--variants={names}"),
        *("--steps=3", "--threads=1", f"--output={lines}"),
    )
    assert result.returncode == 0, result.stderr
    ours, theirs = map(json.loads, lines.read_text().splitlines())
    for row in (ours, theirs):
        assert (row["model"], row["batch_size"]) == ("quickstart", 4)
    assert (ours["side"], ours["error"], ours["steps"]) == ("ours", None, 3)
    assert ours["images_per_second"] == 4 / ours["seconds"]["median"] > 0
    assert ours["peak_bytes"] > 2**20 and ours["memory_source"] == "resident set"
    assert ours["time_over_ours"] == 1 and ours["collectives"] == {}
    if torch_is_here:
        assert theirs["error"] is None and theirs["threads"] == 1
        assert theirs["mfu"]["product"] > 0 and theirs["mfu"]["vendor"] is None
        assert theirs["time_over_ours"] > 0
    else:
        assert "torch is missing" in theirs["error"] and "failed" in result.stdout
        assert ours["mfu"] == {"product": None, "vendor": None}
    assert result.stdout.splitlines()[3].split()[:3] == ["quickstart", "ours"] + [
        "ours_float32"
    ]


@pytest.mark.parametrize(
    "flag, message",
    [
        ("--configs=nothing", "nothing"),
        ("--configs=../setup", "setup"),
        ("--batch_sizes=0", "--batch_sizes=0"),
        ("--variants=fastest", "fastest"),
        ("--threads=100000", "--threads=100000"),
    ],
)
def test_what_cannot_be_measured_is_one_line(flag, message):
    result = command(flag)
    assert result.returncode == 2
    assert result.stderr.startswith("error: ") and message in result.stderr
    assert result.stderr.count("\n") == 1


def test_each_round_is_a_step_of_every_worker(monkeypatch):
    clock, taken = [0.0], []

    def worker(name):
        def step():
            taken.append(name)
            clock[0] += 1

        return SimpleNamespace(step=step)

    monkeypatch.setattr(turns.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(turns.time, "sleep", lambda seconds: None)
    workers = [worker(name) for name in "abc"]
    turns.take_turns(workers, steps=4, seconds=1e9, fewest=3)
    assert "".join(taken) == "abc" * 4
    taken.clear()
    turns.take_turns(workers, steps=9, seconds=1.0, fewest=2)
    assert "".join(taken) == "abc" * 2


def stand_in(monkeypatch, tmp_path, code):
    """Puts a program of its own in place of the worker's, and starts it."""
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "worker.py").write_text(code)
    monkeypatch.setattr(turns, "_ROOT", tmp_path)
    return turns.Worker({"variant": "published"})


def test_a_worker_that_dies_is_an_error_and_asked_no_more(monkeypatch, tmp_path):
    code = "import os; print('{}', flush=True); input(); os.kill(os.getpid(), 9)"
    worker = stand_in(monkeypatch, tmp_path, code)
    assert worker.error is None
    worker.step()
    assert worker.error == ("the process ended with signal 9, as where memory runs out")
    worker.step()
    assert worker.seconds == [] and worker.finish() == {}
    worker.close()


def test_a_worker_that_cannot_start_says_its_last_words(monkeypatch, tmp_path):
    worker = stand_in(monkeypatch, tmp_path, "raise SystemExit('no such thing')")
    worker.close()
    assert worker.error == "the process ended with status 1: no such thing"


def finished(variant, times, kind="NVIDIA H200", error=None):
    """A worker after its turns."""
    finish = {"peak_bytes": 3 * 2**20, "memory_source": "allocator"}
    finish["ceiling_flops"] = 8e12
    facts = {"device_kind": kind, "jax": "1", "torch": "2", "python": "3"}
    return SimpleNamespace(
        variant=variant,
        seconds=times,
        error=error,
        facts={} if error else facts,
        finish=lambda: {} if error else finish,
    )


def test_rows_tell_time_over_ours_and_mfu():
    workers = [
        finished("ours_bfloat16", [2.0, 1.0, 9.0]),
        finished("ours_float32", [4.0, 4.0, 4.0]),
        finished("published", [16.0, 17.0, 18.0]),
        finished("sdpa_bfloat16", [1.0], error="RuntimeError: no kernel"),
    ]
    rows = [report.record("net", 100, w, training_flops=4 * 10**12) for w in workers]
    report.compare_to_ours(rows)
    assert [row["time_over_ours"] for row in rows] == [1.0, 2.0, 8.5, None]
    assert rows[0]["seconds"] == {"median": 2.0, "min": 1.0, "max": 9.0}
    assert rows[0]["images_per_second"] == 50
    assert rows[0]["mfu"] == {"product": 0.25, "vendor": 2e12 / 989e12}
    lines = report.as_text(rows).splitlines()
    assert lines[3].split() == (
        "net ours ours_bfloat16 100 2 1 9 50 3 1.00 25.0 0.2".split()
    )
    assert lines[6].split()[:5] == ["net", "PyTorch", "sdpa_bfloat16", "100", "failed"]
    assert "net sdpa_bfloat16 failed: RuntimeError: no kernel" in lines
    assert "net: 4 TFLOP a step of 100 images, as published" in lines
    on_cpu = report.record("net", 100, finished("published", [1.0], "cpu"), 10**12)
    assert on_cpu["mfu"]["vendor"] is None and on_cpu["mfu"]["product"] > 0


def test_nothing_of_ours_is_nothing_to_compare_with():
    rows = [report.record("net", 1, finished("published", [1.0]), None)]
    report.compare_to_ours(rows)
    assert rows[0]["time_over_ours"] is None
    assert rows[0]["mfu"] == {"product": None, "vendor": None}


def test_default_variants_fit_the_device():
    def names(platform, content=False, native=False):
        return variants.default_variants(
            platform, has_content=content, native_bfloat16=native
        )

    assert "published" in names("cpu") and "published" in names("gpu")
    assert "flushed" in names("cpu") and "flushed" not in names("gpu")
    assert "best_bfloat16" not in names("cpu")
    assert "best_bfloat16" in names("cpu", native=True)
    assert set(names("gpu", content=True)) - set(names("gpu")) == {
        "sdpa_bfloat16",
        "ffpa_bfloat16",
    }


def spec(config, devices=1):
    return {
        "variant": "ours_float32",
        "config": config.to_dict(),
        "batch_size": 8,
        "image_shape": (8, 8, 3),
        "num_classes": 10,
        "platform": "cpu",
        "devices": devices,
    }


def test_our_step_is_a_training_step_on_the_devices_asked_for(tiny_config):
    config = tiny_config()
    config.model.num_layers = 1
    one, four = (our_step.Step(spec(config, devices)) for devices in (1, 4))
    before = jax.device_get(four.state.variables["params"])
    four()
    after = jax.device_get(four.state.variables["params"])
    assert int(four.state.step) == 1
    changed = jax.tree.map(lambda a, b: (a != b).any(), before, after)
    assert all(jax.tree.leaves(changed))
    assert one.facts()["collectives"] == {} and one.facts()["devices"] == 1
    assert set(four.facts()["collectives"]) == {"all-reduce"}
    with pytest.raises(ValueError, match="8 devices, not 9"):
        our_step.Step(spec(config, 9))


def test_collectives_are_counted_by_name():
    program = """
      %all-reduce.1 = (f32[2], f32[]) all-reduce(%a, %b), channel_id=1
      %s = f32[2] all-reduce-start(%a)
      %d = f32[2] all-reduce-done(%s)
      %g = f32[4] all-gather(%a), dimensions={0}
    """
    assert our_step.collectives(program) == {"all-reduce": 2, "all-gather": 1}


def test_scaling_changes_one_field_at_a_time(tiny_config):
    config = tiny_config("learned_wo_content")
    base = spec(config) | {"image_shape": (32, 32, 3)}
    cells = list(scaling._cells(base, (8, 16)))
    told = {(field, value): changed for field, value, changed in cells}
    assert len(told) == len(cells)
    assert told["batch", 16]["batch_size"] == 16
    fine = told["patch_size", 1]["config"]["model"]
    assert fine["attention"]["max_position"] == 32  # a table that reaches over the grid
    assert told["width", 800]["config"]["model"]["attention"]["position_dim"] == 800
    assert told["num_heads", 9]["config"]["model"]["num_heads"] == 9
    flags = told["devices", 4]["environment"]["XLA_FLAGS"]
    assert flags.endswith("device_count=4") and told["devices", 4]["devices"] == 4
    assert base["config"] == config.to_dict()  # not changed in place
    row = {"model": "net", "field": "width", "value": 800, "error": None}
    row |= {"seconds": 0.5, "images_per_second": 16.0, "peak_bytes": None}
    text = scaling.as_text([{**row, "collectives": {"all-reduce": 1}}])
    assert text.splitlines()[-1].split() == (
        ["net", "width", "800", "0.5", "16", "-", "-", "all-reduce", "1"]
    )


def test_the_page_names_every_variant():
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    section = page.partition("## Beside PyTorch")[2].partition("\n## ")[0]
    assert all(f"`{name}`" in section for name in variants.VARIANTS)
