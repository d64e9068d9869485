"""Training: resumed = uninterrupted, one device = eight, and what stops a run."""

import contextlib
import functools
import json
import os
import shutil
import signal
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from attn_cnn_jax import (
    checkpoint,
    data,
    models,
    optim,
    parallel,
    records,
    signals,
    train,
)
from attn_cnn_jax import config as config_lib
from attn_cnn_jax.checkpoint.folder import load_record
from attn_cnn_jax.config.record import flatten
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.timetable import Timetable


def assert_same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def parts_of(config):
    """The dataset, the model and the optimizer of a config."""
    dataset = data.load(config.dataset)
    schedule = Timetable(config, len(dataset.train)).schedule
    optimizer = optim.make_optimizer(config.optimizer, schedule)
    return dataset, models.build(config.model, dataset.num_classes), optimizer


def begin(config):
    """The state before the first step, fetched."""
    dataset, model, optimizer = parts_of(config)
    draw = functools.partial(train.initial_state, config, model, optimizer, dataset)
    return jax.device_get(jax.jit(draw)())


def run_steps(config, mesh, num_steps, start=None):
    """The state after `num_steps` steps on `mesh`, and the loss of each, fetched."""
    dataset, model, optimizer = parts_of(config)
    state = parallel.replicate(begin(config) if start is None else start, mesh)
    step = train.make_train_step(config, model, optimizer, dataset, mesh)
    feed = parallel.Feed(dataset.train, mesh, config.dataset.placement)
    length = config.steps_per_dispatch
    block = parallel.compile_blocks(step, feed, length)
    rows = data.epoch_rows(config.seed, 0, feed.num_images, config.batch_size)
    losses = []
    for first in range(0, num_steps, length):
        of_block = rows[first : min(first + length, num_steps)]
        before, (state, sums) = state, block(state, of_block)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before))  # donated
        losses += [float(v) for s in sums for v in np.ravel(s.loss)][: len(of_block)]
    return jax.device_get(state), losses


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


FAMILIES = [
    "quadratic_isotropic",
    "learned_w_content",
    "resnet",
    "learned_w_content_report ha",
    "san pairwise",
    "san patchwise",
    "san_hierarchical pairwise",
    "vit report",
    "vit standard ha",
]
# Of each kind of network one trains in every `make test`.
OFTEN = {"quadratic_isotropic", "learned_w_content", "resnet", "san pairwise"}
OFTEN |= {"san_hierarchical pairwise", "vit standard ha"}
CASES = [("quadratic_isotropic", "float32", 1e-5)]
CASES += [
    pytest.param(
        *(family, "float64", 1e-10),
        marks=() if family in OFTEN else pytest.mark.soak,
    )
    for family in FAMILIES
]


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
        start = off_the_kinks(begin(config))
        one, _ = run_steps(config, parallel.make_mesh(jax.devices()[:1]), 5, start)
        eight, _ = run_steps(config, parallel.make_mesh(), 5, start)  # 13 each

    def compare(a, b):
        scale = max(np.abs(a).max(), 1e-6)  # a bias without effect stays about 0
        assert np.abs(a - b).max() <= tolerance * scale

    jax.tree.map(compare, one.variables, eight.variables)
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), start, one)
    assert max(jax.tree.leaves(moved.variables)) > 1e-3  # there was something to learn


def test_dropout_and_augmentation_do_not_depend_on_the_devices(tiny_config):
    one, _ = run_steps(tiny_config(), parallel.make_mesh(jax.devices()[:1]), 3)
    eight, _ = run_steps(tiny_config(), parallel.make_mesh(), 3)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        one.variables,
        eight.variables,
    )


