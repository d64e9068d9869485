"""What holds of every command, and of names and files that no user would give."""

import json
import re

import pytest

DEEP = "[" * 30_000 + "]" * 30_000


@pytest.mark.parametrize("flag", ["--help", "--helpfull", "--helpshort"])
def test_help_is_no_failure(shell, command, flag):
    answer = shell(command, flag)
    assert answer.status == 0 and answer.err == "" and "flags:" in answer.out, answer


def test_help_shows_the_flags_of_the_command(shell, command):
    flags = {"prepare_data": "source", "error": "features", "pictures": "spread"}
    flags |= {"fit": "seeds", "compare": "variants", "compiled": "target"}
    flags |= {"results": "workdirs", "sweep": "seeds"}
    flag = flags.get(command.replace(" ", ".").rpartition(".")[2], "workdir")
    assert f"--{flag}:" in shell(command, "--help").out


def test_help_of_theory_names_its_commands(shell):
    answer = shell("attn_cnn_jax.theory", "--help")
    assert answer.status == 0 and "theory fit" in answer.out


@pytest.mark.parametrize(
    "argument, message",
    [
        ("--flagfile=/nope", "--flagfile: .*No such file.*/nope"),
        ("--flagfile=again", "--flagfile=again includes itself"),
        ("--flagfile=bytes", "--flagfile: it is no text of flags"),
        ("--flagfile=.", "--flagfile: .*Is a directory"),
        ("--nope\x1b[2J=3", r"Unknown command line flag 'nope\\x1b\[2J'"),
    ],
)
def test_flags_that_nobody_can_read(shell, command, argument, message):
    (shell.folder / "again").write_text("--flagfile=again\n")
    (shell.folder / "bytes").write_bytes(b"--mode=\xff\0")
    shell(command, argument).refused(message)


# Commands with flags that name a place to write to.
PLACES = {
    "attn_cnn_jax.main": ("workdir", "init_from", "data_dir"),
    "attn_cnn_jax.analyze": ("workdir", "output", "data_dir", "cifar_batches"),
    "attn_cnn_jax.prune": ("workdir", "output"),
    "attn_cnn_jax.bench": ("workdir",),
    "attn_cnn_jax.results": ("output",),
    "attn_cnn_jax.sweep": ("folder", "data_dir"),
    "attn_cnn_jax.theory convert": ("workdir", "output"),
    "attn_cnn_jax.theory fit": ("output", "data_dir"),
    "attn_cnn_jax.theory error": ("output",),
    "attn_cnn_jax.theory pictures": ("output",),
    "attn_cnn_jax.interop": ("workdir", "source"),
    "attn_cnn_jax.prepare_data": ("data_dir", "source"),
    "benchmarks.compare": ("output",),
    "benchmarks.compiled": ("output",),
}


def test_no_url_becomes_a_folder(shell, command):
    for flag in PLACES[command]:
        of_run = flag in ("workdir", "init_from", "output")
        may_be_remote = of_run and not command.startswith("benchmarks")
        complaint = "a folder is local or" if may_be_remote else "URLs are not taken"
        urls = ["gs:/bucket", "file:///x", *["s3://bucket/run"] * (not may_be_remote)]
        for url in urls:
            shell(command, f"--{flag}={url}").refused(f"{url}: {complaint}")
    assert [path.name for path in shell.folder.iterdir()] == ["file"]


@pytest.fixture(scope="module")
def run(server):
    """A shell in a folder with a run; each test changes what the one before left."""
    server.clean(run=True)
    return server


EVALUATE = ["attn_cnn_jax.main", "--mode=evaluate", "--workdir=run"]
READERS = [
    EVALUATE,
    ["attn_cnn_jax.analyze", "--workdir=run", "--figure=curves"],
    ["attn_cnn_jax.analyze", "--workdir=run", "--figure=heads"],
    ["attn_cnn_jax.prune", "--workdir=run", "--output=out"],
    ["attn_cnn_jax.bench", "--workdir=run"],
    ["attn_cnn_jax.results", "--workdirs=run"],
    ["attn_cnn_jax.theory convert", "--workdir=run", "--output=out"],
]


@pytest.mark.parametrize("name", ["²", "٣", "7" * 5000, "-1", "\x1b[2J"])
@pytest.mark.parametrize("reader", [EVALUATE, READERS[3]], ids=["main", "prune"])
def test_a_checkpoint_that_is_not_there(run, reader, name):
    shown = name[:30].replace("\x1b[", r"\\x1b\[")
    answer = run(*reader, f"--checkpoint={name}")
    answer.refused(f"has no checkpoint {shown}")


