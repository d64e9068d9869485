"""What a training logs of its heads is what `analyze` counts at that checkpoint."""

import jax
import numpy as np
import pytest

from attn_cnn_jax import checkpoint, data, models, parallel, records, train
from attn_cnn_jax import config as config_lib
from attn_cnn_jax.analysis.attention_maps import MapBatches
from attn_cnn_jax.analysis.heads import head_statistics
from attn_cnn_jax.config import check
from attn_cnn_jax.covered_offsets import Interior, make_coverage, shares
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.results.curves import run_curves
from attn_cnn_jax.run import Run

SQUARE = [(row, column) for row in (-1, 0, 1) for column in (-1, 0, 1)]


def heads_of(workdir) -> dict[int, dict]:
    """The records of heads by step."""
    lines = records.read(workdir)
    return {line["step"]: line for line in lines if line["split"] == "heads"}


def counted(run: Run) -> dict[str, int]:
    """What `analyze --figure=heads` says."""
    return logged(head_statistics(MapBatches(run, run.dataset.test.images[:50])).layers)


def logged(layers) -> dict[str, int]:
    """The numbers of the layers, named as in the log."""
    named = {}
    for layer in layers:
        name = layer.layer.replace(" ", "_")
        named[f"{name}/covered_offsets"] = len(layer.covered)
        named[f"{name}/largest_kernel"] = layer.kernel_size
    return named


def test_the_log_says_what_analyze_says(tiny_config, tmp_path, capsys):
    """Over a training in which the counts change; and nothing else does."""
    one_device = parallel.make_mesh(jax.devices()[:1])
    config = tiny_config(log_heads_every_epochs=1, batch_size=700)
    config.update(snapshot_every_epochs=1)
    config.model.update(num_heads=9, num_layers=2, width=8)
    config.model.attention.update(center_std=1.0, spread_std=2.0)
    config.optimizer.learning_rate = 0.5
    train.train(config, tmp_path / "run", mesh=one_device)
    assert "largest kernel covered: layer 1 " in capsys.readouterr().out
    records = heads_of(tmp_path / "run")
    assert list(records) == [2, 4] == checkpoint.snapshots(tmp_path / "run")[1:]
    run = Run(tmp_path / "run")
    eight_devices = make_coverage(config, run.model, run.dataset, parallel.make_mesh())
    for step, record in records.items():
        assert record.pop("epoch") == step / 2
        wanted = counted(run.at(step))
        assert record == {"step": step, "split": "heads", **wanted}
        assert wanted["layer_1/covered_offsets"] > 0
        assert logged(eight_devices(run.at(step).variables)) == wanted
    # It is no score: curves neither draw it nor call its lines broken.
    [curves] = run_curves([tmp_path / "run"])
    assert list(curves.test_accuracy.epochs) == [1, 2]
    # A run may log or not, and go on with another value.
    config.log_heads_every_epochs = 2
    train.train(config, tmp_path / "run", mesh=one_device)
    assert heads_of(tmp_path / "run").keys() == records.keys()
    config.log_heads_every_epochs = 0
    train.train(config, tmp_path / "never", mesh=one_device)
    assert heads_of(tmp_path / "never") == {}
    never = checkpoint.load(tmp_path / "never")
    jax.tree.map(np.testing.assert_array_equal, never.variables, run.variables)


FAMILIES = {
    "shared learned_w_content": config_lib.self_attention("learned_w_content"),
    "vit": config_lib.vit("report"),
    "san": config_lib.san("patchwise"),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_counts_as_analyze_does(family, tiny_config, tmp_path):
    """Of random variables whose scores are large, so that something is covered."""
    config = tiny_config()
    config.model = FAMILIES[family].copy_and_resolve_references()
    if family == "vit":
        config.model.update(width=16, num_layers=2, num_heads=3, head_dim=4, mlp_dim=16)
        config.model.update(stem_width=4)
    elif family == "san":
        config.model.update(widths=(64, 64), num_blocks=(2, 1), kernel_sizes=(3, 3))
    else:
        config.model.update(width=16, num_layers=2, num_heads=4, mlp_dim=16)
        config.model.share_weights = True
    check(config)
    model = models.build(config.model, 10)
    draw = jax.jit(lambda rng: models.initial_variables(model, rng, (8, 8, 1)))
    variables = jax.device_get(draw(jax.random.key(3)))

    def sharpen(path, leaf):
        name = "/".join(str(entry.key) for entry in path)
        sharp = any(part in name for part in ("query", "key", "embeddings", "relation"))
        return leaf * 8 if sharp else leaf

    variables = jax.tree_util.tree_map_with_path(sharpen, variables)
    checkpoint.write_variables(tmp_path / "run", config, variables)
    run = Run(tmp_path / "run")
    mesh = parallel.make_mesh()
    coverage = make_coverage(config, model, run.dataset, mesh)
    found = coverage(parallel.replicate(variables, mesh))
    batches = MapBatches(run, run.dataset.test.images[:50])
    table = head_statistics(batches)
    assert [(one.layer, one.covered, one.kernel_size) for one in found] == [
        (one.layer, one.covered, one.kernel_size) for one in table.layers
    ]


def test_sharp_heads_cover_their_kernel(tiny_config):
    config = tiny_config()
    config.model.update(num_heads=(9, 4))
    dataset, model = data.load(config.dataset), models.build(config.model, 10)
    draw = jax.jit(lambda rng: models.initial_variables(model, rng, (8, 8, 1)))
    variables = jax.device_get(draw(jax.random.key(0)))
    for block, offsets in (("block_0", SQUARE), ("block_1", SQUARE[3:7])):
        layer = variables["params"][block]["attention"]
        layer["centers"] = np.array(offsets, np.float32)
        layer["spreads"] = np.full(len(offsets), 5.0, np.float32)
    mesh = parallel.make_mesh()
    first, second = make_coverage(config, model, dataset, mesh)(variables)
    assert (first.layer, first.covered, first.kernel_size) == (
        "layer 1",
        tuple(SQUARE),
        3,
    )
    assert (second.covered, second.kernel_size) == (tuple(SQUARE[3:7]), 1)


def test_shares_are_of_what_is_there():
    weights = np.random.default_rng(0).normal(size=(2, 3, 4, 4, 5, 6))
    weights[1, 2, 3, 3] = 0
    found = shares(weights)
    np.testing.assert_allclose(found.sum(axis=(-2, -1)), 1)
    np.testing.assert_array_equal(found[1, 2, 3, 3], np.full((5, 6), 1 / 30))
    first = abs(weights[0, 0, 0, 0])
    np.testing.assert_allclose(found[0, 0, 0, 0], first / first.sum())


def test_no_head_can_be_counted_on_a_grid_of_two(tiny_config):
    assert Interior.of_shape((1, 4, 2, 2, 2, 2)) is None
    config = tiny_config(log_heads_every_epochs=1)
    config.model.patch_size = 4
    dataset, model = data.load(config.dataset), models.build(config.model, 10)
    with pytest.raises(UserError, match="log_heads_every_epochs.*set it to 0"):
        make_coverage(config, model, dataset, parallel.make_mesh())


def test_a_network_without_attention_has_no_heads_to_log(tiny_config):
    config = tiny_config(log_heads_every_epochs=5)
    check(config)
    config.model = config_lib.resnet("resnet18")
    message = (
        "log_heads_every_epochs is 5; it must be 0 for resnet18, a network without"
    )
    with pytest.raises(UserError, match=message):
        check(config)
    config.log_heads_every_epochs = 0
    check(config)
