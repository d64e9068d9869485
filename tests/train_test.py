"""Training: resumed = uninterrupted, one device = eight, and what stops a run."""

import contextlib
import json
import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from attn_cnn_jax import checkpoint, data, metrics, parallel, signals, train
from attn_cnn_jax import config as config_lib
from attn_cnn_jax import task as task_lib
from attn_cnn_jax.config.record import flatten
from attn_cnn_jax.errors import UserError


def assert_same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def run_steps(task, mesh, num_steps, start=None):
    """The state after `num_steps` steps on `mesh`, fetched."""
    start = jax.jit(task.initial_state)() if start is None else start
    state = parallel.replicate(start, mesh)
    step = task.make_train_step(mesh)
    feed = parallel.Feed(task.dataset.train, mesh, task.config.dataset.placement)
    config = task.config
    rows = data.epoch_rows(config.seed, 0, feed.num_images, config.batch_size)
    for batch in rows[:num_steps]:
        state, _ = step(state, feed(batch))
    return jax.device_get(state)


@contextlib.contextmanager
def optimised(on):
    """XLA's optimisations, which the tests leave out elsewhere, for a test."""
    jax.config.update("jax_disable_most_optimizations", not on)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


def without_dropout(config):
    with config.unlocked():
        for field in flatten(config.model):
            block = config.model.attention if "." in field else config.model
            if field.endswith("dropout_rate"):
                block[field.rsplit(".", 1)[-1]] = 0.0
    return config


def off_the_kinks(state):
    """`state` with other biases: a SAN starts on a kink, where rounding decides.

    The offset of the middle tap is 0, and so are its mean over a map and the bias.
    """
    rng = np.random.default_rng(0)

    def moved(path, leaf):
        if path[-1].key != "bias":
            return leaf
        return leaf + (0.1 * rng.normal(size=leaf.shape)).astype(leaf.dtype)

    params = jax.tree_util.tree_map_with_path(moved, state.variables["params"])
    return state.replace(variables={**state.variables, "params": params})


def small_model(family):
    """`config.model` of a family, for images of 8 x 8 pixels; None: `tiny_config`'s."""
    if family == "resnet":
        model = config_lib.resnet("resnet10")
        model.width = 4
    elif family.startswith("san_hierarchical"):
        model = config_lib.san_hierarchical(family.split()[1])
        model.update(width=32, num_passes=2)
    elif family.startswith("san"):
        model = config_lib.san(family.split()[1])
        model.update(widths=(32, 64), num_blocks=(1, 1), kernel_sizes=(3, 3))
    elif family.startswith("vit"):
        model = config_lib.vit(family.split()[1])
        model.update(stem_width=4, width=8, num_layers=2, num_heads=2)
        model.update(head_dim=8, mlp_dim=8, share_weights=family.endswith("ha"))
    elif family.endswith(" ha"):
        model = config_lib.self_attention(family.split()[0])
        model.update(width=16, num_layers=2, num_heads=4, mlp_dim=16)
        model.attention.update(project_values=True, transposed=True)
        model.share_weights = True
    else:
        return None
    return model


BOTH_DTYPES = ["quadratic_isotropic", "learned_w_content", "resnet"]
REPORTS = [
    "learned_w_content_report ha",
    "san pairwise",
    "san patchwise",
    "san_hierarchical pairwise",
    "vit report",
    "vit standard ha",
]
CASES = [(family, "float32", 1e-5) for family in BOTH_DTYPES]
CASES += [(family, "float64", 1e-10) for family in BOTH_DTYPES + REPORTS]


@pytest.mark.parametrize("family, dtype, tolerance", CASES)
def test_eight_devices_train_like_one(family, dtype, tolerance, tiny_config):
    model = small_model(family)
    config = tiny_config(*([family] if model is None else []))
    config.model = config.model if model is None else model
    config = without_dropout(config)
    config.model.compute_dtype = dtype
    # One case as users run it; the others compile fast.
    user = dtype == "float32" and config.model.name == "self_attention"
    with jax.enable_x64(dtype == "float64"), optimised(user):
        task = task_lib.Task.of(config, data.load(config.dataset))
        start = off_the_kinks(jax.device_get(jax.jit(task.initial_state)()))
        steps = 5 if family in REPORTS else 10
        one = run_steps(task, parallel.make_mesh(jax.devices()[:1]), steps, start)
        eight = run_steps(task, parallel.make_mesh(), steps, start)  # 13 images each

    def compare(a, b):
        scale = max(np.abs(a).max(), 1e-6)  # a bias without effect stays about 0
        assert np.abs(a - b).max() <= tolerance * scale

    jax.tree.map(compare, one.variables, eight.variables)
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), start, one)
    assert max(jax.tree.leaves(moved.variables)) > 1e-3  # there was something to learn


