"""Hostile flags, configs and runs: every command goes well or says why not in a line.

The same cases in every `make test`; others, and more, in `make soak`.
"""

import copy
import hashlib
import json
import os
import re
import shutil
import xml.etree.ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from attn_cnn_jax import config as config_lib

ROOT = Path(__file__).parent.parent.parent

# Flags that do what they are asked to for long, or reach out of this machine.
LEFT_OUT = {"configs", "download", "multi_host", "study", "aggregation", "verbosity"}
# Flags whose large numbers are work, and no mistake.
WORK = re.compile("steps|seconds|.*_calls|seeds|channels|features|size|heads|.*_mb")
FEW = 50  # cases of a kind in `make test`, at most
DEFAULT_FOLDERS = {"runs", "tables", "curves", "theorem"}


def numbers(few: int):
    """Parametrize a test by how many cases it tries, 15 times as many in a soak."""
    many = pytest.param(15 * few, marks=pytest.mark.soak)
    return pytest.mark.parametrize("number", [few, many])


QUICK: dict[str, list[list[str]]] = {
    "attn_cnn_jax.main": [["--mode=evaluate", "--workdir=run"], []],
    "attn_cnn_jax.analyze": [
        ["--workdir=run", "--figure=curves"],
        ["--workdir=run", "--figure=head_map", "--num_images=2"],
    ],
    "attn_cnn_jax.prune": [["--workdir=run", "--output=out"]],
    "attn_cnn_jax.bench": [
        ["--workdir=run", "--steps=3", "--latency_calls=1", "--seconds=0"]
    ],
    "attn_cnn_jax.results": [["--workdirs=run"]],
    "attn_cnn_jax.theory convert": [["--workdir=run", "--output=out"]],
    "attn_cnn_jax.theory fit": [
        ["--steps=10", "--seeds=1", "--heads=1", "--size=1", "--channels=1"]
    ],
    "attn_cnn_jax.theory pictures": [["--output=out"]],
    "attn_cnn_jax.prepare_data": [["--source=file"]],
    "benchmarks.compare": [["--configs=nope"]],
    "benchmarks.compiled": [["--configs=nope"]],
}

TEXTS = st.one_of(
    st.sampled_from(
        [
            "",
            " ",
            "-",
            "--",
            "=",
            ",",
            ",,",
            ".",
            "*",
            "[",
            "{}",
            "[]",
            "(1,",
            "((" * 99,
        ]
        + ["nan", "inf", "-inf", "1e999", "-1", "0", "-0", "0x10", "1_0", "1.5", "²"]
        + ["٣", "7" * 30, "7" * 5000, "x" * 5000, "true", "None", "last", "best"]
        + ["0,0", "1-0", "0-99999999", "1:1", "0:0", "1,3", "3,2", "gs://b/x", "gs:/b"]
        + ["s3://b", "http://[", "file", "file/below", "no/such", "run", "here.py:x"]
        + [
            "\x1b[2J\x07",
            "a\nb",
            "\u202e",
            "\udc80",
            "%s%n",
            "\\",
            "é",
            "{0!r}",
            "$HOME",
        ]
    ),
    st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=12),
)


def harmless(text: str) -> str:
    """The text, but that it names no place outside the folder."""
    return text.lstrip("/~").replace("..", ".")


def is_large(text: str) -> bool:
    try:
        return float(text) > 100
    except (OverflowError, ValueError):
        return False


@st.composite
def arguments(draw, flags: list[str]) -> list[str]:
    """A flag with some text, in one of the forms in which it may be written."""
    flag, text = draw(st.sampled_from(flags)), harmless(draw(TEXTS))
    if WORK.fullmatch(flag) and is_large(text):
        text = "-1"
    forms = [[f"--{flag}={text}"]] * 4 + [[f"--{flag}", text], [f"-{flag}={text}"]]
    forms += [[f"--{flag}"], [f"--no{flag}"], [f"--{flag[:-1]}={text}"], [text or "-"]]
    return draw(st.sampled_from(forms))


