"""docs/new_attention.md: its file passes its own tests, trains, and is read back."""

import jax
import pytest

from attn_cnn_jax import checkpoint, models, train, variants
from attn_cnn_jax import config as config_lib
from attn_cnn_jax.analysis.pruning import prune
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention import ATTENTIONS, QuadraticAttention
from attn_cnn_jax.models.flops import paper_flops
from attn_cnn_jax.run import Run


@pytest.fixture
def guide(page):
    return page("new_attention.md")


@pytest.fixture
def window(guide):
    """The guide's file; its names are forgotten afterwards."""
    yield guide.folder / "window_attention.py"
    ATTENTIONS.pop("window", None)


def test_the_guides_own_tests_pass(guide):
    done = guide.run("-m pytest -q window_attention.py")
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
    for radius in (0, -1):  # the range of a field of one's own is one's own
        config.model.attention["radius"] = radius
        config_lib.check(config)
    removal = prune(tmp_path / "run", tmp_path / "pruned", heads=["1:1"])
    assert removal.parameters[0] - removal.parameters[1] == 16 * 16 + 9
    assert Run(tmp_path / "pruned").evaluate()["images"] == 360


UNDECLARED = """
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from attn_cnn_jax.models.attention import PixelAttention, value_params
from attn_cnn_jax.models.scores import mix
from attn_cnn_jax.variants import add_attention

class Blind(nn.Module):
    num_heads: int
    dropout_rate: float
    param_dtype: Any

    @nn.compact
    def __call__(self, x, keys=None, *, train):
        kernel, bias = value_params(self, self.num_heads, x.shape[-1], self.param_dtype)
        grid = x.shape[1:3]
        probs = jnp.full((1, self.num_heads, *grid, *grid), 1 / (grid[0] * grid[1]))
        self.sow("intermediates", "attention", probs)
        return mix(x, probs, kernel) + bias[None, None, None], keys

class Half(PixelAttention):
    def scores(self, x, keys):
        self.param("gains", nn.initializers.ones, (self.num_heads,), self.param_dtype)
        return jnp.zeros((self.num_heads, *x.shape[1:3], *x.shape[1:3])), keys

add_attention("blind", Blind)
add_attention("half", Half)
"""


@pytest.mark.parametrize("name", ["blind", "half"])
def test_heads_of_a_layer_that_does_not_declare_them_are_not_removed(
    name, tiny_config, tmp_path
):
    """Without an axis for every parameter the pruned run could not be evaluated."""
    path = tmp_path / "undeclared.py"
    path.write_text(UNDECLARED)
    variants.load(path)
    try:
        config = tiny_config()
        config.model.attention = {"name": name, "dropout_rate": 0.0}
        model = models.build(config.model, 10)
        variables = jax.jit(
            lambda: models.initial_variables(model, jax.random.key(0), (8, 8, 1))
        )()
        checkpoint.write_variables(tmp_path / "run", config, jax.device_get(variables))
        with pytest.raises(UserError, match=f"{name} does not declare the head ax"):
            prune(tmp_path / "run", tmp_path / "pruned", heads=["1:1"])
        assert not (tmp_path / "pruned").exists()
        known = paper_flops(model, variables, (8, 8, 1))
        assert (known is None) == (name == "blind")
    finally:
        for own in ("blind", "half"):
            ATTENTIONS.pop(own, None)


def test_a_run_of_a_variant_that_was_not_added_names_it(tiny_config):
    config = tiny_config()
    config.model.attention = {"name": "window", "dropout_rate": 0.1, "radius": 1}
    with pytest.raises(UserError, match="attention.name is 'window'.*quadratic"):
        config_lib.check(config)


def test_a_name_of_the_package_is_not_taken():
    with pytest.raises(ValueError, match="quadratic_isotropic already"):
        variants.add_attention("quadratic_isotropic", QuadraticAttention)
    assert ATTENTIONS["quadratic_isotropic"].layer is not QuadraticAttention


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
    assert ATTENTIONS["window"].layer.func.__name__ == "WindowAttention"


@pytest.mark.parametrize("text, said", [(None, "not a Python"), ("1/0", "ZeroDiv")])
def test_a_file_that_cannot_be_imported_is_named(tmp_path, text, said):
    path = tmp_path / "mine.py"
    if text:
        path.write_text(text)
    with pytest.raises(UserError, match=f"mine.py.*{said}"):
        variants.load(path)


def test_the_commands_name_the_guides_file(guide):
    assert len(guide.commands) == 5
    assert all("window_attention" in command for command in guide.commands)
