"""The command from end to end, in processes of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attn_cnn_jax import checkpoint

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "configs" / "quickstart.py"
QUICK = ("--batch_sizes=4", "--steps=3", "--seconds=0", "--latency_calls=2")


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    result = subprocess.run(
        [sys.executable, "-m", "attn_cnn_jax.bench", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": ""},  # one device
        capture_output=True,
        text=True,
    )
    assert "Traceback" not in result.stderr and "Warning" not in result.stderr
    return result


def test_a_run_is_measured_from_its_workdir_alone(tiny_config, tmp_path):
    workdir = tmp_path / "runs" / "tiny_seed42"
    tiny = tiny_config()
    tiny.model.update(compute_dtype="float64", num_layers=1)
    checkpoint.write_config(workdir, tiny)
    (workdir / "bench.jsonl").write_text("an earlier line\n")
    result = run(tmp_path, f"--workdir={workdir}", *QUICK)
    assert result.returncode == 0, result.stderr
    kept = (workdir / "bench.jsonl").read_text().splitlines()
    assert len(kept) == 2 and kept[0] == "an earlier line"
    record = json.loads(kept[-1])
    assert (record["config"], record["devices"]) == ("tiny_seed42", 1)
    assert record["compute_dtype"] == "float64"
    assert record["latency_ms"]["calls"] == 2
    (batch,) = record["batches"]
    assert batch["batch_size"] == 4 and batch["train_images_per_second"] > 0
    row = next(line for line in result.stdout.splitlines() if "tiny_seed42 " in line)
    assert row.split()[1] == f"{record['parameters']:,}"


def test_side_by_side_one_that_fails_costs_its_own_line(tmp_path):
    broken, whole = tmp_path / "broken.py", tmp_path / "whole.py"
    broken.write_text("def get_config(options=''):\n    return nothing\n")
    whole.write_text(QUICKSTART.read_text())
    own = tmp_path / "own" / "mine.py"
    own.parent.mkdir()
    own.write_text(
        "from attn_cnn_jax.variants import add_dataset\n"
        "add_dataset('mine', list, image_shape=(8, 8, 1), num_classes=3)\n"
    )
    cheap = (*QUICK, "--notrain", "--nolatency", "--json", f"--variant={own}")
    result = run(tmp_path, f"--configs={tmp_path}/*.py:mine", *cheap)
    (record,) = [json.loads(line) for line in result.stdout.splitlines()]
    assert record["config"] == "whole:mine" and record["overrides"] == {}
    assert record["latency_ms"] is None
    (batch,) = record["batches"]
    assert (batch["batch_size"], batch["train_images_per_second"]) == (4, None)
    assert result.returncode == 2
    assert "broken.py, line 2: NameError" in result.stderr
    assert f"error: {broken}:mine was not measured" in result.stderr


def test_an_override_is_named_in_the_record(tmp_path):
    overrides = ("--config.model.width=12", "--config.model.num_layers=1")
    cheap = (*QUICK, "--notrain", "--nolatency", "--json")
    result = run(tmp_path, f"--config={QUICKSTART}", *overrides, *cheap)
    record = json.loads(result.stdout)
    assert record["overrides"] == {"model.width": 12, "model.num_layers": 1}
    assert record["config"] == "quickstart" and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((), "name what to measure: --config=FILE.py or --configs."),
        (("--workdir=nowhere",), "nowhere holds no run; name what to measure"),
        (("--configs=no/*.py",), "there is no config file no/*.py."),
        (
            (f"--config={QUICKSTART}", "--batch_sizes=8,²"),
            "--batch_sizes=8,² is no list of whole numbers above 0",
        ),
        (
            (f"--config={QUICKSTART}", f"--configs={QUICKSTART}"),
            "--configs goes with neither --config nor --workdir.",
        ),
    ],
    ids=["nothing", "no run", "no file", "batch sizes", "both"],
)
def test_a_wrong_flag_is_one_line_and_status_2(tmp_path, arguments, message):
    result = run(tmp_path, *arguments)
    assert result.returncode == 2 and not result.stdout
    assert result.stderr.startswith("error: ") and message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_another_models_workdir_is_refused(tiny_config, tmp_path):
    checkpoint.write_config(tmp_path, tiny_config())
    result = run(tmp_path, f"--config={QUICKSTART}", f"--workdir={tmp_path}")
    assert result.returncode == 2
    assert "holds a run of another model" in result.stderr
    assert not (tmp_path / "bench.jsonl").exists()
