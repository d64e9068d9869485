"""Many runs: their list, and how they are trained through a kill and a failure."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from processes import as_a_user

from attn_cnn_jax import checkpoint, records
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.sweep import local, manifest
from attn_cnn_jax.sweep.manifest import PlannedRun

ROOT = Path(__file__).parent.parent
TINY = f"""
import runpy
def get_config(options=""):
    c = runpy.run_path({str(ROOT / "configs/quickstart.py")!r})["get_config"](options)
    c.model.update(width=WIDTH, mlp_dim=16, num_layers=1, patch_size=2)
    c.update(batch_size=100, num_epochs=2, eval_every_epochs=1, log_every_steps=1)
    c.update(checkpoint_every_steps=2, snapshot_every_epochs=0)
    c.schedule.warmup_epochs = 0.0
    return c
"""


def sweep(folder: Path, *flags: str) -> list[str]:
    return [
        *(sys.executable, "-m", "attn_cnn_jax.sweep"),
        *(f"--folder={folder / 'runs'}", f"--configs={folder / 'narrow.py'}"),
        *(f"--configs={folder / 'wide.py'}", "--seeds=0,1", *flags),
    ]


def run(command: list[str], status: int = 0) -> str:
    done = subprocess.run(
        command, cwd=ROOT, env=as_a_user(), capture_output=True, text=True
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def start(command: list[str]) -> subprocess.Popen:
    return subprocess.Popen(
        command, cwd=ROOT, env=as_a_user(), stdout=subprocess.PIPE, text=True
    )


def training(
    sweep_process: subprocess.Popen, workdir: Path, other_than: int = 0
) -> psutil.Process:
    """The process that trains a run, once that has saved."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        children = psutil.Process(sweep_process.pid).children()
        for child in children if checkpoint.steps(workdir) else ():
            with contextlib.suppress(psutil.Error):  # it ends just now
                if child.pid != other_than and f"--workdir={workdir}" in (
                    child.cmdline()
                ):
                    return child
        time.sleep(0.05)
    raise AssertionError(f"nobody trains {workdir}")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "narrow.py").write_text(TINY.replace("WIDTH", "8"))
    (tmp_path / "wide.py").write_text(TINY.replace("WIDTH", "16"))
    return tmp_path


def test_all_runs_complete_though_one_is_killed_and_the_sweep_stopped(folder):
    long = TINY.replace("WIDTH", "16").replace("num_epochs=2", "num_epochs=15")
    (folder / "wide.py").write_text(long)
    runs = folder / "runs"
    names = [f"{width}_seed{seed}" for width in ("narrow", "wide") for seed in (0, 1)]
    running = start(sweep(folder, "--parallel=2"))
    victim = training(running, runs / "wide_seed0")
    victim.kill()
    begun = [runs / "wide_seed0", runs / "wide_seed1"]
    second = training(running, begun[0], other_than=victim.pid)
    running.send_signal(signal.SIGINT)
    output, _ = running.communicate(timeout=120)
    assert running.returncode == 130
    assert "wide_seed0: goes on" in output and "stopping: the runs save" in output
    assert not second.is_running()
    logs = [path.with_name(f"{path.name}.log").read_text() for path in begun]
    assert any("stopped by SIGTERM after step" in log for log in logs)
    assert "complete, " in run(sweep(folder, "--status")).replace("\n", ", ")

    output = run(sweep(folder, "--parallel=2"))
    assert "4 runs in " in output and "tables in" in output
    assert [path.name for path in sorted(runs.glob("*_seed?"))] == names
    for name in names:
        lines = [one for one in records.read(runs / name) if one["split"] == "train"]
        steps = [line["step"] for line in lines]
        assert steps == list(range(1, len(steps) + 1)) and len(steps) in (28, 210)
    text = (runs / "sweep_tables" / "other_runs.md").read_text()
    assert text in output and "2 seeds" in text

    started = time.monotonic()
    assert "4 of them complete" in run(sweep(folder))
    assert not list(runs.glob("*.log.*")) and time.monotonic() - started < 60


