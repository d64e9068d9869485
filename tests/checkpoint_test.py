"""Checkpoints: what is kept, what damage does, and loading from the workdir alone."""

import itertools
import os
import resource
import shutil
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_cnn_jax import checkpoint
from attn_cnn_jax.checkpoint import folder
from attn_cnn_jax.errors import UserError


def arrays(step):
    """Variables and training state that differ from step to step."""
    rng = np.random.default_rng(step)
    params = {"layer": {"kernel": rng.normal(size=(64, 64)).astype(np.float32)}}
    training = {
        "step": np.asarray(step, np.int32),
        "opt_state": ({"trace": rng.normal(size=(300,)).astype(np.float32)}, ()),
    }
    return {"params": params}, training


def like(step=0):
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device),
        arrays(step),
    )


def save(checkpoints, step, accuracy=None):
    checkpoints.save(step, *arrays(step), {"best": accuracy}, accuracy)


@pytest.fixture
def saved(tmp_path, tiny_config):
    """A workdir with the checkpoints 1 and 2, the first the best."""
    with checkpoint.Checkpoints(tmp_path, tiny_config(), keep=2) as checkpoints:
        save(checkpoints, 1, accuracy=0.9)
        save(checkpoints, 2, accuracy=0.5)
    return tmp_path


def restore(workdir, config):
    with checkpoint.Checkpoints(workdir, config) as checkpoints:
        return checkpoints.restore(like())


def assert_is(found, step):
    variables, training = arrays(step)
    assert found.step == step
    jax.tree.map(np.testing.assert_array_equal, found.variables, variables)
    jax.tree.map(np.testing.assert_array_equal, found.training, training)


def test_what_is_saved_comes_back(saved, tiny_config):
    found = restore(saved, tiny_config())
    assert_is(found, 2)
    assert found.config == tiny_config()
    assert found.progress == {"best": 0.5}


def test_an_empty_workdir_has_nothing_to_restore(tmp_path, tiny_config):
    assert restore(tmp_path, tiny_config()) is None


def test_the_best_of_equal_checkpoints_is_the_latest(tmp_path, tiny_config):
    with checkpoint.Checkpoints(tmp_path, tiny_config(), keep=3) as checkpoints:
        for step, accuracy in ((1, 0.9), (2, 0.9), (3, 0.5)):
            save(checkpoints, step, accuracy)
    assert checkpoint.load(tmp_path, "best").step == 2


def test_the_newest_and_the_best_are_kept(tmp_path, tiny_config):
    with checkpoint.Checkpoints(tmp_path, tiny_config(), keep=2) as checkpoints:
        accuracies = {1: 0.1, 2: 0.9, 3: None, 4: 0.8, 5: 0.3, 6: None}
        for step, accuracy in accuracies.items():
            save(checkpoints, step, accuracy)
    assert checkpoint.steps(tmp_path) == [2, 5, 6]
    assert checkpoint.load(tmp_path, "best").step == 2
    assert checkpoint.load(tmp_path).step == 6
    assert checkpoint.load(tmp_path, 5).step == 5
    with pytest.raises(UserError, match="choose last, best or one of 2, 5, 6"):
        checkpoint.load(tmp_path, 4)


def test_newest_best_and_snapshots_survive_every_order_of_accuracies(
    tmp_path, tiny_config
):
    """Of what was ever evaluated the best, of equal ones the latest, is there."""
    orders = set(itertools.permutations((0.2, 0.9, 0.9, None)))
    for number, order in enumerate(sorted(orders, key=str)):
        workdir = tmp_path / str(number)
        with checkpoint.Checkpoints(workdir, tiny_config(), keep=1) as checkpoints:
            evaluated = {}
            for step, accuracy in enumerate(order, 1):
                if step == 2:
                    checkpoints.save_snapshot(step, arrays(step)[0])
                save(checkpoints, step, accuracy)
                checkpoints.wait()
                if accuracy is not None:
                    evaluated[step] = accuracy
                best = max(evaluated, key=lambda s: (evaluated[s], s), default=step)
                resumable = folder.find(workdir, kinds=("checkpoints",))
                assert set(resumable) == {best, step}
        assert checkpoint.snapshots(workdir) == [2]


