"""Hostile flags and config files: a command goes well or says why not in a line.

The same cases in every `make test`; others, and more, in `make soak`.
"""

import re
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from attn_cnn_jax import config as config_lib

ROOT = Path(__file__).parent.parent.parent

# Flags that do what they are asked to for long, or reach out of this machine.
LEFT_OUT = {"configs", "download", "multi_host", "study", "aggregation", "verbosity"}
# Flags whose large numbers are work, and no mistake.
WORK = re.compile("steps|seconds|.*_calls|seeds|channels|features|size|heads|.*_mb")
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

ODD = ["", " ", "-", "--", "=", ",", ",,", ".", "*", "[", "{}", "[]", "(1,", "((" * 99]
ODD += ["nan", "inf", "-inf", "1e999", "-1", "0", "-0", "0x10", "1_0", "1.5", "²", "٣"]
ODD += ["7" * 30, "7" * 5000, "x" * 5000, "true", "None", "last", "best", "0,0", "1-0"]
ODD += ["0-99999999", "1:1", "0:0", "1,3", "3,2", "gs://b/x", "gs:/b", "s3://b"]
ODD += [
    "http://[",
    "file",
    "file/below",
    "no/such",
    "run",
    "here.py:x",
    "$HOME",
    "%s%n",
]
ODD += ["\x1b[2J\x07", "a\nb", "\u202e", "\udc80", "\\", "é", "{0!r}", "%s%n"]
TEXTS = st.one_of(
    st.sampled_from(ODD),
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


EXPRESSIONS = [
    "None",
    "True",
    "0",
    "-1",
    "7",
    "10**30",
    "0.5",
    "-0.5",
    "1e300",
    "1e999",
]
EXPRESSIONS += [
    "''",
    "'x'",
    r"'\ud800'",
    r"'\x1b[2J'",
    "[]",
    "{}",
    "{'name': {'name': []}}",
]
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
            [f"config.{field} = {value}"] * 24
            + [f"del config.{field}", f"config.nope = {value}", f"config[{value}] = 1"]
            + [f"raise {kind}" for kind in ("Stop('x')", "Interrupt", "BaseException")]
            + ["sys.exit(3)", "sys.exit()", "get_config()", "assert False", "raise"]
            + ["raise Exception('\\x1b[2J\\n' * 5000)", "yield", "import nope", "1 +"]
        )
    )
    others = ["None", "dict(config)", "[config]", "FrozenConfigDict(config)", value]
    result = draw(st.sampled_from(["config"] * 12 + others))
    return FILE.format(statement=statement, result=result)


def full_config() -> Any:
    return config_lib.read_file(ROOT / "configs" / "quickstart.py")


def flags_of(server, command: str) -> list[str]:
    """The flags that a command has of its own, and some that all have."""
    tree = xml.etree.ElementTree.fromstring(server(command, "--helpxml").out)
    own = [
        f.findtext("name", "") for f in tree.iter("flag") if f.find("key") is not None
    ]
    return [name for name in own if name not in LEFT_OUT] * 4 + ["flagfile", "undefok"]


@pytest.mark.parametrize("number", [50, pytest.param(750, marks=pytest.mark.soak)])
def test_every_command_line(server, number):
    flags = {command: flags_of(server, command) for command in server.commands}
    assert "workdir" in flags["attn_cnn_jax.main"]

    def check(command: list[str]) -> None:
        server.clean(run="run" in " ".join(command[1:]))
        server.check(*command)

    server.every(command_lines(flags), check, number)


@pytest.mark.parametrize("number", [25, pytest.param(375, marks=pytest.mark.soak)])
def test_every_override(server, number):
    fields = sorted(config_lib.flatten(full_config()))

    def check(override: tuple[str, str]) -> None:
        text = f"--config.{override[0]}={harmless(override[1])}"
        server.clean()
        server.check("attn_cnn_jax.main", *server.tiny, text, "--workdir=file/run")

    server.every(st.tuples(st.sampled_from(fields), TEXTS), check, number)


@pytest.mark.parametrize("number", [25, pytest.param(375, marks=pytest.mark.soak)])
def test_every_config_file(server, number):
    fields = sorted(config_lib.flatten(full_config()))

    def check(case: tuple[str, list[str]]) -> None:
        text, command = case
        server.clean()
        (server.folder / "odd.py").write_text(text)
        server.check(*command, "--config=odd.py")

    commands = [["attn_cnn_jax.main", "--workdir=file/run"]] * 4
    commands += [["attn_cnn_jax.bench", "--batch_sizes=99999"]]
    commands += [["attn_cnn_jax.interop", "--source=file", "--workdir=out"]]
    server.every(
        st.tuples(config_files(fields), st.sampled_from(commands)), check, number
    )
