"""What a user is told who mistypes: a line on stderr and exit status 2."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
QUICKSTART = f"--config={ROOT / 'configs' / 'quickstart.py'}"
LEARNED = f"--config={ROOT / 'configs' / 'learned_wo_content.py'}"
SAN = f"--config={ROOT / 'configs' / 'san_pairwise.py'}:digits"

NO_WORKDIR = "no workdir"

BASE = "from attn_cnn_jax.config import base_config; config = base_config(); "
HUGE = f"{BASE}config.batch_size = 10**5000; return config"
LAZY = (
    f"{BASE}from ml_collections import FieldReference; one = FieldReference(1); "
    "config.batch_size = FieldReference(8) // one; one.set(0); return config"
)

# How get_config may end, and what the message has to name.
ENDS = {
    "returns a dict": ("return {}", "get_config returned no ConfigDict, but a dict"),
    "returns an int": ("return 3", "no ConfigDict, but a int"),
    "returns None": ("return None", "no ConfigDict, but a NoneType"),
    "returns itself": ("return get_config", "no ConfigDict, but a function"),
    "yields": ("yield 1", "no ConfigDict, but a generator"),
    "exits": ("raise SystemExit", "exits.py, line 2: SystemExit"),
    "exits well": ("import sys; sys.exit(0)", "exits_well.py, line 2: SystemExit: 0"),
    "interrupts": (
        "raise type('Stop', (KeyboardInterrupt,), {})",
        "interrupts.py, line 2: Stop",
    ),
    "raises no Exception": ("raise BaseException('x')", "line 2: BaseException: x"),
    "calls itself": ("return get_config()", "line 2: RecursionError"),
    "raises a page": (
        "raise ValueError('\\x1b[2J\\n' * 9999)",
        r"ValueError: \\x1b\[2J",
    ),
    "has huge numbers": (HUGE, "config.batch_size is a value of type int; it must be"),
    "cannot be computed": (LAZY, "cannot be computed: ZeroDivisionError"),
}

FILES = {
    **{
        f"{end.replace(' ', '_')}.py": f"def get_config(options=''):\n    {body}\n"
        for end, (body, _) in ENDS.items()
    },
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
    "unknown field": ([QUICKSTART, "--config.nope=3"], "no field config.nope[.]$"),
    "unknown model field": ([QUICKSTART, "--config.model.nope=3"], "config.model.nope"),
    "misspelt field": (
        [QUICKSTART, "--config.model.widht=3"],
        "no field config.model.widht; did you mean width[?]$",
    ),
    "field of a field": ([QUICKSTART, "--config.seed.x=3"], "no field config.seed.x"),
    "no field, but of Python": (
        [QUICKSTART, "--config.__class__.__doc__=3"],
        "no field config.__class__.__doc__[.]$",
    ),
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
    **{
        f"config {end}": ([f"--config={end.replace(' ', '_')}.py"], message)
        for end, (_, message) in ENDS.items()
    },
    "two lines in a name": (["--config=a\nb.py"], r"no config file a\\nb[.]py"),
    "terminal codes in a name": (["--config=\x1b[2J.py"], r"file \\x1b\[2J[.]py"),
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

NAMES = {
    "quickstart.py": "runs/quickstart_seed7",
    "quickstart.py:digits": "runs/quickstart_digits_seed7",
    "quickstart.py:adamw,digits": "runs/quickstart_adamw_digits_seed7",
    "quickstart.py:": "runs/quickstart_seed7",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_in_a_line(shell, mistake):
    arguments, message = MISTAKES[mistake]
    for name, text in FILES.items():
        (shell.folder / name).write_text(text)
    (shell.folder / "work").mkdir()
    (shell.folder / "work" / "notes.txt").write_text("mine")
    if NO_WORKDIR not in arguments:
        arguments = ["--workdir=work", *arguments]
    given = [argument for argument in arguments if argument != NO_WORKDIR]
    answer = shell("attn_cnn_jax.main", *given)
    answer.refused(message)
    assert all(": reading " in line for line in answer.out.splitlines())
    assert len(answer.err.splitlines()) == 1
    assert [path.name for path in (shell.folder / "work").iterdir()] == ["notes.txt"]
    names = {path.name for path in shell.folder.iterdir()}
    assert names - {"__pycache__"} == {*FILES, "work"}


@pytest.mark.parametrize("config", NAMES)
def test_a_run_without_a_workdir_is_named_by_its_config(shell, config):
    (shell.folder / "runs").write_text("no folder, so that nothing is trained")
    flags = [f"--config={ROOT}/configs/{config}", "--config.seed=7"]
    shell("attn_cnn_jax.main", *flags).refused(f"{NAMES[config]}[^a-z_]")
