"""What a user is told who mistypes: a line on stderr and exit status 2.

All commands run in one process that forks a child for each, for the imports take longer
than all of the rest.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
QUICKSTART = f"--config={ROOT / 'configs' / 'quickstart.py'}"
LEARNED = f"--config={ROOT / 'configs' / 'learned_wo_content.py'}"
SAN = f"--config={ROOT / 'configs' / 'san_pairwise.py'}:digits"

NO_WORKDIR = "no workdir"

FILES = {
    "raises.py": "def get_config(options=''):\n    return 1 / 0\n",
    "typo.py": (
        "from attn_cnn_jax.config import base_config\n"
        "def get_config(options=''):\n"
        "    config = base_config()\n"
        "    config.bach_size += 3\n"
        "    return config\n"
    ),
    "imports.py": "import no_such_module\n",
    "syntax.py": "def get_config(:\n",
    "empty.py": "x = 1\n",
    "file": "not a folder",
}

# Arguments and what the message has to name.
MISTAKES: dict[str, tuple[list[str], str]] = {
    "no config": ([], "--config=FILE.py is missing"),
    "unknown field": ([QUICKSTART, "--config.nope=3"], "config.*nope"),
    "unknown model field": ([QUICKSTART, "--config.model.nope=3"], "config.*nope"),
    "wrong type": ([QUICKSTART, "--config.batch_size=abc"], "batch_size.*abc"),
    "not whole": ([QUICKSTART, "--config.num_epochs=1.5"], "num_epochs.*1.5"),
    "out of range": ([QUICKSTART, "--config.batch_size=0"], "config.batch_size is 0"),
    "other model's field": (
        [QUICKSTART, "--config.model.name=resnet18"],
        "config.model.* is not a field of the model resnet18",
    ),
    "other optimizer's field": (
        [QUICKSTART, "--config.optimizer.name=adamw"],
        "optimizer.* is not a field of the optimizer adamw.*--config=FILE.py:adamw",
    ),
    "missing config": (["--config=nowhere.py"], "no config file nowhere.py"),
    "missing config, spaced": (["--config", "nowhere.py"], "no config file nowhere.py"),
    "config raises": (["--config=raises.py"], "raises.py, line 2: ZeroDivisionError"),
    "config mistypes": (["--config=typo.py"], "typo.py, line 4: .*bach_size"),
    "config imports": (["--config=imports.py"], "imports.py, line 1: .*no_such_module"),
    "config is no Python": (["--config=syntax.py"], "syntax.py, line 1: SyntaxError"),
    "config is empty": (["--config=empty.py"], "empty.py has no function get_config"),
    "unknown option": ([f"{QUICKSTART}:nope"], "'nope' is not an option.*digits"),
    "unknown flag": ([QUICKSTART, "--nope=3"], "nope"),
    "unknown mode": ([QUICKSTART, "--mode=fly"], "mode.*fly"),
    "stray argument": ([QUICKSTART, "digits"], "'digits' is not a flag"),
    "missing data": (
        [f"{QUICKSTART}:cifar10", "--data_dir=nothing"],
        "cifar10 is not prepared in .*nothing.*prepare_data.*:digits",
    ),
    "batch too large": (
        [QUICKSTART, "--config.batch_size=1438"],
        "config.batch_size=1438 .* 1437 training images",
    ),
    "too many updates": (
        [QUICKSTART, "--config.batch_size=1", "--config.num_epochs=16000000"],
        "num_epochs=16000000 of 1437 updates each.*at most 1493382",
    ),
    "patch size": ([QUICKSTART, "--config.model.patch_size=3"], "8 x 8.*patch_size=3"),
    "grid too large": (
        [f"{LEARNED}:digits", "--config.model.patch_size=1"],
        "32 x 32.*max_position=16",
    ),
    "kernel too large": (
        [SAN, "--config.model.kernel_sizes=(3,3,3,7)"],
        "kernel_size=7 is too large for a map of 2 x 2",
    ),
    "even kernel": (
        [SAN, "--config.model.kernel_sizes=(3,3,3,4)"],
        "config.model.kernel_sizes is .*odd",
    ),
    "too many stages": (
        [
            SAN,
            "--config.model.num_blocks=(1,1,1,1,1,1)",
            "--config.model.widths=(32,32,32,32,32,32)",
            "--config.model.kernel_sizes=(3,3,3,3,3,3)",
        ],
        "too large for a map of 1 x 1",
    ),
    "workdir below a file": ([QUICKSTART, "--workdir=file/run"], "file/run"),
    "evaluate nothing": (["--mode=evaluate", NO_WORKDIR], "needs --workdir"),
    "evaluate no run": (["--mode=evaluate"], "work is not the workdir of a run"),
}

DRIVER = """
import json, os, sys, warnings
warnings.simplefilter("ignore")  # of forking
from attn_cnn_jax import command_line, main