@st.composite
def command_lines(draw, flags: dict[str, list[str]]) -> list[str]:
    """A command with flags that make it quick, and hostile ones behind them."""
    command = draw(st.sampled_from(sorted(flags)))
    words = list(draw(st.sampled_from(QUICK.get(command, [[]]))))
    for more in draw(st.lists(arguments(flags[command]), min_size=1, max_size=4)):
        words += more
    return [command, *words]


VALUES: list[Any] = [
    *(None, True, False, 0, -1, 7, 10**30, 10**400, 0.5, -0.5, 1e300),
    *(float("nan"), float("inf"), "", "x", "\ud800", "\x1b[2J\n", "x" * 5000),
    *([], [[]], {}, {"name": {"name": []}}, {"items": 1}, {"a.b": 2}, [None, {}]),
]
JUNK = ["", "null", "3", "[]", '"x"', "NaN", "9" * 5000, "\x1b[2J", '{"model":[]}']
JUNK += ["[" * 30_000, '{"a":' * 30_000 + "1" + "}" * 30_000, '{"a":' * 300 + "1"]
JUNK += ['{"step":' + "[" * 900 + "]" * 900 + "}", '{"step":1,"step":"\\ud800"}']
EXPRESSIONS = [repr(value) for value in VALUES if value == value and value != 1e999]
EXPRESSIONS += [
    "float('nan')",
    "10**5000",
    "b'x'",
    "object()",
    "(i for i in ())",
    "int",
]
EXPRESSIONS += [
    "lambda: 1",
    "config",
    "{'a': config}",
    "exit",
    "base_config",
    "(1, [2])",
]
EXPRESSIONS += ["FieldReference(1) / 0", "FieldReference(None, field_type=int)"]
EXPRESSIONS += ["type('E', (), {'__repr__': lambda s: 1 / 0})()", "np.float64(1)"]
FILE = """
import sys
import numpy as np
from ml_collections import ConfigDict, FieldReference, FrozenConfigDict
from attn_cnn_jax.config import base_config, self_attention
class Stop(SystemExit): pass
class Interrupt(KeyboardInterrupt): pass
def get_config(options=""):
    config = base_config()
    config.model = self_attention("quadratic_isotropic")
    config.dataset.name = "digits_8x8"
    config.unlock()
    with config.ignore_type():
        {statement}
    return {result}
"""


@st.composite
def config_files(draw, fields: list[str]) -> str:
    """The text of a config file in which something is odd."""
    field, value = (draw(st.sampled_from(some)) for some in (fields, EXPRESSIONS))
    statement = draw(
        st.sampled_from(
            [f"config.{field} = {value}"] * 8
            + [f"del config.{field}", f"config.nope = {value}", f"config[{value}] = 1"]
            + [f"raise {kind}" for kind in ("Stop('x')", "Interrupt", "BaseException")]
            + ["sys.exit(3)", "sys.exit()", "get_config()", "assert False", "raise"]
            + ["raise Exception('\\x1b[2J\\n' * 5000)", "yield", "import nope", "1 +"]
        )
    )
    others = ["None", "dict(config)", "[config]", "FrozenConfigDict(config)", value]
    result = draw(st.sampled_from(["config"] * 12 + others))
    return FILE.format(statement=statement, result=result)


def mutated(draw, tree: Any) -> Any:
    """The JSON value with one of its values replaced, removed or written twice."""
    root = {"": copy.deepcopy(tree)}
    places: list[tuple[Any, Any]] = []

    def walk(holder: Any) -> None:
        for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
            places.append((holder, key))
            if isinstance(holder[key], dict | list):
                walk(holder[key])

    walk(root)
    holder, key = draw(st.sampled_from(places))
    holder[key] = draw(st.sampled_from(VALUES))
    if key != "" and draw(st.integers(0, 4)) == 0:
        del holder[key]
    return root[""]


