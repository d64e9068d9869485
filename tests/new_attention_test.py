"""docs/new_attention.md: its file passes its own tests, trains, and is read back."""

import pathlib
import re
import subprocess
import sys

import pytest

from attn_cnn_jax import config as config_lib
from attn_cnn_jax import train, variants
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention import ATTENTIONS, QuadraticAttention
from attn_cnn_jax.run import Run

ROOT = pathlib.Path(__file__).parent.parent
GUIDE = (ROOT / "docs/new_attention.md").read_text(encoding="utf-8")


@pytest.fixture
def window(tmp_path):
    """The guide's file; its names are forgotten afterwards."""
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    path = tmp_path / "window_attention.py"
    path.write_text(code, encoding="utf-8")
    yield path
    ATTENTIONS.pop("window", None)
    config_lib.ATTENTION_FIELDS.pop("window", None)


def test_the_guides_own_tests_pass(window):
    arguments = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", window]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_the_guides_layer_trains_and_is_evaluated(window, tiny_config, tmp_path):
    variants.load(window)
    variants.load(window)  # as where --config and --variant name the same file
    config = tiny_config(num_epochs=1)
    config.schedule.warmup_epochs = 0.0
    config.model.attention = {"name": "window", "dropout_rate": 0.1, "radius": 1}
    result = train.train(config, tmp_path / "run")
    again = Run(tmp_path / "run").evaluate()
    assert again["accuracy"] == result["accuracy"]
    config.model.attention["radius"] = 0
    with pytest.raises(UserError, match="attention.radius is 0"):
        config_lib.check(config)


def test_a_run_of_a_variant_that_was_not_added_names_it(tiny_config):
    config = tiny_config()
    config.model.attention = {"name": "window", "dropout_rate": 0.1, "radius": 1}
    with pytest.raises(UserError, match="attention.name is 'window'.*quadratic"):
        config_lib.check(config)


def test_a_name_of_the_package_is_not_taken():
    with pytest.raises(ValueError, match="quadratic_isotropic already"):
        variants.add_attention("quadratic_isotropic", QuadraticAttention)
    assert ATTENTIONS["quadratic_isotropic"] is not QuadraticAttention


def test_a_class_of_the_same_name_does_not_take_it(tmp_path):
    """The package's own is not told by the name of its class."""
    path = tmp_path / "mine.py"
    path.write_text(
        "from attn_cnn_jax.variants import add_attention\n"
        "class MultiHeadAttention: pass\n"
        "add_attention('multi_head', MultiHeadAttention)\n"
    )
    known = ATTENTIONS["multi_head"]
    with pytest.raises(UserError, match="mine.py.*multi_head already"):
        variants.load(path)
    assert ATTENTIONS["multi_head"] is known


def test_two_files_do_not_share_a_name(window, tmp_path):
    variants.load(window)
    known = ATTENTIONS["window"]
    other = tmp_path / "other.py"
    other.write_text(window.read_text())
    with pytest.raises(UserError, match="other.py.*window already"):
        variants.load(other)
    assert ATTENTIONS["window"] is known


def test_a_file_may_add_a_partial_twice(window, monkeypatch):
    """Under another path to it, too, as --config and --variant may give."""
    code = window.read_text()
    assert "WindowAttention, radius=1)" in code
    code = code.replace("WindowAttention, radius=1)", "partial(WindowAttention))")
    window.write_text(f"from functools import partial\n{code}")
    variants.load(window)
    monkeypatch.chdir(window.parent)
    variants.load(window.name)
    assert ATTENTIONS["window"].func.__name__ == "WindowAttention"


@pytest.mark.parametrize("text, said", [(None, "not a Python"), ("1/0", "ZeroDiv")])
def test_a_file_that_cannot_be_imported_is_named(tmp_path, text, said):
    path = tmp_path / "mine.py"
    if text:
        path.write_text(text)
    with pytest.raises(UserError, match=f"mine.py.*{said}"):
        variants.load(path)


def test_the_commands_name_files_that_exist_or_are_the_guides():
    commands = re.findall(r"^\.venv/bin/python -m (.*)$", GUIDE, re.MULTILINE)
    assert len(commands) == 4
    assert all("window_attention" in command for command in commands)