outcomes = {}
for name, argv in json.load(open("commands.json")).items():
    pid = os.fork()
    if pid == 0:
        for number, stream in ((1, "out"), (2, "err")):
            os.dup2(os.open(stream, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), number)
        sys.argv = ["main", *argv]
        command_line.run(main.main)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    work = sorted(os.listdir("work"))
    outcomes[name] = [status, open("out").read(), open("err").read(), work]

from absl import flags
from ml_collections import config_flags

names = []
for value in json.load(open("names.json")):
    own = flags.FlagValues()
    config_flags.DEFINE_config_file("config", flag_values=own)
    own(["main", "--config=" + value])
    names.append(main.default_workdir(own["config"], 7))
print(json.dumps([outcomes, names]))
"""

NAMES = {
    f"{ROOT}/configs/quickstart.py": "runs/quickstart_seed7",
    f"{ROOT}/configs/resnet18.py:digits": "runs/resnet18_digits_seed7",
    f"{ROOT}/configs/resnet18.py:cosine,digits": "runs/resnet18_cosine_digits_seed7",
    f"{ROOT}/configs/resnet18.py:": "runs/resnet18_seed7",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("commands")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "work").mkdir()
    (folder / "work" / "notes.txt").write_text("mine")
    return folder


def command(args: list[str]) -> list[str]:
    if NO_WORKDIR in args:
        return [arg for arg in args if arg != NO_WORKDIR]
    return ["--workdir=work", *args]


@pytest.fixture(scope="module")
def everything(folder) -> tuple[dict[str, list], list[str]]:
    """(exit status, stdout, stderr, what lies in the workdir) of every mistake."""
    commands = {name: command(args) for name, (args, _) in MISTAKES.items()}
    (folder / "commands.json").write_text(json.dumps(commands))
    (folder / "names.json").write_text(json.dumps(list(NAMES)))
    (folder / "driver.py").write_text(DRIVER)
    result = subprocess.run(
        [sys.executable, "driver.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": ""},
        stdout=subprocess.PIPE,
        check=True,
    )
    outcomes, names = json.loads(result.stdout)
    return outcomes, names


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_in_a_line(everything, mistake):
    status, out, err, work = everything[0][mistake]
    assert "Traceback" not in err
    assert status == 2, err
    lines = err.splitlines()
    assert 1 <= len(lines) <= 2 and out == ""
    assert lines[0].startswith("error: ")
    assert re.search(MISTAKES[mistake][1], err), err
    assert work == ["notes.txt"]


def test_mistakes_leave_nothing_behind(everything, folder):
    made = {"commands.json", "names.json", "driver.py", "out", "err", "__pycache__"}
    names = {path.name for path in folder.iterdir()}
    assert names - made == {*FILES, "work"}


def test_a_run_without_a_workdir_is_named_by_its_config(everything):
    assert everything[1] == list(NAMES.values())