def test_a_run_that_fails_stops_no_other(folder):
    nowhere = (
        "\n    c.dataset.update(name='cifar10', data_dir='/nowhere')\n    return c"
    )
    (folder / "wide.py").write_text(
        TINY.replace("WIDTH", "8").replace("\n    return c", nowhere)
    )
    output = run(sweep(folder), status=1)
    for seed in (0, 1):
        assert f"wide_seed{seed}: failed with status 2: error: cifar10 is not" in output
        assert f"narrow_seed{seed}: complete" in output
    said = run(sweep(folder, "--status")).splitlines()
    assert [line.partition(":")[0] for line in said] == [
        *("narrow_seed0", "narrow_seed1", "wide_seed0", "wide_seed1")
    ]
    assert all(line.endswith(", complete") for line in said[:2])
    assert not any("complete" in line for line in said[2:])


def test_slurms_array_reads_the_list_as_it_is(folder):
    output = run(sweep(folder, "--engine=list"))
    path = folder / "runs" / "sweep.txt"
    assert f"--array=1-4 launch/slurm.sbatch {path}" in output
    script = 'read -ra flags < <(sed -n "3p" "$1"); printf "%s\\n" "${flags[@]}"'
    read = subprocess.run(
        ["bash", "-c", script, "bash", path], capture_output=True, text=True, check=True
    )
    assert read.stdout.splitlines() == [
        f"--config={folder / 'wide.py'}",
        "--config.seed=0",
        f"--workdir={folder / 'runs' / 'wide_seed0'}",
    ]
    assert not (folder / "runs" / "wide_seed0").exists()


def test_the_rows_of_a_table_are_planned(tmp_path):
    rows = manifest.rows_of_table("1")
    assert rows[:2] == ["resnet18", "quadratic_isotropic"] and len(set(rows)) == 9
    runs = manifest.plan([f"{row}:short" for row in rows], [0, 1, 2], tmp_path)
    assert len(runs) == 27
    assert runs[4].name == "quadratic_isotropic_short_seed1"
    with pytest.raises(UserError, match="take 1, 2 or 3"):
        manifest.rows_of_table("4")


@pytest.mark.parametrize(
    "configs, complaint",
    [
        (["nope"], "there is no config file nope"),
        (["vit:nope"], "is not an option"),
        (["vit", "{folder}/vit.py"], "two of these configs have one name"),
        (["{folder}/a b.py"], "have no spaces"),
    ],
)
def test_what_cannot_be_planned_is_refused(configs, complaint, tmp_path):
    for name in ("vit.py", "a b.py"):
        (tmp_path / name).write_text((ROOT / "configs/vit.py").read_text())
    with pytest.raises(UserError, match=complaint):
        manifest.plan([c.format(folder=tmp_path) for c in configs], [0], tmp_path)


def test_a_list_of_other_runs_is_not_replaced(tmp_path):
    path = tmp_path / "runs" / "sweep.txt"
    runs = manifest.plan(["vit"], [0], tmp_path)
    for _ in range(2):
        manifest.write(runs, path)
    with pytest.raises(UserError, match="is the list of other runs"):
        manifest.write(manifest.plan(["vit"], [0, 1], tmp_path), path)


def test_each_gpu_has_one_run_at_a_time(tmp_path, monkeypatch):
    """Stand-ins for nvidia-smi and the training: the real ones need GPUs."""
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\necho 'GPU 0: H200 (UUID: a)'\necho 'GPU 1: H200'\n")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert local.gpus() == ["0", "1"]
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\nmkdir gpu$CUDA_VISIBLE_DEVICES || exit 2\nsleep 0.3\n"
        "rmdir gpu$CUDA_VISIBLE_DEVICES\n"
    )
    python.chmod(0o755)
    monkeypatch.setattr(local.sys, "executable", str(python))
    monkeypatch.chdir(tmp_path)
    said = []
    runs = [PlannedRun(tmp_path / f"run{number}", ()) for number in range(6)]
    assert local.LocalEngine(local.gpus(), said.append).train(runs) == [True] * 6
    begun = [line for line in said if "begins on GPU" in line]
    assert len(begun) == 6 and {line.split()[4] for line in begun} == {"0", "1"}


def test_without_a_driver_there_is_no_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert local.gpus() == []
