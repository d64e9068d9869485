"""launch/slurm.sbatch, under stand-ins of Slurm's commands (the folder slurm/)."""

import os
import pathlib

import pytest

from attn_cnn_jax import cluster, records

STAND_INS = pathlib.Path(__file__).parent / "slurm"


@pytest.fixture
def sbatch(processes, tmp_path):
    """Submits: `sbatch(options, arguments of the script, **environment)`."""

    def submit(options: list[str], arguments: list[str], **environment: str):
        return processes.start(
            [str(STAND_INS / "sbatch"), *options, "launch/slurm.sbatch", *arguments],
            devices=4,
            **{
                "PATH": f"{STAND_INS}:{os.environ['PATH']}",
                "QUEUE": str(tmp_path / "queue"),
                **environment,
            },
        )

    return submit


@pytest.fixture
def statuses(tmp_path):
    """The environment in which a start of a job ends with the next of some statuses."""

    def environment(*each: int) -> dict[str, str]:
        python = tmp_path / "python"
        python.write_text(
            "#!/usr/bin/env bash\n"
            'echo "$@" on ${JAX_LOCAL_DEVICE_IDS-all}\n'
            f"statuses=({' '.join(map(str, each))})\n"
            "exit ${statuses[$SLURM_RESTART_COUNT]}\n"
        )
        python.chmod(0o755)
        return {"PYTHON": str(python)}

    return environment


def ends(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("job ")]


def test_a_task_of_an_array_is_queued_again_alone(
    processes, sbatch, statuses, tmp_path
):
    runs = tmp_path / "runs.txt"
    runs.write_text("--config=a.py --config.seed=1\n--config=b.py\n")
    job = sbatch(
        ["--array=2,1", "--nodes=1"],
        [str(runs), "--data_dir=/d d"],
        SLURM_GPUS_ON_NODE="4",
        **statuses(143, 75, 137, 0),
    )
    output = processes.end(job)
    assert ends(output) == [
        f"job 40_{task} ended with {end}"
        for task in (2, 1)
        for end in (
            f"143, queued: 40_{task}",
            f"75, queued: 40_{task}",
            f"137, queued: 40_{task}",
            "0, queued: nothing",
        )
    ]
    flags = "-m attn_cnn_jax.main --multi_host {} --data_dir=/d d on 0,1,2,3"
    assert output.count(flags.format("--config=b.py")) == 4
    assert output.count(flags.format("--config=a.py --config.seed=1")) == 4


@pytest.mark.parametrize(
    "status, restarts, queued",
    [(2, 20, False), (1, 20, False), (75, 0, False), (143, 0, True)],
)
def test_what_ends_a_job(processes, sbatch, statuses, status, restarts, queued):
    """An error does; so do peers that are lost again and again; a stop never does."""
    end = statuses(status, 0)
    job = sbatch(["--nodes=1"], ["--config=a.py"], RESTARTS=str(restarts), **end)
    output = processes.end(job, 0 if queued else status)
    assert len(ends(output)) == 1 + queued


def test_a_line_that_is_missing(processes, sbatch, statuses, tmp_path):
    (tmp_path / "runs.txt").write_text("--config=a.py\n")
    job = sbatch(["--array=2"], [str(tmp_path / "runs.txt")], **statuses(0))
    assert f"{tmp_path}/runs.txt has no flags in line 2." in processes.end(job, 2)


@pytest.mark.soak
def test_a_training_through_a_kill_and_the_end_of_its_time(
    processes, sbatch, alone, tmp_path
):
    """A task of an array is killed, then gets Slurm's SIGTERM, and ends as if alone."""
    workdir = tmp_path / "run"
    flags = [*processes.flags, f"--workdir={workdir}", "--heartbeat_timeout_seconds=10"]
    runs = tmp_path / "runs.txt"
    runs.write_text("\n" + " ".join(flags) + "\n")
    job = sbatch(
        ["--array=2", "--nodes=2"],
        [str(runs), "--config.log_every_steps=4"],
        SIGNALS="KILL:1 TERM:all",
        WATCHED=str(workdir),
    )
    output = processes.end(job)
    assert [line.partition(" with ")[2] for line in ends(output)] == [
        "137, queued: 40_2",
        "143, queued: 40_2",
        "0, queued: nothing",
    ]
    assert "error: process 1 is gone" in output
    assert output.count("continues after step") == 2
    processes.assert_alike(workdir, alone)
    steps = [m["step"] for m in records.read(workdir) if m["split"] == "train"]
    assert steps == list(range(4, processes.steps + 1, 4))


def test_the_status_that_the_scripts_know():
    script = (STAND_INS.parents[2] / "launch/slurm.sbatch").read_text()
    assert f"status == {cluster.RUN_AGAIN}" in script