@pytest.mark.parametrize("folder", ["checkpoints", "snapshots"])
def test_folders_that_are_no_checkpoints(run, folder):
    run.clean(run=True)
    for name in ("²", "٣", "007", "9" * 30, "1e3", "a\nb"):
        (run.folder / "run" / folder / name).mkdir()
    answer = run(*EVALUATE)
    assert answer.told_in_a_line() == "" and '"step": 2' in answer.out
    answer = run("attn_cnn_jax.main", *run.tiny, "--workdir=run")
    assert answer.told_in_a_line() == "" and "continues after step 2" in answer.out


CONFIGS = {
    "nested 30,000 deep": (DEEP, "recursion|too deep"),
    "nested 300 deep": ('{"model":' * 300 + "1" + "}" * 300, "too deep"),
    "no object": ("[1]", "it holds no fields"),
    "pairs": ('[["model", 1]]', "it holds no fields"),
    "a name with a dot": ('{"a.b": 3}', "dots"),
    "5,000 digits": ('{"seed": ' + "9" * 5000 + "}", "4300 digits"),
    "nothing": ("", "Expecting value"),
    "no UTF-8": ("\udcff", "codec can't decode"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_a_config_that_is_none(run, case):
    text, reason = CONFIGS[case]
    path = run.folder / "run" / "config.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    commands = [*READERS, ["attn_cnn_jax.main", *run.tiny, "--workdir=run"]]
    commands += [["attn_cnn_jax.bench", *run.tiny, "--workdir=run"]]
    for command in commands:
        answer = run(*command)
        answer.refused("")
        assert re.search(f"config.json.*({reason})", answer.err), answer


def test_names_in_a_run_are_shown_escaped(run):
    run.clean(run=True)
    path = run.folder / "run" / "config.json"
    config = json.loads(path.read_text())
    config["model"]["name"] = "\x1b[2Jvit\n"
    path.write_text(json.dumps(config))
    run(*EVALUATE).refused(r"config.model.name is '\\x1b\[2Jvit\\n'")


def test_names_of_folders_are_shown_escaped(run):
    run.clean(run=True)
    (run.folder / "run").rename(run.folder / "\x1b[2J\u202erun\udcff")
    answer = run("attn_cnn_jax.analyze", "--workdirs=*run*", "--figure=curves")
    assert answer.status == 0 and answer.told_in_a_line() == ""
    answer = run("attn_cnn_jax.results", "--workdirs=*run*", "--output=\x1b[2J")
    assert answer.status == 0 and answer.told_in_a_line() == ""
    assert r"written to \x1b[2J" in answer.out


@pytest.mark.parametrize("name", ["a\\b", "\udcff"])
def test_paths_that_no_array_can_be_written_to(shell, name):
    """The backslash would be read as a slash: arrays outside of the workdir."""
    answer = shell("attn_cnn_jax.main", *shell.tiny, f"--workdir={name}")
    answer.refused("--workdir=.*: take a path of UTF-8 without a backslash")
    assert [path.name for path in shell.folder.iterdir()] == ["file"]


def test_a_number_of_epochs_that_no_float_holds(run):
    run.clean(run=True)
    path = run.folder / "run" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "num_epochs": 10**400}))
    assert "names no num_epochs" in run("attn_cnn_jax.results", "--workdirs=run").err


def test_a_digest_that_is_no_text(run):
    run.clean(run=True)
    lines = [{"step": 1, "split": "test", "chain": chain} for chain in ("\ud800", "")]
    text = "\n".join(map(json.dumps, lines))
    (run.folder / "run" / "metrics.jsonl").write_text(text)
    for command in (READERS[1], READERS[5]):
        assert "metrics.jsonl has no line with scores" in run(*command).err


@pytest.mark.parametrize("name", ["dataset_info.json", "features.json"])
@pytest.mark.parametrize("dataset", ["cifar10/3.0.2", "own/1.0.0"])
def test_a_dataset_nested_30_000_deep(shell, dataset, name):
    folder = shell.folder / "data" / dataset
    folder.mkdir(parents=True)
    for file in ("dataset_info.json", "features.json"):
        (folder / file).write_text(DEEP if file == name else "{}")
    choice = f"--config.dataset.name={dataset.partition('/')[0]}"
    flags = [*shell.tiny, choice, "--data_dir=data", "--workdir=out"]
    shell("attn_cnn_jax.main", *flags).refused(f"{name} cannot be read: .*recursion")
