"""The order of a run: which images in which step, and what is due after it."""

import jax
import numpy as np
import pytest

from attn_cnn_jax import data, optim
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.timetable import Timetable


@pytest.mark.parametrize("length, every", [(1, 0), (5, 0), (5, 3), (99, 500)])
def test_an_epoch_is_its_own_permutation_whatever_the_blocks(
    length, every, tiny_config
):
    """14 steps of 100 of 1,437 images, and the next epoch begins a new block."""
    config = tiny_config(steps_per_dispatch=length, checkpoint_every_steps=every)
    due, step, batches = Timetable(config, 1_437), 0, []
    while step < due.num_steps:
        rows = due.next_rows(step)
        assert 1 <= len(rows) <= due.longest_block == min(length, 14)
        step += len(rows)
        batches.extend(rows)
    assert step == due.num_steps == 28
    epochs = [data.epoch_rows(config.seed, epoch, 1_437, 100) for epoch in (0, 1)]
    np.testing.assert_array_equal(batches, np.concatenate(epochs))


def test_a_block_ends_where_a_save_or_an_epoch_does(tiny_config):
    config = tiny_config(steps_per_dispatch=5, checkpoint_every_steps=8)
    due, step, ends = Timetable(config, 1_437), 0, []
    while step < due.num_steps:
        step += len(due.next_rows(step))
        ends.append(step)
    assert ends == [5, 8, 13, 14, 16, 21, 24, 28]


def test_what_is_due_when(tiny_config):
    config = tiny_config(num_epochs=5, eval_every_epochs=2, snapshot_every_epochs=3)
    config.update(checkpoint_every_steps=20, log_every_steps=30)
    due = Timetable(config, 1_437)
    steps = range(1, 71)
    left = [due.snapshots_after(step) for step in (0, 41, 42, 70)]
    assert left == [1, 1, 0, 0]
    assert [step for step in steps if due.evaluation(step)] == [28, 56, 70]
    assert [step for step in steps if due.checkpoint(step)] == [20, 40, 60, 70]
    assert [step for step in range(71) if due.snapshot(step)] == [0, 42]
    assert [s for s in steps if due.last_record(s) == s] == [30, 60, 70]
    assert [due.last_record(step) for step in (0, 29, 31, 69)] == [0, 0, 30, 60]
    config.update(eval_every_epochs=0, checkpoint_every_steps=0)
    config.snapshot_every_epochs = 0
    never = Timetable(config, 1_437)
    assert [step for step in steps if never.checkpoint(step)] == [70]
    assert not any(never.snapshot(step) for step in range(71))


@pytest.mark.parametrize(
    "name", ["cosine", "cosine_epochwise", "cosine_report", "multistep"]
)
def test_the_rate_in_the_log_is_that_of_the_update(name, tiny_config):
    """Of all updates, in any order, and computed before an epoch's first one."""
    config = tiny_config(num_epochs=4)
    config.schedule.update(name=name, warmup_epochs=2.0, drop_epochs=(1, 3))
    due = Timetable(config, 1_437)
    used = [float(jax.jit(due.schedule)(np.int32(count))) for count in range(56)]
    assert len(set(used)) > 2
    for epoch in range(4):
        due.next_rows(14 * epoch)
    logged = [due.learning_rate(step) for step in range(1, 57)]
    np.testing.assert_allclose(logged, used, rtol=2e-7, atol=1e-9)
    assert due.learning_rate(20) == logged[19]


def test_rates_are_not_computed_between_steps(tiny_config, monkeypatch):
    """They would wait for the step that runs. The log may be an epoch behind."""
    computed = []

    def schedule(count):
        computed.append(count)
        return 0.5 * count

    monkeypatch.setattr(optim, "make_schedule", lambda *unused: schedule)
    due = Timetable(tiny_config(), 1_437)
    due.next_rows(0)
    due.next_rows(14)
    before = len(computed)
    rates = [due.learning_rate(step) for step in range(1, 29)]
    assert rates == [0.5 * count for count in range(28)]
    assert len(computed) == before > 0


def test_a_constant_rate_is_one(tiny_config):
    config = tiny_config()
    config.schedule.update(name="multistep", drop_epochs=())
    assert Timetable(config, 1_437).learning_rate(28) == np.float32(0.1)


def test_what_cannot_be_counted_is_refused(tiny_config):
    with pytest.raises(UserError, match="batch_size=100 is more than the 99 training"):
        Timetable(tiny_config(), 99)
    most = (2**31 - 1) // 15  # 14 steps an epoch, and one more in `cosine_epochwise`
    assert Timetable(tiny_config(num_epochs=most), 1_437).num_steps == 14 * most
    with pytest.raises(UserError, match=f"set it to at most {most}"):
        Timetable(tiny_config(num_epochs=most + 1), 1_437)
