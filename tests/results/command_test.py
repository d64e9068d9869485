"""The command `results`: the tables of runs in files and on the screen."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]


def results(*arguments, cwd=ROOT):
    """The finished process of the command."""
    command = [sys.executable, "-m", "attn_cnn_jax.results", *map(str, arguments)]
    env = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=env)


def test_tables_of_the_runs_here_are_written_and_printed(make_run, tmp_path):
    """Without flags it is runs/*; a file among the folders is none of them."""
    (tmp_path / "runs").mkdir()
    for seed in (1, 2):
        make_run(f"runs/seed{seed}", "resnet18", {300: 0.9}, seed=seed)
    make_run("runs/mine", "quickstart", {70: 0.98})
    (tmp_path / "runs/notes.txt").write_text("")
    done = results(cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    names = {path.name for path in (tmp_path / "tables").iterdir()}
    tables = {"other_runs", *(f"table_{number}" for number in range(1, 5))}
    assert names == {f"{table}.{kind}" for table in tables for kind in ("md", "csv")}
    files = [tmp_path / f"tables/{table}.md" for table in sorted(tables)]
    for text in (path.read_text(encoding="utf-8") for path in files):
        assert text in done.stdout
    assert "| ResNet18 | resnet18 |" in done.stdout and "| mine |" in done.stdout
    assert done.stdout.endswith("written to tables\n")


def test_what_is_no_run_is_said_and_the_others_go_on(make_run, tmp_path):
    """A run as it is before its first evaluation counts too."""
    new = make_run("new", "quickstart", {})
    (new / "metrics.jsonl").unlink()
    (tmp_path / "empty").mkdir()
    output = tmp_path / "deep/out"
    patterns = [f"--workdirs={tmp_path}/{name}" for name in ("new", "empty", "n*")]
    done = results(*patterns, f"--output={output}")
    assert done.returncode == 0 and "| new |" in done.stdout
    [warning] = done.stderr.strip().splitlines()
    assert warning.endswith("empty is not the workdir of a run. It is left out.")
    assert len((output / "other_runs.csv").read_text().splitlines()) == 2


def test_no_runs_at_all_is_one_line_and_status_2(tmp_path):
    (tmp_path / "empty").mkdir()
    for pattern, message in [
        ("/nowhere/*", "error: no folder matches /nowhere/*."),
        (f"{tmp_path}/*", "none of the 1 folders is the workdir of a run"),
    ]:
        done = results(f"--workdirs={pattern}", f"--output={tmp_path / 'out'}")
        assert done.returncode == 2 and not (tmp_path / "out").exists()
        assert message in done.stderr.splitlines()[-1]


def test_one_table_of_what_ran_in_one_format(make_run, tmp_path):
    make_run("run", "resnet18", {300: 0.9}, images=10_000)
    flags = ["--table=1,2", "--only_measured", "--format=latex"]
    done = results(f"--workdirs={tmp_path}/run", f"--output={tmp_path}/out", *flags)
    assert (done.returncode, done.stderr) == (0, "")
    [path] = (tmp_path / "out").iterdir()
    assert path.name == "table_1.tex" and path.read_text() in done.stdout
    assert "table 2 is left out" in done.stdout
    assert "0.9000 (0.8940 to 0.9057)" in done.stdout
    refused = results(f"--workdirs={tmp_path}/run", "--table=7")
    assert refused.returncode == 2 and "no table '7'" in refused.stderr
