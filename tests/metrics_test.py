"""Sums over images, and the files that a run writes what they come to."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from attn_cnn_jax import metrics
from attn_cnn_jax.metrics import MetricsFile, Sums


@pytest.fixture
def batch():
    """Logits and labels of 12 images of 5 classes, some of them answered right."""
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(12, 5)).astype(np.float32)
    labels = generator.integers(0, 5, 12).astype(np.int32)
    labels[:4] = logits[:4].argmax(-1)
    return logits, labels


def losses(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    logits = logits.astype(np.float64)
    log_sum = np.log(np.exp(logits).sum(-1))
    return log_sum - logits[np.arange(len(labels)), labels]


def test_sums_are_those_of_numpy(batch):
    logits, labels = batch
    weights = (np.arange(12) % 3 > 0).astype(np.float32)
    correct = logits.argmax(-1) == labels
    for given, counted in ((None, np.ones(12)), (weights, weights)):
        passed = None if given is None else jnp.asarray(given)
        sums = Sums.of(jnp.asarray(logits), jnp.asarray(labels), passed)
        wanted = (losses(logits, labels) * counted).sum()
        np.testing.assert_allclose(sums.loss, wanted, rtol=1e-5)
        assert float(sums.correct) == (correct * counted).sum()
        assert float(sums.count) == counted.sum()


@pytest.mark.parametrize("smoothing", [0.1, 0.5])
def test_a_smoothed_label_shares_with_the_other_classes(smoothing):
    """1 - eps on the label, eps / 9 on each of the nine others."""
    generator = np.random.default_rng(1)
    logits = generator.normal(size=(12, 10), scale=3).astype(np.float32)
    labels = generator.integers(0, 10, 12).astype(np.int32)
    labels[:6] = logits[:6].argmax(-1)
    weights = (np.arange(12) % 3 > 0).astype(np.float32)
    targets = np.full((12, 10), smoothing / 9)
    targets[np.arange(12), labels] = 1 - smoothing
    exact = logits.astype(np.float64)
    log_probs = exact - np.log(np.exp(exact).sum(-1, keepdims=True))
    of_images = -(targets * log_probs).sum(-1)
    arrays = [jnp.asarray(a) for a in (logits, labels, weights)]
    sums = Sums.of(*arrays, label_smoothing=smoothing)
    np.testing.assert_allclose(sums.loss, (of_images * weights).sum(), rtol=1e-5)
    plain = Sums.of(*arrays)
    assert float(sums.loss) > float(plain.loss) + 0.1
    assert (sums.correct, sums.count) == (plain.correct, plain.count)


def test_added_batches_have_the_means_of_all_images(batch):
    logits, labels = batch
    total = Sums.zero()
    for part in (slice(0, 7), slice(7, 12)):  # unequal: no mean of means
        sums = Sums.of(jnp.asarray(logits[part]), jnp.asarray(labels[part]))
        total = total + sums.on_host()
    assert total.count == 12
    means = total.means()
    np.testing.assert_allclose(means["loss"], losses(logits, labels).mean(), rtol=1e-6)
    assert means["accuracy"] == (logits.argmax(-1) == labels).mean()


def test_sums_on_the_host_are_exact_where_float32_is_not():
    one = Sums(np.float32(1), np.float32(1), np.float32(1)).on_host()
    large = Sums(2.0**24, 2.0**24, 2.0**24)
    assert (large + one).count == 2**24 + 1
    assert all(type(value) is float for value in (one.loss, one.correct, one.count))


@pytest.mark.parametrize(
    "loss, finite", [(1.0, True), (np.nan, False), (np.inf, False)]
)
def test_a_loss_that_is_not_finite_is_noticed(loss, finite):
    assert metrics.is_finite(Sums(loss, 0.0, 1.0)) is finite


def write(workdir, first: int, last: int) -> None:
    file = MetricsFile(workdir, first, enabled=True)
    for step in range(first + 1, last + 1):
        file.write(step, "train", {"loss": step / 7, "accuracy": 0.5})
    file.write(last, "test", {"accuracy": 0.25})
    file.close()


def test_a_line_is_an_object_and_all_scalars_are_events(tmp_path):
    write(tmp_path, 0, 3)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    first = {"step": 1, "split": "train", "loss": 1 / 7, "accuracy": 0.5}
    assert json.loads(lines[0]) == first and len(lines) == 4
    last = {"step": 3, "split": "test", "accuracy": 0.25}
    assert json.loads(lines[-1]) == last
    assert metrics.read(tmp_path) == [json.loads(line) for line in lines]
    scalars = events(tmp_path)
    assert scalars["train/loss", 2] == pytest.approx(2 / 7)
    assert scalars["test/accuracy", 3] == pytest.approx(0.25)
    assert len(scalars) == 7


def events(workdir) -> dict[tuple[str, int], float]:
    """(tag, step) -> value of every scalar in TensorBoard's record files."""
    from tensorboardX.proto.event_pb2 import Event

    scalars = {}
    for path in sorted((workdir / "tensorboard").iterdir()):
        content = path.read_bytes()
        while content:
            size = int.from_bytes(content[:8], "little")  # then 4 bytes of checksum
            event = Event.FromString(content[12 : 12 + size])
            content = content[12 + size + 4 :]
            for value in event.summary.value:
                scalars[value.tag, event.step] = value.simple_value
    return scalars


def test_what_was_written_shows_while_the_run_goes_on(tmp_path):
    file = MetricsFile(tmp_path, 0, enabled=True)
    file.write(1, "train", {"loss": 2.0})
    assert [line["loss"] for line in metrics.read(tmp_path)] == [2.0]
    file.close()


def test_reopened_at_a_step_it_drops_what_is_later(tmp_path):
    write(tmp_path, 0, 6)
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 2, "split": "tra')  # a crash
    assert len(metrics.read(tmp_path)) == 7
    write(tmp_path, 4, 5)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    seen = [(line["step"], line["split"]) for line in lines]
    train = [(step, "train") for step in range(1, 6)]
    assert seen == [*train, (5, "test")]
    assert [p.name for p in tmp_path.glob("metrics*")] == ["metrics.jsonl"]


def test_a_complete_last_line_without_its_line_break_is_kept_whole(tmp_path):
    write(tmp_path, 0, 2)
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text().rstrip("\n"))
    write(tmp_path, 2, 3)
    assert [line["step"] for line in metrics.read(tmp_path)] == [1, 2, 2, 3, 3]


@pytest.mark.parametrize("garbage", ["12\n", "null\n", '"step"\n', "[]\n", "{}\n"])
def test_a_line_that_is_not_a_record_does_not_stop_a_run(tmp_path, garbage):
    write(tmp_path, 0, 2)
    path = tmp_path / "metrics.jsonl"
    path.write_text(garbage + path.read_text())
    write(tmp_path, 2, 3)
    assert [line["step"] for line in metrics.read(tmp_path)] == [1, 2, 2, 3, 3]


def test_a_line_of_damaged_bytes_does_not_stop_a_run(tmp_path):
    write(tmp_path, 0, 2)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + b'{"step": \xff\xfe\x00')
    write(tmp_path, 2, 3)
    assert [line["step"] for line in metrics.read(tmp_path)] == [1, 2, 2, 3, 3]


def test_a_process_that_is_not_the_first_writes_nothing(tmp_path):
    file = MetricsFile(tmp_path, 0, enabled=False)
    file.write(1, "train", {"loss": 1.0})
    file.close()
    assert list(tmp_path.iterdir()) == []
