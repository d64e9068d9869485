"""docs/new_attention.md: its file passes its own tests, trains, and is read back."""

import functools

import jax
import pytest

from attn_cnn_jax import checkpoint, models, train, variants
from attn_cnn_jax import config as config_lib
from attn_cnn_jax.analysis.ablation import ablate
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


MISTAKEN = """
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from attn_cnn_jax.models.attention import Parameter, PixelAttention, value_params
from attn_cnn_jax.models.scores import mix
from attn_cnn_jax.variants import add_attention

class Silent(nn.Module):
    num_heads: int
    dropout_rate: float
    param_dtype: Any

    @nn.compact
    def __call__(self, x, keys=None, *, train):
        kernel, bias = value_params(self, self.num_heads, x.shape[-1], self.param_dtype)
        grid = x.shape[1:3]
        probs = jnp.full((1, self.num_heads, *grid, *grid), 1 / (grid[0] * grid[1]))
        self.sow("intermediates", "attention", probs)
        probs = probs.transpose(0, 2, 3, 1, 4, 5)
        return mix(x, probs, kernel) + bias[None, None, None], keys

class Half(PixelAttention):
    def scores(self, x, keys):
        shape = (self.num_heads, 3)
        self.param("gains", nn.initializers.ones, shape, self.param_dtype)
        return jnp.zeros((self.num_heads, *x.shape[1:3], *x.shape[1:3])), keys

class Shared(Half):
    parameters = {**Half.parameters, "gains": Parameter()}

class Crossed(Half):
    parameters = {**Half.parameters, "gains": Parameter(1)}

class Beyond(Half):
    parameters = {**Half.parameters, "gains": Parameter(5)}

class Number(Half):
    parameters = {**Half.parameters, "gains": 1}

for layer in (Silent, Half, Shared, Crossed, Beyond, Number):
    add_attention(layer.__name__.lower(), layer)
"""


@pytest.fixture
def mistaken(tmp_path, tiny_config):
    """A workdir of an attention that does not say of its parameters what is so."""
    path = tmp_path / "mistaken.py"
    path.write_text(MISTAKEN)
    known = set(ATTENTIONS)
    variants.load(path)

    def write(name: str):
        config = tiny_config()
        config.model.attention = {"name": name, "dropout_rate": 0.0}
        model = models.build(config.model, 10)
        variables = jax.jit(
            lambda: models.initial_variables(model, jax.random.key(0), (8, 8, 1))
        )()
        checkpoint.write_variables(tmp_path / "run", config, jax.device_get(variables))
        return Run(tmp_path / "run")

    yield write
    for name in set(ATTENTIONS) - known:
        del ATTENTIONS[name]


@pytest.mark.parametrize(
    "name, message",
    [
        ("silent", "silent does not declare the head axes of .*value_kernel"),
        ("half", "half does not declare the head axes of its parameters gains"),
        ("shared", "pruned network does not fit .*gains has shape .4, 3., not .3, 3."),
        ("crossed", r"gains \[4, 3\] that axis 1 counts the 4 heads"),
        ("beyond", r"gains \[4, 3\] that axis 5 counts the 4 heads"),
        ("number", r"gains \[4, 3\] that axis 1 counts the 4 heads"),
    ],
)
def test_heads_that_are_not_declared_as_they_are_stay(name, message, mistaken):
    """The pruned run could not be evaluated."""
    run = mistaken(name)
    pruned = run.workdir.parent / "pruned"
    with pytest.raises((UserError, models.ModelError), match=message):
        prune(run.workdir, pruned, heads=["1:1"])
    assert not pruned.exists()
    known = paper_flops(run.model, run.variables, (8, 8, 1)) if name != "number" else 0
    assert (known is None) == (name != "number")  # `gains` is [4, 3]: how often?


def test_values_that_are_not_declared_are_not_switched_off(mistaken):
    with pytest.raises(UserError, match="silent does not declare which .*make values"):
        ablate(mistaken("silent"), 8)


def test_a_field_may_be_a_block_and_a_name_end_as_the_reports_do(monkeypatch):
    add = functools.partial(monkeypatch.setitem, ATTENTIONS)
    fields = {"window": {"rows": 0, "columns": -1}}
    add("my_report", ATTENTIONS["multi_head"]._replace(fields=fields))
    config = config_lib.base_config()
    config.model = config_lib.self_attention("my_report")
    assert config.model.activation == "gelu" and config.model.attention_dense
    config.model.num_heads = 8
    config_lib.check(config)


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
