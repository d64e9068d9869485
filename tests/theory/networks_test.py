"""A ResNet whose convolutions become attention keeps its predictions."""

import functools
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_cnn_jax import checkpoint, models
from attn_cnn_jax import config as config_lib
from attn_cnn_jax.analysis import figures
from attn_cnn_jax.analysis.attention_maps import MapBatches
from attn_cnn_jax.analysis.closest_convolution import closest_convolutions
from attn_cnn_jax.analysis.figure_request import FigureRequest
from attn_cnn_jax.analysis.heads import head_statistics
from attn_cnn_jax.analysis.images import choose_images
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.flops import paper_flops
from attn_cnn_jax.models.resnet import ResidualBlock, attention
from attn_cnn_jax.run import Run
from attn_cnn_jax.theory.conversion import agreement, convert
from attn_cnn_jax.theory.networks import as_attention, as_convolutions


def resnet_config(name: str = "resnet10"):
    config = config_lib.base_config()
    config.model = config_lib.resnet(name)
    config.model.width = 8
    config.dataset.update(name="digits_8x8", crop_padding=0, flip=False)
    config.eval_batch_size = 100
    return config


def drawn_variables(config, image_shape=(8, 8, 1), num_classes=10):
    """Those of a new network, with statistics of BatchNorm as if it were trained."""
    model = models.build(config.model, num_classes)
    variables = models.initial_variables(model, jax.random.key(0), image_shape)
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: (np.asarray(leaf) * rng.uniform(0.5, 2, leaf.shape)).astype("f4"),
        variables,
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The workdir of a ResNet, and what the command made of it."""
    folder = tmp_path_factory.mktemp("convert")
    config = resnet_config()
    checkpoint.write_variables(folder / "resnet", config, drawn_variables(config))
    result = theory_command(
        "convert", f"--workdir={folder / 'resnet'}", f"--output={folder / 'attention'}"
    )
    assert result.returncode == 0, result.stderr
    return folder / "resnet", folder / "attention", result.stdout


def theory_command(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "attn_cnn_jax.theory", *arguments],
        capture_output=True,
        text=True,
    )


def logits(run: Run) -> np.ndarray:
    images = np.asarray(run.dataset.test.images[:64])
    forward = jax.jit(run.forward)
    return np.asarray(forward(run.variables, images, np.arange(64, dtype=np.int32)))


def test_the_predictions_stay(runs):
    before, after = Run(runs[0]), Run(runs[1])
    np.testing.assert_allclose(logits(after), logits(before), atol=1e-4)
    assert np.abs(logits(before)).max() > 0.1
    assert after.evaluate()["accuracy"] == before.evaluate()["accuracy"]


def test_the_command_says_what_it_made(runs):
    assert "12 convolutions are attention layers with 84 heads" in runs[2]
    assert "sharpness 14.56 (one-hot)" in runs[2]
    assert "the same class on 360 of 360 test images, logits within" in runs[2]
    config = json.loads((runs[1] / "config.json").read_text())
    assert config["model"]["name"] == "resnet10_as_attention"


def test_its_heads_are_analysed_like_any_other(runs):
    run = Run(runs[1])
    table = head_statistics(MapBatches(run, np.asarray(run.dataset.test.images[:2])))
    names = [layer.layer for layer in table.layers]
    assert names[:4] == [
        "stem",
        "stage 1 block 1 layer 1",
        "stage 1 block 1 layer 2",
        "stage 2 block 1 layer 1",
    ]
    sizes = {layer.layer: layer.kernel_size for layer in table.layers}
    assert sizes["stem"] == 3 and sizes["stage 2 block 1 shortcut"] == 1


def test_its_layers_have_figures_and_closest_convolutions(runs):
    """Grids of 8 x 8 to 1 x 1, and layers that skip every other query."""
    run = Run(runs[1])
    chosen = choose_images(run.dataset, ["0"])
    request = FigureRequest(run, chosen, chosen, query="5,2")
    [(_, figure)] = figures.draw("query", request)
    shown = {axes.get_label(): axes for axes in figure.axes}
    for layer, query in (("stem", (5, 2)), ("stage 2 block 1 layer 2", (2, 1))):
        axes = shown[f"{layer}, head 1"]
        key = np.argwhere(axes.images[0].get_array() > 0.5)[0]
        np.testing.assert_array_equal(key, np.array(query) - 1)  # its first tap
        corner = axes.patches[-1].get_xy()
        np.testing.assert_allclose(corner, np.array(query[::-1]) - 0.5)
    [table] = closest_convolutions(run, [1])
    scores = {one.layer: one.r_squared(1) for one in table.layers}
    assert 1 - scores["stage 2 block 1 shortcut"] < 1e-10 > scores["stem"] - 0.999


def test_back_to_convolutions(runs):
    """The operations that the papers count are the same, and so is the way back."""
    before, after = Run(runs[0]), Run(runs[1])
    model, variables = as_convolutions(after.config.model, after.variables)
    assert model == before.config.model
    jax.tree.map(np.testing.assert_array_equal, variables, before.variables)
    counts = [
        paper_flops(run.model, run.variables, (8, 8, 1)) for run in (before, after)
    ]
    assert counts[0] == counts[1] > 5e5


@pytest.mark.parametrize("encoding", ["quadratic", "learned"])
def test_bottlenecks_and_learned_tables(encoding):
    """A block with strides, a shortcut and kernels of 1 x 1, in either encoding."""
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.normal(size=(2, 9, 12, 4)), jnp.float32)
    fields = {"width": 4, "stride": 2, "bottleneck": True, "param_dtype": jnp.float32}
    plain = ResidualBlock(**fields)
    variables = plain.init(jax.random.key(0), x, train=False)
    model = config_lib.resnet("resnet50")
    model, converted = as_attention(model, variables, encoding=encoding)
    block = ResidualBlock(
        **fields, convolution=functools.partial(attention, encoding=encoding)
    )
    np.testing.assert_allclose(
        block.apply(jax.device_put(converted), x, train=False),
        plain.apply(variables, x, train=False),
        atol=1e-5,
    )
    _, back = as_convolutions(model, converted)
    jax.tree.map(np.testing.assert_array_equal, back, variables)


def test_a_soft_copy_is_another_network_and_trains(runs, tmp_path):
    soft = convert(runs[0], tmp_path / "soft", sharpness=1.0)
    assert "(not one-hot)" in str(soft)
    run = Run(tmp_path / "soft")
    compared = agreement(Run(runs[0]), run, num_images=130)
    assert compared.num_images == 130 > compared.same
    assert compared.largest_difference > 1e-2
    assert np.abs(logits(run) - logits(Run(runs[0]))).max() > 1e-2
    with pytest.raises(UserError, match="1_conv: its heads are not one-hot"):
        as_convolutions(run.config.model, run.variables)


def test_what_cannot_be_converted_is_refused(runs, tmp_path, tiny_config):
    config = tiny_config()
    model = models.build(config.model, 10)
    variables = models.initial_variables(model, jax.random.key(0), (8, 8, 1))
    checkpoint.write_variables(tmp_path / "other", config, variables)
    for workdir, target, sharpness, message in (
        (tmp_path / "other", tmp_path / "new", None, "is a run of self_attention"),
        (tmp_path, tmp_path / "new", None, "is not the workdir of a run"),
        (runs[0], tmp_path / "new", 1e30, "--sharpness=1e.30 .* overflow float32"),
        (runs[0], runs[1], None, "already holds a run"),
    ):
        with pytest.raises(UserError, match=message):
            convert(workdir, target, sharpness=sharpness)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["prove"], "'prove' is no command; choose from convert, error, fit, pictures"),
        (["convert", "--output=X"], "give the run and the new one"),
        (["error", "--size=40"], "--size=40 is larger than the images of digits"),
    ],
)
def test_mistakes_on_the_command_line(arguments, message):
    result = theory_command(*arguments)
    assert result.returncode == 2
    assert message in result.stderr and result.stderr.count("\n") == 1