@st.composite
def files_of_a_run(draw) -> Callable[[Path], None]:
    """What damages a file of a run: its JSON, its bytes, or what lies in its place."""
    name = draw(st.sampled_from([*RECORDS, "checkpoints/2/_CHECKPOINT_METADATA"]))
    kind = draw(st.sampled_from(["JSON"] * 6 + ["junk", "cut", "folder", "loop"]))
    junk, place = draw(st.sampled_from(JUNK)), draw(st.floats(0, 1))
    data = draw(st.data())

    def damage(run: Path) -> None:
        path = run / name
        if name == "bench.jsonl":
            path.write_text(json.dumps(BENCH) + "\n")
        text = path.read_text()
        path.unlink()
        if kind == "folder":
            path.mkdir()
        elif kind == "loop":
            path.symlink_to(path)
        elif kind == "cut":
            at = int(place * len(text))
            path.write_bytes(text[:at].encode() + b"\xff\0" + text[at + 1 :].encode())
        elif kind == "junk":
            path.write_text(junk)
        else:
            path.write_text(RECORDS.get(name, one_value)(data.draw, text))
        note(f"{path}: {path.read_text()[:2000] if path.is_file() else kind}")

    return damage


def one_value(draw, text: str) -> str:
    return json.dumps(mutated(draw, json.loads(text)))


def one_of_the_lines(draw, text: str) -> str:
    lines = text.splitlines()
    number = draw(st.integers(0, len(lines) - 1))
    lines[number] = one_value(draw, lines[number])
    return "\n".join(lines)


def one_with_its_digest(draw, text: str) -> str:
    """The record of a checkpoint, which keeps its digest: forged, not damaged."""
    content = mutated(draw, json.loads(json.loads(text)["content"]))
    digest = hashlib.blake2b(json.dumps(content).encode(), digest_size=16).hexdigest()
    return json.dumps({"content": json.dumps(content), "digest": digest})


RECORDS: dict[str, Callable[..., str]] = {
    "config.json": one_value,
    "metrics.jsonl": one_of_the_lines,
    "environment.jsonl": one_of_the_lines,
    "bench.jsonl": one_of_the_lines,
    "checkpoints/2/record/data.json": one_with_its_digest,
}
BENCH = {
    "device_kind": "cpu",
    "compute_dtype": "float32",
    "date": "2020-01-01",
    "flops": 7,
    "flops_paper": 7,
    "latency_ms": {"mean": 1.0, "calls": 3},
}


@st.composite
def checkpoint_folders(draw) -> Callable[[Path], None]:
    """What adds odd names to the checkpoints of a run."""
    names = draw(st.lists(TEXTS, min_size=1, max_size=3))
    names = [re.sub("[/\0]|^[.]+$", "_", name)[:99] or "_" for name in names]
    kind = draw(st.sampled_from(["checkpoints", "snapshots"]))
    make = draw(st.sampled_from(["folder", "file", "copy", "loop"]))

    def damage(run: Path) -> None:
        for name in names:
            path = run / kind / name
            note(repr(path))
            if path.exists() and path.is_dir():
                shutil.rmtree(path)
            if make == "copy":
                shutil.copytree(run / kind / "1", path, dirs_exist_ok=True)
            elif make == "folder":
                path.mkdir(exist_ok=True)
            elif make == "file":
                path.write_text("1")
            elif not path.is_symlink():
                path.symlink_to(path)

    return damage


def full_config() -> Any:
    return config_lib.read_file(ROOT / "configs" / "quickstart.py")


def flags_of(server, command: str) -> list[str]:
    """The flags that a command has of its own, and some that all have."""
    tree = xml.etree.ElementTree.fromstring(server(command, "--helpxml").out)
    own = [
        f.findtext("name", "") for f in tree.iter("flag") if f.find("key") is not None
    ]
    return [name for name in own if name not in LEFT_OUT] + ["flagfile", "undefok"]


