"""The time of a run, by what it was spent on, over kills and restarts."""

import pytest

from attn_cnn_jax import goodput, records, train
from attn_cnn_jax.goodput import ACTIVITIES, Goodput


@pytest.fixture
def clock(monkeypatch):
    seconds = [1_000.0]
    monkeypatch.setattr(goodput.time, "time", lambda: seconds[0])
    return seconds


def test_every_second_is_counted_once(clock):
    spent = Goodput(started=990.0)
    clock[0] = 1_010
    assert spent.turn_to("training") == "starting"
    clock[0] += 60
    with spent.during("saving"):
        clock[0] += 5
        with spent.during("evaluating"):
            clock[0] += 10
    clock[0] += 15
    shares = spent.shares()
    wanted = {"training": 75, "starting": 20, "saving": 5, "evaluating": 10}
    assert spent.seconds == {**dict.fromkeys(ACTIVITIES, 0), **wanted}
    assert shares == {name: spent.seconds[name] / 110 for name in ACTIVITIES}
    assert str(spent) == (
        "goodput 68% of 0:01:50 (starting 18%, evaluating 9%, saving 5%)"
    )


def test_what_a_kill_took_back_and_the_pause_after_it_are_told_apart(clock):
    spent = Goodput()
    spent.turn_to("training")
    clock[0] += 100
    state = spent.state()
    clock[0] += 25  # until its last record; then it was killed
    last_sign = clock[0]
    clock[0] += 75
    resumed = Goodput(state, last_sign, started=clock[0])
    assert resumed.seconds["repeating"] == 25 and resumed.seconds["waiting"] == 75
    clock[0] += 50
    assert resumed.shares()["training"] == pytest.approx(100 / 250)


def test_a_clock_that_was_set_back_takes_nothing_away(clock):
    spent = Goodput()
    spent.turn_to("training")
    clock[0] += 10
    state = spent.state()
    clock[0] -= 500
    resumed = Goodput(state, clock[0] - 1)
    clock[0] -= 100
    resumed.turn_to("training")
    assert sum(resumed.seconds.values()) == 10


def test_a_run_that_has_ended_says_where_its_time_went(tiny_config, tmp_path, capsys):
    train.train(tiny_config(num_epochs=1, schedule=WITHOUT_WARM_UP), tmp_path)
    assert "; goodput " in capsys.readouterr().out
    [line] = [r for r in records.read(tmp_path) if r["split"] == records.GOODPUT]
    assert line["training"] > 0 < line["compiling"]
    assert line["repeating"] == line["waiting"] == 0
    train.train(tiny_config(num_epochs=1, schedule=WITHOUT_WARM_UP), tmp_path)
    ends = [r for r in records.read(tmp_path) if r["split"] == records.GOODPUT]
    assert ends == [line]  # complete before: nothing was added


WITHOUT_WARM_UP = {"warmup_epochs": 0.0}