def test_dropout_and_augmentation_do_not_depend_on_the_devices(tiny_config):
    task = task_lib.Task.of(tiny_config(), data.load(tiny_config().dataset))
    one = run_steps(task, parallel.make_mesh(jax.devices()[:1]), 3)
    eight = run_steps(task, parallel.make_mesh(), 3)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        one.variables,
        eight.variables,
    )


def test_the_compiled_update_is_that_of_a_textbook_pmap(tiny_config):
    """`jax.pmap` over shards of the batch, gradients averaged with `pmean`."""
    config = without_dropout(tiny_config(batch_size=96))
    config.dataset.update(crop_padding=0, flip=False)
    dataset = data.load(config.dataset)
    task = task_lib.Task.of(config, dataset)
    ours = run_steps(task, parallel.make_mesh(), 3)

    def update(params, opt_state, images, labels):
        def loss(params):
            logits = task.model.apply({"params": params}, images, train=True)
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return losses.mean()

        grads = jax.lax.pmean(jax.grad(loss)(params), "devices")
        updates, opt_state = task.optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    def copies(tree):
        return jax.tree.map(lambda leaf: jnp.stack([leaf] * 8), tree)

    state = task.initial_state()
    params, opt_state = copies(state.variables["params"]), copies(state.opt_state)
    step = jax.pmap(update, axis_name="devices")
    for rows in data.epoch_rows(config.seed, 0, len(dataset.train), 96)[:3]:
        images = data.normalize(
            jnp.asarray(dataset.train.images[rows]), dataset.mean, dataset.std
        )
        images = images.reshape(8, 12, *images.shape[1:])
        labels = dataset.train.labels[rows].reshape(8, 12)
        params, opt_state = step(params, opt_state, images, labels)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b[0], rtol=1e-4, atol=1e-6),
        ours.variables["params"],
        jax.device_get(params),
    )


def test_images_on_the_host_train_like_images_on_the_device(tiny_config):
    states = []
    for placement in ("device", "host"):
        for batch_size in (96, 100):  # split evenly over 8 devices, and not
            config = tiny_config(batch_size=batch_size)
            config.dataset.placement = placement
            task = task_lib.Task.of(config, data.load(config.dataset))
            states.append(run_steps(task, parallel.make_mesh(), 3))
    assert_same(states[0].variables, states[2].variables)
    assert_same(states[1].variables, states[3].variables)


def interrupt_after(monkeypatch, step, number=signal.SIGTERM):
    """Send ourselves a signal when the loop asks after `step`."""
    original = signals.StopSignals.received

    def received(self, current):
        if current == step:
            os.kill(os.getpid(), number)
        return original(self, current)

    monkeypatch.setattr(signals.StopSignals, "received", received)


def training_lines(workdir):
    lines = metrics.read(workdir)
    for line in lines:
        line.pop("images_per_second", None)
    return lines


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_and_resumed_run_ends_like_an_uninterrupted_one(
    tiny_config, tmp_path, monkeypatch, number
):
    config = tiny_config(log_every_steps=4)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train.train(config, whole)
    with monkeypatch.context() as patch:
        interrupt_after(patch, 18, number)
        with pytest.raises(signals.Stopped) as stopped:
            train.train(config, parts)
    assert stopped.value.signal_number == number
    assert checkpoint.steps(parts) == [14, 18]
    train.train(config, parts)
    ended, resumed = checkpoint.load(whole), checkpoint.load(parts)
    assert resumed.step == ended.step == 28
    assert_same(resumed.variables, ended.variables)
    assert training_lines(parts) == training_lines(whole)


def test_a_resumed_run_draws_the_class_tokens_of_an_uninterrupted_one(
    tiny_config, tmp_path, monkeypatch
):
    config = tiny_config(num_epochs=1, log_every_steps=4)
    config.schedule.warmup_epochs = 0.0
    config.model = small_model("vit report")
    config.model.readout = "token"  # all that is learned comes from the random token
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train.train(config, whole)
    with monkeypatch.context() as patch:
        interrupt_after(patch, 6)
        with pytest.raises(signals.Stopped):
            train.train(config, parts)
    train.train(config, parts)
    ended, resumed = checkpoint.load(whole), checkpoint.load(parts)
    assert resumed.step == ended.step == 14
    assert_same(resumed.variables, ended.variables)
    assert training_lines(parts) == training_lines(whole)