@pytest.mark.parametrize(
    "attention",
    [
        pytest.param("quadratic_isotropic", marks=pytest.mark.soak),
        "learned_wo_content",
    ],
)
def test_micro_batches_train_like_the_batch(attention, tiny_config):
    """Masks included, be they of the batch or of an image; on one device and eight."""
    config = tiny_config(attention, batch_size=96)
    config.model.compute_dtype = "float64"
    with jax.enable_x64(True):
        start = begin(config)
        whole, losses = run_steps(config, parallel.make_mesh(), 3, start)
        config.micro_batch_size = 32
        config.model.update(remat=True, query_chunk=3)  # they go together
        for mesh in (parallel.make_mesh(jax.devices()[:1]), parallel.make_mesh()):
            parts, sums = run_steps(config, mesh, 3, start)
            np.testing.assert_allclose(sums, losses, rtol=1e-12)
            jax.tree.map(
                lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12),
                parts.variables,
                whole.variables,
            )


def test_the_compiled_update_is_that_of_a_textbook_pmap(tiny_config):
    """`jax.pmap` over shards of the batch, gradients averaged with `pmean`."""
    config = without_dropout(tiny_config(batch_size=96))
    config.dataset.update(crop_padding=0, flip=False)
    dataset, model, optimizer = parts_of(config)
    ours, _ = run_steps(config, parallel.make_mesh(), 3)

    def update(params, opt_state, images, labels):
        def loss(params):
            logits = model.apply({"params": params}, images, train=True)
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return losses.mean()

        grads = jax.lax.pmean(jax.grad(loss)(params), "devices")
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    def copies(tree):
        return jax.tree.map(lambda leaf: jnp.stack([leaf] * 8), tree)

    state = begin(config)
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
            states.append(run_steps(config, parallel.make_mesh(), 3)[0])
    assert_same(states[0].variables, states[2].variables)
    assert_same(states[1].variables, states[3].variables)


def interrupt_after(monkeypatch, blocks, number=signal.SIGTERM):
    """Send ourselves a signal when the loop asks after so many blocks of steps."""
    original, asked = signals.StopSignals.received, []

    def received(self):
        asked.append(None)
        if len(asked) == blocks:
            os.kill(os.getpid(), number)
        return original(self)

    monkeypatch.setattr(signals.StopSignals, "received", received)


def training_lines(workdir):
    """All records, without what the clock says."""
    lines = [r for r in records.read(workdir) if r["split"] != records.GOODPUT]
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


@pytest.mark.parametrize("random", ["augmentation", "dropout", "nothing"])
def test_what_is_random_differs_from_step_to_step(random, tiny_config):
    """And in nothing else: the same variables and batch, only the step is another."""
    config = tiny_config()
    config.model.num_layers = 1
    if random != "dropout":
        config = without_dropout(config)
    if random != "augmentation":
        config.dataset.update(crop_padding=0, flip=False)
    dataset, model, optimizer = parts_of(config)
    mesh = parallel.make_mesh(jax.devices()[:1])
    step = jax.jit(train.make_train_step(config, model, optimizer, dataset, mesh))
    source = parallel.Feed(dataset.train, mesh)(np.arange(100, dtype=np.int32))
    start = begin(config)
    losses = [
        float(step(start.replace(step=np.int32(number)), source)[1].loss)
        for number in (0, 1, 2, 1)
    ]
    assert len(set(losses)) == (1 if random == "nothing" else 3)
    assert losses[1] == losses[3]


@pytest.fixture
def loops(monkeypatch):
    """A CPU runs a block as one program too, as an accelerator does.

    Without optimisations, as in the tests, the body of a loop has the bits of a step.
    """
    monkeypatch.setattr(parallel, "batches_per_program", lambda mesh, wanted: wanted)


@pytest.mark.parametrize("placement", ["device", "host"])
def test_a_block_as_one_program_is_its_steps(placement, tiny_config, loops):
    """5 steps, one by one and in blocks of 3, of which the last is shorter."""
    found = []
    for length in (1, 3):
        config = tiny_config(steps_per_dispatch=length, batch_size=96)
        config.dataset.placement = placement
        config.model.num_layers = 1
        found.append(run_steps(config, parallel.make_mesh(), 5))
    (singly, losses), (together, of_block) = found
    assert len(set(losses)) == 5 and singly.step == 5
    assert_same(together, singly)
    assert of_block == losses


