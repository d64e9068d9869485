"""`attn-cnn`: every command by one name."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from attn_cnn_jax import __main__ as console

ROOT = Path(__file__).parent.parent


@pytest.fixture
def called(monkeypatch):
    """`called(*arguments)`: the module that is run, and the flags that it sees."""

    def call(*arguments: str) -> tuple[str, list[str]]:
        seen = []

        def run(module, run_name, alter_sys):
            assert run_name == "__main__" and alter_sys
            seen.append((module, sys.argv[1:]))

        monkeypatch.setattr(console.runpy, "run_module", run)
        monkeypatch.setattr(sys, "argv", ["attn-cnn", *arguments])
        console.main()
        return seen[0]

    return call


def test_a_command_is_a_module_and_takes_its_flags(called):
    flags = ["--workdir=a", "--figure=curves"]
    assert called("analyze", *flags) == ("attn_cnn_jax.analyze", flags)
    assert called("train", "--config=vit") == ("attn_cnn_jax.main", ["--config=vit"])
    assert called("theory", "fit") == ("attn_cnn_jax.theory", ["fit"])
    scored = ["--mode=evaluate", "--workdir=a"]
    assert called("evaluate", "--workdir=a") == ("attn_cnn_jax.main", scored)


@pytest.mark.parametrize("name", console.COMMANDS)
def test_each_command_is_there(name):
    place = ROOT / "attn_cnn_jax" / console.COMMANDS[name][0].replace(".", "/")
    assert place.with_suffix(".py").is_file() or (place / "__main__.py").is_file()


def test_help_comes_without_jax():
    program = (
        "import sys; sys.argv = ['attn-cnn']; from attn_cnn_jax import __main__ as m\n"
        "m.main(); assert not {'jax', 'numpy'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    for name in console.COMMANDS:
        assert f"  {name} " in result.stdout


@pytest.mark.parametrize(
    "name, message",
    [
        ("trian", "'trian' is no command; did you mean train?"),
        ("\x1b[2J", r"'\x1b[2J' is no command; attn-cnn --help lists them."),
    ],
)
def test_what_is_no_command_is_refused(called, capsys, name, message):
    with pytest.raises(SystemExit) as stopped:
        called(name)
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"error: {message}\n"


def test_the_package_installs_it():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"attn-cnn": "attn_cnn_jax.__main__:main"}