def files_of(path):
    return sorted(path for path in path.rglob("*") if path.is_file())


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("damage", [truncate, flip, lambda path: path.unlink()])
def test_damage_to_any_file_is_harmless_or_found(saved, tiny_config, tmp_path, damage):
    """Either the values are right, or it is named and checkpoint 1 is used."""
    newest = saved / "checkpoints" / "2"
    fallbacks = 0
    for file in files_of(newest):
        if not file.stat().st_size:
            continue
        copy = tmp_path / "copy"
        shutil.copytree(saved, copy)
        damage(copy / file.relative_to(saved))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with checkpoint.Checkpoints(copy, tiny_config()) as checkpoints:
                found = checkpoints.restore(like())
                save(checkpoints, 3)
        if found.step == 1:
            fallbacks += 1
            assert any("checkpoint 2" in str(w.message) for w in caught), file
            assert checkpoint.steps(copy) == [1, 3]
            assert (copy / "damaged").is_dir()
        assert_is(found, found.step)
        shutil.rmtree(copy)
    assert fallbacks >= 5


def test_when_all_are_damaged_it_says_so_and_starts_nothing(saved, tiny_config):
    for step in (1, 2):
        for file in files_of(saved / "checkpoints" / str(step) / "variables"):
            truncate(file)
    with pytest.raises(UserError, match="no checkpoint .* can be read"):
        restore(saved, tiny_config())
    with pytest.raises(UserError, match="damaged"):
        checkpoint.load(saved)
    assert checkpoint.steps(saved) == [1, 2]


def test_load_names_a_damaged_checkpoint_and_uses_the_one_before(saved):
    flip(
        max(files_of(saved / "checkpoints/2/variables"), key=lambda f: f.stat().st_size)
    )
    with pytest.warns(UserWarning, match="2 is damaged.*using 1 instead"):
        assert checkpoint.load(saved).step == 1


def test_what_a_killed_save_leaves_is_not_seen_and_is_cleaned_up(saved, tiny_config):
    leftover = saved / "checkpoints" / "3.orbax-checkpoint-tmp"
    shutil.copytree(saved / "checkpoints" / "2", leftover)
    assert checkpoint.steps(saved) == [1, 2]
    assert_is(restore(saved, tiny_config()), 2)
    with checkpoint.Checkpoints(saved, tiny_config()) as checkpoints:
        save(checkpoints, 4)
    assert not leftover.exists()


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("ends_with", ["wait", "save", "snapshot", "close"])
def test_a_state_that_is_not_finite_is_never_saved(
    tmp_path, tiny_config, value, ends_with
):
    variables, training = arrays(1)
    variables["params"]["layer"]["kernel"][3, 4] = value
    with pytest.raises(UserError, match="params/layer/kernel .* not finite"):
        with checkpoint.Checkpoints(tmp_path, tiny_config()) as checkpoints:
            checkpoints.save(1, variables, training, {})
            if ends_with == "wait":
                checkpoints.wait()
            elif ends_with == "save":
                save(checkpoints, 2)
            elif ends_with == "snapshot":
                checkpoints.save_snapshot(2, arrays(2)[0])
    assert checkpoint.steps(tmp_path) == []


@pytest.fixture
def gate(monkeypatch):
    """Nothing is written before the event is set."""
    gate, make_record = threading.Event(), folder.make_record

    def when_open(*arguments):
        assert gate.wait(30)
        return make_record(*arguments)

    monkeypatch.setattr(folder, "make_record", when_open)
    yield gate
    gate.set()