def test_a_finished_run_is_only_evaluated_again(tiny_config, tmp_path):
    config = tiny_config(num_epochs=1, log_every_steps=14)
    config.schedule.warmup_epochs = 0.0
    first = train.train(config, tmp_path)
    before = checkpoint.load(tmp_path).variables
    assert train.train(config, tmp_path) == first
    assert_same(checkpoint.load(tmp_path).variables, before)
    splits = [line["split"] for line in metrics.read(tmp_path)]
    assert splits == ["train", "test"]


def test_another_config_is_refused_but_logging_may_change(
    tiny_config, tmp_path, monkeypatch
):
    config = tiny_config(num_epochs=1)
    config.schedule.warmup_epochs = 0.0
    interrupt_after(monkeypatch, 5)
    with pytest.raises(signals.Stopped):
        train.train(config, tmp_path)
    monkeypatch.undo()
    other = config.copy_and_resolve_references()
    other.optimizer.learning_rate = 0.05
    with pytest.raises(UserError, match=r"optimizer.learning_rate: 0.1 -> 0.05"):
        train.train(other, tmp_path)
    assert checkpoint.read_config(tmp_path) == config
    config.log_every_steps = 7
    train.train(config, tmp_path)
    assert checkpoint.load(tmp_path).step == 14


def test_a_loss_that_is_not_finite_stops_the_run_and_is_not_saved(
    tiny_config, tmp_path
):
    config = tiny_config(checkpoint_every_steps=1)
    config.optimizer.learning_rate = 1e30
    with pytest.raises(
        UserError, match=r"(loss of step \d+|after step \d+ .* not finite)"
    ):
        train.train(config, tmp_path)
    for step in checkpoint.steps(tmp_path):
        loaded = checkpoint.load(tmp_path, step)
        for leaf in jax.tree.leaves(loaded.variables):
            assert np.isfinite(leaf).all()
    logged = [line for line in metrics.read(tmp_path) if line["split"] == "train"]
    assert all(np.isfinite(line["loss"]) for line in logged)


def test_the_step_of_a_loss_that_is_not_finite_is_named(
    tiny_config, tmp_path, monkeypatch
):
    """The loss is made infinite in one step, in the middle of a logging interval."""
    original = task_lib.Task.make_train_step

    def make_train_step(self, mesh):
        step = original(self, mesh)

        def broken(state, source):
            number = int(state.step) + 1
            state, sums = step(state, source)
            return state, sums.replace(loss=sums.loss / (number != 6))

        return broken

    monkeypatch.setattr(task_lib.Task, "make_train_step", make_train_step)
    with np.errstate(divide="ignore"), pytest.raises(UserError, match="loss of step 6"):
        train.train(tiny_config(), tmp_path)
    assert checkpoint.steps(tmp_path) == []


def test_best_is_chosen_on_the_validation_images_where_there_are_any(
    tiny_config, tmp_path
):
    config = tiny_config()
    config.dataset.validation_fraction = 0.2
    result = train.train(config, tmp_path)
    lines = metrics.read(tmp_path)
    validation = [line for line in lines if line["split"] == "validation"]
    assert [line["images"] for line in validation] == [287, 287]
    assert result["images"] == 287
    best = checkpoint.load(tmp_path, "best")
    accuracies = {line["step"]: line["accuracy"] for line in validation}
    assert accuracies[best.step] == max(accuracies.values())


def test_snapshots_hold_the_variables_of_their_epochs(tiny_config, tmp_path):
    train.train(tiny_config(snapshot_every_epochs=1), tmp_path)
    names = sorted(int(path.name) for path in (tmp_path / "snapshots").iterdir())
    assert names == [0, 14, 28]
    first = checkpoint.load(tmp_path, 0).variables
    task_config = tiny_config(snapshot_every_epochs=1)
    task = task_lib.Task.of(task_config, data.load(task_config.dataset))
    assert_same(first, jax.device_get(jax.jit(task.initial_state)().variables))


def test_the_workdir_says_what_computed_it(tiny_config, tmp_path):
    config = tiny_config(num_epochs=1)
    config.schedule.warmup_epochs = 0.0
    train.train(config, tmp_path)
    assert checkpoint.read_config(tmp_path) == config
    (line,) = (tmp_path / "environment.jsonl").read_text().splitlines()
    line = json.loads(line)
    assert line["device_kind"] == "cpu" and line["devices"] == 8
    assert line["jax"] == jax.__version__