def test_on_cpus_blocks_are_steps_and_elsewhere_loops():
    mesh = mock.Mock(spec=jax.sharding.Mesh)
    mesh.devices = np.array([mock.Mock(platform="gpu")])
    assert parallel.batches_per_program(mesh, 7) == 7
    assert parallel.batches_per_program(parallel.make_mesh(), 7) == 1


def test_the_length_of_blocks_changes_nothing(
    tiny_config, tmp_path, monkeypatch, loops
):
    """A save, an epoch and what follows it end a block early; a signal does not."""
    config = tiny_config(log_every_steps=4, checkpoint_every_steps=5)
    config.update(snapshot_every_epochs=1, checkpoints_to_keep=9)
    config.model.num_layers = 1
    for length in (1, 3, 7):
        config.steps_per_dispatch = length
        train.train(config, tmp_path / str(length))
    with monkeypatch.context() as patch:
        interrupt_after(patch, 1)
        with pytest.raises(signals.Stopped) as stopped:
            train.train(config, tmp_path / "resumed")
    assert stopped.value.step == 5  # of 7: a save is due
    with monkeypatch.context() as patch:
        interrupt_after(patch, 1)
        config.steps_per_dispatch = 3
        with pytest.raises(signals.Stopped) as stopped:
            train.train(config, tmp_path / "resumed")
    assert stopped.value.step == 8
    config.steps_per_dispatch = 7
    train.train(config, tmp_path / "resumed")
    saved = [5, 10, 14, 15, 20, 25, 28]
    lines = training_lines(tmp_path / "1")
    assert [line["step"] for line in lines if line["split"] == "train"] == [
        *range(4, 29, 4)
    ]
    for name in ("1", "3", "7", "resumed"):
        folders = (tmp_path / name / "checkpoints").iterdir()
        also = {8} if name == "resumed" else set()
        assert {int(folder.name) for folder in folders} == {*saved, *also}
        assert training_lines(tmp_path / name) == lines
        for step in saved:  # parameters, optimizer and what goes on with them
            whole, other = (
                load_record(tmp_path / run / "checkpoints" / str(step))
                for run in ("1", name)
            )
            for found in (whole, other):  # images/s are part of its digest
                assert found["progress"]["records"].pop("chain")
                assert found["progress"].pop("goodput")
            for part in ("digests", "progress", "accuracy"):
                assert whole[part] == other[part]
        snapshots = (tmp_path / name / "snapshots").iterdir()
        assert sorted(int(folder.name) for folder in snapshots) == [0, 14, 28]


def test_a_second_ctrl_c_does_not_wait_for_the_save():
    before = signal.getsignal(signal.SIGINT)
    with signals.StopSignals() as stop:
        assert stop.received() == 0
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.received() == stop.received() == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


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
    splits = [line["split"] for line in records.read(tmp_path)]
    assert splits == ["train", "test", "goodput"]


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
    logged = [line for line in records.read(tmp_path) if line["split"] == "train"]
    assert all(np.isfinite(line["loss"]) for line in logged)


def test_the_step_of_a_loss_that_is_not_finite_is_named(
    tiny_config, tmp_path, monkeypatch
):
    """The loss is made infinite in one step, in the middle of a logging interval."""
    original = train.make_train_step

    def make_train_step(*parts):
        step = original(*parts)

        def broken(state, source):
            after, sums = step(state, source)
            return after, sums.replace(loss=sums.loss / (state.step != 5))

        return broken

    monkeypatch.setattr(train, "make_train_step", make_train_step)
    with pytest.raises(UserError, match="loss of step 6 is inf"):
        train.train(tiny_config(steps_per_dispatch=4), tmp_path)
    assert checkpoint.steps(tmp_path) == []


def test_best_is_chosen_on_the_validation_images_where_there_are_any(
    tiny_config, tmp_path
):
    config = tiny_config()
    config.dataset.validation_fraction = 0.2
    result = train.train(config, tmp_path)
    lines = records.read(tmp_path)
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
    assert_same(first, begin(tiny_config()).variables)