def test_training_goes_on_while_a_save_is_written(tmp_path, tiny_config, gate):
    """The next step is donated the arrays: the checkpoint keeps what they were."""
    step = jax.jit(lambda tree: jax.tree.map(lambda a: a + 1, tree), donate_argnums=0)
    state = jax.tree.map(jnp.asarray, arrays(1))
    with checkpoint.Checkpoints(tmp_path, tiny_config()) as checkpoints:
        checkpoints.save(1, *state, {"best": None})
        checkpoints.save_snapshot(1, state[0])
        after = step(state)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))
        jax.block_until_ready(step(after))
        assert checkpoint.steps(tmp_path) == []
        gate.set()
    assert_is(restore(tmp_path, tiny_config()), 1)
    assert checkpoint.snapshots(tmp_path) == [1]


def test_one_step_is_saved_at_a_time_and_in_order(tmp_path, tiny_config, gate):
    """What is asked to save another step waits for the one before it."""
    with checkpoint.Checkpoints(tmp_path, tiny_config(), keep=9) as checkpoints:
        checkpoints.save_snapshot(1, arrays(1)[0])
        threading.Timer(0.2, gate.set).start()
        save(checkpoints, 2)
        assert checkpoint.snapshots(tmp_path) == [1]
        checkpoints.save_snapshot(2, arrays(2)[0])
        save(checkpoints, 3)
        assert checkpoint.snapshots(tmp_path) == [1, 2]
        assert 2 in checkpoint.steps(tmp_path)
        checkpoints.wait()
        assert checkpoint.steps(tmp_path) == [1, 2, 3]


def test_a_failed_save_warns_and_the_next_one_works(tmp_path, tiny_config):
    with checkpoint.Checkpoints(tmp_path, tiny_config()) as checkpoints:
        save(checkpoints, 1)
        checkpoints.wait()
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))  # like a full disk
        try:
            with pytest.warns(UserWarning, match="could not be written"):
                save(checkpoints, 2)
                checkpoints.wait()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        save(checkpoints, 3)
    assert checkpoint.steps(tmp_path) == [1, 3]


def test_a_failed_save_whose_folder_is_still_written_to_costs_no_other(
    saved, tiny_config, monkeypatch
):
    leftover = saved / "checkpoints" / "3.orbax-checkpoint-tmp"
    shutil.copytree(saved / "checkpoints" / "2", leftover)
    original = os.rmdir

    def rmdir(path, **options):
        if str(path).endswith("orbax-checkpoint-tmp"):
            raise OSError(39, "Directory not empty")
        original(path, **options)

    with checkpoint.Checkpoints(saved, tiny_config()) as checkpoints:
        with monkeypatch.context() as patch:
            patch.setattr(os, "rmdir", rmdir)
            save(checkpoints, 4)
            checkpoints.wait()
        assert leftover.exists() and checkpoint.load(saved).step == 4
        save(checkpoints, 5)
    assert not leftover.exists()


def test_variables_trained_elsewhere_make_a_workdir(tmp_path, tiny_config):
    variables, _ = arrays(7)
    workdir = tmp_path / "imported"
    checkpoint.write_variables(workdir, tiny_config(), variables)
    loaded = checkpoint.load(workdir)
    assert loaded.config == checkpoint.read_config(workdir) == tiny_config()
    jax.tree.map(np.testing.assert_array_equal, loaded.variables, variables)
    with pytest.raises(UserError, match="already holds a run"):
        checkpoint.write_variables(workdir, tiny_config(), variables)
    with pytest.raises(UserError, match="variables only"):
        restore(workdir, tiny_config())
    with pytest.raises(UserError, match="no best one"):
        checkpoint.load(workdir, "best")


def test_a_folder_that_is_no_run_is_said_to_be_none(tmp_path):
    with pytest.raises(UserError, match="holds no checkpoint"):
        checkpoint.load(tmp_path / "nowhere")
    assert checkpoint.read_config(tmp_path) is None
    (tmp_path / "config.json").write_text("{broken")
    with pytest.raises(UserError, match="config.json cannot be read"):
        checkpoint.read_config(tmp_path)
