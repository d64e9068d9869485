"""What a training writes and says, and when: its records, its speed, its lines."""

import io
import sys
import time

import jax
import numpy as np
import pytest

from attn_cnn_jax import log, records
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.log import TrainLog
from attn_cnn_jax.metrics import Sums
from attn_cnn_jax.timetable import Timetable

STEPS = {"num_epochs": 2, "batch_size": 100, "log_every_steps": 10}


@pytest.fixture
def clock(monkeypatch):
    """The seconds that the log sees; a test moves them."""
    seconds = [100.0]
    monkeypatch.setattr(log.time, "perf_counter", lambda: seconds[0])
    return seconds


@pytest.fixture
def opened(tiny_config, tmp_path):
    """`opened(step=0, **fields)`: the log of a run of 28 steps, 14 an epoch."""

    def open_log(step: int = 0, interval: Sums | None = None, **fields) -> TrainLog:
        config = tiny_config(**{**STEPS, **fields})
        due = Timetable(config, 1_437)
        return TrainLog(tmp_path, config, due, step, interval or Sums.zero())

    return open_log


def of_step(step: int) -> Sums:
    """100 images whose mean loss is the step, and of which as many are right."""
    return Sums(np.float32(100 * step), np.float32(step), np.float32(100))


def add_steps(train_log: TrainLog, clock: list[float], first: int, last: int) -> None:
    """Each step takes half a second, at the end of which the next one is dispatched."""
    for step in range(first, last + 1):
        train_log.add([of_step(step)], 1)
        clock[0] += 0.5


def test_the_time_left_does_not_count_what_came_before_the_steps(opened, monkeypatch):
    """Compiling once made a first estimate of days; and an evaluation is no step."""
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    with opened(log_every_steps=1) as train_log:
        time.sleep(1.1)
        train_log.add([of_step(1)], 1)
        with train_log.paused("evaluating"):
            time.sleep(1.1)
        train_log.add([of_step(2)], 1)
        train_log.read()
    last = terminal.getvalue().rpartition("\r")[2]
    assert "2/28 [00:00<00:0" in last


def test_a_record_is_of_its_interval_alone(opened, clock, tmp_path):
    """Its mean loss, accuracy, epoch, rate of the last update, and images/s."""
    with opened() as train_log:
        add_steps(train_log, clock, 1, 28)
        train_log.read()
    lines = records.read(tmp_path)
    assert [line["step"] for line in lines] == [10, 20, 28]
    assert [line["loss"] for line in lines] == [5.5, 15.5, 24.5]
    assert [line["accuracy"] for line in lines] == [0.055, 0.155, 0.245]
    assert [line["epoch"] for line in lines] == [10 / 14, 20 / 14, 2]
    assert [line["images_per_second"] for line in lines] == [200, 200, 200]
    rises = [1 / 14 * 0.1 * 10]  # warms up in one epoch, then half a cosine over one
    falls = [0.05 * (1 + np.cos(np.pi * (step - 14) / 14)) for step in (20, 28)]
    rates = [line["learning_rate"] for line in lines]
    np.testing.assert_allclose(rates, rises + falls, rtol=1e-6, atol=1e-9)


def test_what_is_read_together_has_one_speed(opened, clock, tmp_path):
    """Stacked sums of two blocks; what pads the second is no step."""
    with opened(log_every_steps=4) as train_log:
        for steps, count in ((range(1, 11), 10), ([11, 12, 13, 14, 99], 4)):
            stacked = jax.tree.map(lambda *all: np.stack(all), *map(of_step, steps))
            train_log.add([stacked], count)
            clock[0] += 3
        train_log.read()
        assert train_log.interval == Sums(2_700, 27, 200)  # of steps 13 and 14
    lines = records.read(tmp_path)
    assert [line["step"] for line in lines] == [4, 8, 12]
    assert [line["loss"] for line in lines] == [2.5, 6.5, 10.5]
    assert [line["images_per_second"] for line in lines] == [800 / 3, 800 / 3, 400 / 3]


def test_compiling_evaluating_and_saving_do_not_count(opened, clock, tmp_path):
    with opened() as train_log:
        clock[0] += 60  # the first call compiles
        add_steps(train_log, clock, 1, 5)
        with train_log.paused("evaluating"):
            clock[0] += 1_000
        add_steps(train_log, clock, 6, 10)
        train_log.read()
    (line,) = records.read(tmp_path)
    assert line["images_per_second"] == pytest.approx(200)
    assert line["loss"] == 5.5


def test_sums_are_read_while_the_next_step_is_computed(opened, clock, tmp_path):
    """A record is written as soon as another step has been dispatched, no sooner."""
    with opened() as train_log:
        add_steps(train_log, clock, 1, 10)
        assert records.read(tmp_path) == []
        add_steps(train_log, clock, 11, 11)
        assert [line["step"] for line in records.read(tmp_path)] == [10]


def test_a_loss_that_is_not_finite_is_noticed_though_few_steps_are_logged(
    opened, clock
):
    """And the first of its steps is named, which is not the one that noticed."""
    with opened(log_every_steps=1_000, num_epochs=200) as train_log:
        add_steps(train_log, clock, 1, 2)
        for step in (3, 4):
            train_log.add([of_step(step).replace(loss=np.float32("nan"))], 1)
        add_steps(train_log, clock, 5, 12)  # half a second each
        with pytest.raises(UserError, match="loss of step 3 is nan"):
            add_steps(train_log, clock, 13, 14)


def test_a_continued_interval_ends_with_what_was_summed_before(opened, clock, tmp_path):
    before = sum(map(of_step, range(11, 16)), Sums.zero()).on_host()
    with opened(15, before) as train_log:
        add_steps(train_log, clock, 16, 20)
        train_log.read()
        assert train_log.interval == Sums.zero()
    (line,) = records.read(tmp_path)
    assert (line["step"], line["loss"]) == (20, 15.5)
    assert line["images_per_second"] == 200  # of the five steps that were timed


def test_the_lines_tell_epoch_speed_and_time_left(opened, clock, capsys):
    """Where there is no terminal: at most one in 15 seconds."""
    with opened(num_epochs=20, log_every_steps=20) as train_log:
        add_steps(train_log, clock, 1, 81)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 2  # after 20, 40, 60 and 80 steps 10, 20, 30, 40 seconds
    assert printed[0] == (
        "epoch 2.857, step 40: loss 30.5000, accuracy 0.3050, 200 images/s, 02:00 left"
    )


def test_an_evaluation_is_told_recorded_and_chosen_by(opened, clock, tmp_path, capsys):
    test = {"loss": 0.5, "accuracy": 0.75, "images": 360}
    validation = {"loss": 0.25, "accuracy": 0.875, "images": 1_000}
    both = {"test": test, "validation": validation}
    with opened(step=28) as train_log:
        assert train_log.evaluated(28, {"test": test}) == test
        assert records.read(tmp_path) == []  # complete before: its records are there
    with opened() as train_log:
        add_steps(train_log, clock, 1, 14)
        assert train_log.evaluated(14, both) == validation
    lines = [line for line in records.read(tmp_path) if line["split"] != "train"]
    assert lines[0] == {"step": 14, "split": "test", "epoch": 1.0, **test}
    assert lines[1] == {"step": 14, "split": "validation", "epoch": 1.0, **validation}
    told = "epoch 1, step 14: validation accuracy 0.8750, loss 0.2500 (1,000 images)"
    assert told in capsys.readouterr().out