def test_a_snapshot_that_a_kill_prevented_is_made_when_the_run_goes_on(
    tiny_config, tmp_path
):
    config = tiny_config(num_epochs=1, snapshot_every_epochs=1)
    config.schedule.warmup_epochs = 0.0
    train.train(config, tmp_path)
    shutil.rmtree(tmp_path / "snapshots" / "14")
    train.train(config, tmp_path)
    assert checkpoint.snapshots(tmp_path) == [0, 14]


@pytest.fixture
def evaluated_as(monkeypatch):
    """`evaluated_as(0.25, ...)`: the accuracies that the evaluations will find."""

    def set_accuracies(*accuracies):
        left = iter(accuracies)

        def evaluate(variables):
            return {"test": {"loss": 1.0, "accuracy": next(left), "images": 360}}

        monkeypatch.setattr(train, "make_evaluation", lambda *parts: evaluate)

    return set_accuracies


def saved_with(workdir):
    """The accuracy that each checkpoint was saved with."""
    folders = (workdir / "checkpoints").iterdir()
    return {int(path.name): load_record(path)["accuracy"] for path in folders}


def test_the_best_of_equal_accuracies_is_the_latest(
    tiny_config, tmp_path, evaluated_as, capsys
):
    evaluated_as(0.25, 0.75, 0.75, 0.5)
    result = train.train(tiny_config(batch_size=400, num_epochs=4), tmp_path)
    assert result["accuracy"] == 0.5
    last = load_record(tmp_path / "checkpoints" / "12")
    assert last["progress"]["best"] == {"accuracy": 0.75, "step": 9}
    assert checkpoint.load(tmp_path, "best").step == 9
    assert "best accuracy 0.7500 after step 9;" in capsys.readouterr().out


def test_an_evaluation_is_saved_if_it_is_the_best_or_a_save_is_due(
    tiny_config, tmp_path, evaluated_as
):
    """3 steps an epoch: epochs 1 and 3 are the best so far, epoch 4 is due."""
    config = tiny_config(batch_size=400, num_epochs=7, checkpoints_to_keep=9)
    config.checkpoint_every_steps = 4
    evaluated_as(0.5, 0.25, 0.75, 0.5, 0.25, 0.0, 0.25)
    train.train(config, tmp_path / "due")
    saves = {3: 0.5, 4: None, 8: None, 9: 0.75, 12: 0.5, 16: None, 20: None, 21: 0.25}
    assert saved_with(tmp_path / "due") == saves
    assert checkpoint.load(tmp_path / "due", "best").step == 9
    config.checkpoint_every_steps = 0
    evaluated_as(0.5, 0.25, 0.75, 0.5, 0.25, 0.0, 0.25)
    train.train(config, tmp_path / "never due")
    assert saved_with(tmp_path / "never due") == {3: 0.5, 9: 0.75, 21: 0.25}


def test_a_last_state_that_is_not_finite_ends_the_run_with_an_error(
    tiny_config, tmp_path, monkeypatch, capsys
):
    """Though its loss, of before the update, was."""
    original = train.make_train_step

    def make_train_step(*parts):
        step = original(*parts)

        def broken(state, source):
            after, sums = step(state, source)
            worst = jnp.where(after.step == 14, jnp.nan, 0.0)
            return jax.tree.map(
                lambda leaf: leaf + worst.astype(leaf.dtype), after
            ), sums

        return broken

    monkeypatch.setattr(train, "make_train_step", make_train_step)
    config = tiny_config(num_epochs=1)
    config.schedule.warmup_epochs = 0.0
    with pytest.raises(UserError, match="after step 14 .* not finite"):
        train.train(config, tmp_path)
    assert checkpoint.steps(tmp_path) == []
    assert "complete:" not in capsys.readouterr().out


def test_the_workdir_says_what_computed_it(tiny_config, tmp_path):
    config = tiny_config(num_epochs=1)
    config.schedule.warmup_epochs = 0.0
    train.train(config, tmp_path)
    assert checkpoint.read_config(tmp_path) == config
    (line,) = (tmp_path / "environment.jsonl").read_text().splitlines()
    line = json.loads(line)
    assert line["device_kind"] == "cpu" and line["devices"] == 8
    assert line["jax"] == jax.__version__ and line["arithmetic"] == "float32"
