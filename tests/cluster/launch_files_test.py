"""The files of launch/ hold what their engines accept, and lint."""

import pathlib
import shutil
import subprocess
import sys

import pytest
import yaml
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet

from attn_cnn_jax import cluster

ROOT = pathlib.Path(__file__).parents[2]
LAUNCH = ROOT / "launch"
STAND_INS = sorted((ROOT / "tests/cluster/slurm").iterdir())


@pytest.fixture(scope="module")
def resources():
    """What launch/kubernetes.yaml asks for, by kind."""
    text = (LAUNCH / "kubernetes.yaml").read_text(encoding="utf-8")
    return {resource["kind"]: resource for resource in yaml.safe_load_all(text)}


@pytest.fixture(scope="module")
def sky():
    return yaml.safe_load((LAUNCH / "skypilot.yaml").read_text(encoding="utf-8"))


def run_of(sky, tmp_path) -> pathlib.Path:
    """SkyPilot's `run`, as a script."""
    script = tmp_path / "run.sh"
    script.write_text(f"#!/usr/bin/env bash\n{sky['run']}")
    return script


def test_scripts_lint(sky, tmp_path):
    shellcheck = pathlib.Path(sys.executable).parent / "shellcheck"
    scripts = [*LAUNCH.glob("*.sh"), *LAUNCH.glob("*.sbatch"), *STAND_INS]
    scripts += [ROOT / ".ci/run", run_of(sky, tmp_path)]
    command = [str(shellcheck), *map(str, scripts)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("path", sorted(LAUNCH.iterdir()), ids=lambda path: path.name)
def test_a_header_says_how_to_use_it(path):
    header = path.read_text(encoding="utf-8").partition("\n\n")[0]
    comment = [line for line in header.splitlines() if line.startswith("#")]
    assert any(path.name in line and line.startswith("#   ") for line in comment)


def test_the_job_set_is_one(resources):
    """The models of JobSet's API leave out what they do not know, at any depth."""
    job_set = resources["JobSet"]
    understood = JobsetV1alpha2JobSet.from_dict(job_set)
    assert understood is not None and understood.to_dict() == job_set
    assert job_set["apiVersion"] == "jobset.x-k8s.io/v1alpha2"


def test_a_field_that_no_job_set_has_is_found(resources):
    job_set = dict(resources["JobSet"], spec={"replicatedJob": []})
    understood = JobsetV1alpha2JobSet.from_dict(job_set)
    assert understood is not None and understood.to_dict() != job_set


def test_jax_finds_the_pods_of_the_job_set(resources):
    """It counts an indexed Job's pods, which may read themselves and their Job."""
    [hosts] = resources["JobSet"]["spec"]["replicatedJobs"]
    job = hosts["template"]["spec"]
    assert job["completionMode"] == "Indexed" and hosts["replicas"] == 1
    assert job["completions"] == job["parallelism"]
    pod = job["template"]["spec"]
    account = resources["ServiceAccount"]["metadata"]["name"]
    assert pod["serviceAccountName"] == account
    assert [s["name"] for s in resources["RoleBinding"]["subjects"]] == [account]
    role = resources["RoleBinding"]["roleRef"]["name"]
    assert role == resources["Role"]["metadata"]["name"]
    allowed = {
        (resource, verb)
        for rule in resources["Role"]["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert allowed == {("pods", "list"), ("jobs", "get")}
    assert pod["containers"][0]["command"][-1] == "--multi_host"


def test_the_job_set_fails_at_a_mistake_alone(resources):
    """All else is tried again, and not before the last of the old pods has ended."""
    policy = resources["JobSet"]["spec"]["failurePolicy"]
    assert policy["restartStrategy"] == "BlockingRecreate"
    [rule] = policy["rules"]
    assert rule["action"] == "FailJobSet"
    assert rule["onJobFailureReasons"] == ["PodFailurePolicy"]
    [hosts] = resources["JobSet"]["spec"]["replicatedJobs"]
    job = hosts["template"]["spec"]
    [mistake] = job["podFailurePolicy"]["rules"]
    assert mistake["onExitCodes"]["values"] == [2]
    [container] = job["template"]["spec"]["containers"]
    assert mistake["onExitCodes"]["containerName"] == container["name"]
    assert job["backoffLimit"] == 0
    assert job["template"]["spec"]["restartPolicy"] == "Never"


def test_skypilots_job_has_its_fields_and_recovers(sky):
    """Names and types as in version 0.14.1, whose own check accepts the file."""
    known = {
        "name": str,
        "num_nodes": int,
        "workdir": str,
        "resources": dict,
        "envs": dict,
        "setup": str,
        "run": str,
    }
    assert {field: type(value) for field, value in sky.items()} == known
    resources = sky["resources"]
    assert set(resources) == {"accelerators", "use_spot", "disk_size", "job_recovery"}
    assert resources["use_spot"] is True
    assert resources["job_recovery"] == {
        "strategy": "EAGER_NEXT_REGION",
        "max_restarts_on_errors": 3,
        "recover_on_exit_codes": [cluster.RUN_AGAIN, 143],
    }
    assert sky["envs"]["WORKDIR"] is None  # to be given


def test_skypilots_command_names_the_first_node(sky, tmp_path):
    """Its `run`, with a python that prints its arguments."""
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    shutil.copy(shutil.which("echo") or "/bin/echo", python)
    result = subprocess.run(
        ["bash", str(run_of(sky, tmp_path))],
        cwd=tmp_path,
        env={
            "PATH": "/usr/bin:/bin",
            "SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.9",
            "SKYPILOT_NUM_NODES": "2",
            "SKYPILOT_NODE_RANK": "1",
            "WORKDIR": "gs://bucket/a run",
            "FLAGS": "--config=a.py --config.seed=1",
        },
        capture_output=True,
        text=True,
    )
    assert result.stdout == (
        "-m attn_cnn_jax.main --multi_host --coordinator_address=10.0.0.7:12355 "
        "--num_processes=2 --process_id=1 --workdir=gs://bucket/a run "
        "--config=a.py --config.seed=1\n"
    )