def answer(server, command: list[str], *, clean: bool = True) -> None:
    """Hold a command to its promises."""
    if clean:
        server.clean(run="run" in " ".join(command[1:]))
    before = everything(server)
    note(repr(command))
    server(*command).told_in_a_line()
    for path in everything(server) - before:
        first = path.split("/")[0]
        named = any(named_by(word).split("/")[0] == first for word in command[1:])
        assert named or first in DEFAULT_FOLDERS | {"__pycache__"}, path
    assert not any(name.startswith(("gs:", "s3:")) for name in everything(server))


def named_by(word: str) -> str:
    return os.path.normpath(word.partition("=")[2] or word)


def everything(server) -> set[str]:
    """The files and folders in the folder, and what lies beside it as ../NAME."""
    return {
        *(str(path.relative_to(server.folder)) for path in server.folder.rglob("*")),
        *(f"../{path.name}" for path in server.box.iterdir()),
    }


def every(strategy: Any, check: Callable[[Any], None], number: int) -> None:
    """Check as many cases; the few of `make test` are the same every time."""

    @settings(
        max_examples=number,
        derandomize=number <= FEW,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def cases(case: Any) -> None:
        check(case)

    cases()


@numbers(50)
def test_every_command_line(server, number):
    flags = {command: flags_of(server, command) for command in server.commands}
    assert "workdir" in flags["attn_cnn_jax.main"]

    def check(command: list[str]) -> None:
        answer(server, command)

    every(command_lines(flags), check, number)


@numbers(25)
def test_every_override(server, number):
    fields = sorted(config_lib.flatten(full_config()))

    def check(override: tuple[str, str]) -> None:
        text = f"--config.{override[0]}={harmless(override[1])}"
        answer(server, ["attn_cnn_jax.main", *server.tiny, text, "--workdir=file/run"])

    every(st.tuples(st.sampled_from(fields), TEXTS), check, number)


@numbers(25)
def test_every_config_file(server, number):
    fields = sorted(config_lib.flatten(full_config()))

    def check(case: tuple[str, list[str]]) -> None:
        text, command = case
        server.clean()
        (server.folder / "odd.py").write_text(text)
        answer(server, [*command, "--config=odd.py"], clean=False)

    commands = [["attn_cnn_jax.main", "--workdir=file/run"]] * 4
    commands += [["attn_cnn_jax.bench", "--batch_sizes=99999"]]
    commands += [["attn_cnn_jax.interop", "--source=file", "--workdir=out"]]
    every(st.tuples(config_files(fields), st.sampled_from(commands)), check, number)


@numbers(20)
@pytest.mark.parametrize("kind", ["files", "checkpoints"])
def test_every_run(server, number, kind):
    server.clean(run=True)
    damages = files_of_a_run() if kind == "files" else checkpoint_folders()

    def check(case: tuple[Callable[[Path], None], list[str]]) -> None:
        damage, command = case
        server.clean(run=True)
        damage(server.folder / "run")
        answer(server, command, clean=False)

    every(st.tuples(damages, st.sampled_from(readers(server))), check, number)


def readers(server) -> list[list[str]]:
    """Commands that read a run."""
    continues = ["attn_cnn_jax.main", *server.tiny]
    return [
        *([["attn_cnn_jax.results", "--workdirs=run"]] * 4),
        *([["attn_cnn_jax.main", "--mode=evaluate", "--workdir=run"]] * 4),
        ["attn_cnn_jax.main", "--mode=evaluate", "--workdir=run", "--checkpoint=best"],
        ["attn_cnn_jax.analyze", "--workdir=run", "--figure=curves"],
        *([["attn_cnn_jax.prune", "--workdir=run", "--output=out"]] * 2),
        *([["attn_cnn_jax.theory convert", "--workdir=run", "--output=out"]] * 2),
        ["attn_cnn_jax.bench", *server.tiny, "--workdir=run", "--batch_sizes=99999"],
        ["attn_cnn_jax.bench", "--workdir=run", "--batch_sizes=99999"],
        [*continues, "--workdir=run"],
        *([[*continues, "--init_from=run", "--workdir=file/run"]] * 2),
    ]
