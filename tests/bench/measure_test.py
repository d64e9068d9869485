"""Records: their keys, what was measured and what was not, the table of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_cnn_jax import bench, config, models, parallel
from attn_cnn_jax.bench import table, timing
from attn_cnn_jax.errors import UserError

KEYS = {
    "model",
    "device_kind",
    "platform",
    "devices",
    "compute_dtype",
    "date",
    "jax",
    "git_commit",
    "parameters",
    "flops_paper",
    "flops",
    "latency_ms",
    "batches",
}
BATCH_KEYS = {
    "batch_size",
    "flops",
    "train_images_per_second",
    "eval_images_per_second",
    "train_compile_seconds",
    "eval_compile_seconds",
    "train_peak_bytes",
    "eval_peak_bytes",
    "memory_source",
    "out_of_memory",
}
QUICK = {"steps": 3, "seconds": 0.0, "latency_calls": 4, "warmup_calls": 2}


def named(record):
    """What the command adds to a record."""
    return {"config": "tiny", "overrides": {"model.width": 16}, **record}


def test_a_record_of_a_config(tiny_config, monkeypatch):
    trained = []

    def spy(config, model, optimizer, dataset, mesh, make=bench.make_train_step):
        trained.append((config.batch_size, mesh.size))
        return make(config, model, optimizer, dataset, mesh)

    monkeypatch.setattr(bench, "make_train_step", spy)
    tiny = tiny_config()
    tiny.model.num_layers = 1
    record = bench.measure(tiny, bench.Plan((8,), **QUICK))
    assert set(record) == KEYS
    assert (record["model"], record["compute_dtype"]) == ("self_attention", "float32")
    assert (record["platform"], record["devices"]) == ("cpu", 8)
    model = models.build(tiny.model, 10)
    variables = models.initial_variables(model, jax.random.key(0), (8, 8, 1))
    assert record["parameters"] == models.count_parameters(variables)
    # 4 x 4 pixels: the embedding, a block, the classifier.
    block = 4 * 16 * 16 + 16 * 16 + 2 * 16 * 16
    assert record["flops_paper"] == 2 * (16 * (4 * 16 + block) + 16 * 10)
    assert record["flops_paper"] < record["flops"] < 2 * record["flops_paper"]
    latency = record["latency_ms"]
    assert set(latency) == {"mean", "std", "median", "calls"} and latency["calls"] == 4
    assert latency["mean"] > 0 and latency["median"] > 0 and latency["std"] >= 0
    assert trained == [(8, 8)]  # the real training step
    (batch,) = record["batches"]
    assert set(batch) == BATCH_KEYS and batch["batch_size"] == 8
    assert batch["memory_source"] == "memory_analysis"
    assert batch["out_of_memory"] == []
    numbers = BATCH_KEYS - {"batch_size", "memory_source", "out_of_memory"}
    assert all(batch[key] > 0 for key in numbers)
    assert batch["train_peak_bytes"] > batch["eval_peak_bytes"]


def test_what_is_not_asked_for_is_none(tiny_config):
    plan = bench.Plan(train=False, **{**QUICK, "latency_calls": 0})
    record = bench.measure(tiny_config(batch_size=8), plan)
    (batch,) = record["batches"]
    assert record["latency_ms"] is None
    assert batch["batch_size"] == 8 and batch["eval_images_per_second"] > 0
    train = {key: value for key, value in batch.items() if key.startswith("train")}
    assert set(train.values()) == {None}
    cells = table.as_text([named(record)]).splitlines()[3].split()
    assert (cells[3], cells[4], cells[6]) == ("-", "8", "-")


def test_a_batch_too_large_costs_its_own_cell(tiny_config, monkeypatch):
    training, sizes = bench._KINDS["train"], []

    def limited(config, *args):
        sizes.append(config.batch_size)
        if config.batch_size > 8:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory.")
        return training(config, *args)

    monkeypatch.setitem(bench._KINDS, "train", limited)
    record = bench.measure(tiny_config(), bench.Plan((16, 8), **QUICK))
    large, small = record["batches"]  # in the order asked for
    assert sizes == [8, 16]  # what needs little memory goes first
    assert small["train_images_per_second"] > 0 and small["out_of_memory"] == []
    assert large["train_images_per_second"] is None
    assert large["out_of_memory"] == ["train"]
    assert large["eval_images_per_second"] > 0
    text = table.as_text([named(record)])
    assert text.count("out of memory") == 3  # images/s, compile time, memory


def test_other_failures_are_not_hidden():
    def broken():
        raise jax.errors.JaxRuntimeError("INTERNAL: broken")

    with pytest.raises(jax.errors.JaxRuntimeError, match="broken"):
        bench._unless_out_of_memory(broken)


def test_cifar_need_not_be_prepared(tmp_path):
    fields = config.base_config().dataset
    fields.update(name="cifar100", data_dir=str(tmp_path))
    dataset = bench._dataset(fields)
    assert (dataset.num_classes, dataset.image_shape) == (100, (32, 32, 3))
    assert (len(dataset.train), len(dataset.test)) == (50_000, 10_000)
    assert dataset.test.images.dtype == np.uint8
    assert set(np.unique(dataset.test.labels)) == set(range(100))


def test_flops_of_an_image_are_those_at_each_batch_size(tiny_config):
    """Folded weights are shared by the images of a batch."""
    tiny = tiny_config("learned_w_content", batch_size=200)
    tiny.model.num_layers = 1
    plan = bench.Plan((2, 200), **QUICK | {"latency_calls": 0}, train=False)
    record = bench.measure(tiny, plan)
    few, many = (batch["flops"] for batch in record["batches"])
    assert few > many == record["flops"]


def test_flops_without_a_rule_cost_nothing_else(tiny_config, monkeypatch):
    def refuse(*_):
        raise ValueError("there is no rule for the operations of svd")

    monkeypatch.setattr(bench, "program_flops", refuse)
    tiny = tiny_config()
    tiny.model.num_layers = 1
    record = bench.measure(tiny, bench.Plan((8,), **QUICK, train=False))
    assert record["flops"] is None and record["batches"][0]["flops"] is None
    assert record["batches"][0]["eval_images_per_second"] > 0
    assert "-" in table.as_text([named(record)]).splitlines()[3].split()


def test_a_batch_of_more_images_than_there_are_is_refused_at_once(tiny_config):
    with pytest.raises(UserError, match="10,000 .* 1,437 .* --batch_sizes"):
        bench.measure(tiny_config(), bench.Plan((4, 10_000), **QUICK))


@pytest.fixture
def ticking(monkeypatch):
    """A clock on which every call of a program takes 20 ms."""
    clock = [0.0]

    def perf_counter() -> float:
        clock[0] += 0.02
        return clock[0]

    monkeypatch.setattr(bench.time, "perf_counter", perf_counter)


@pytest.mark.parametrize("length", [1, 5])
def test_times_and_rates_are_those_of_the_clock(
    length, ticking, tiny_config, monkeypatch
):
    """Images/s are those of all steps of a dispatch; latency is in milliseconds."""
    monkeypatch.setattr(parallel, "batches_per_program", lambda mesh, wanted: wanted)
    tiny = tiny_config(steps_per_dispatch=length)
    tiny.model.num_layers = 1
    record = bench.measure(tiny, bench.Plan((8,), **QUICK))
    (batch,) = record["batches"]
    assert batch["train_images_per_second"] == pytest.approx(length * 8 / 0.02)
    assert batch["eval_images_per_second"] == pytest.approx(8 / 0.02)
    assert batch["train_compile_seconds"] == pytest.approx(0.02)
    assert record["latency_ms"]["mean"] == pytest.approx(20)
    assert record["latency_ms"]["median"] == pytest.approx(20)
    assert record["latency_ms"]["std"] == pytest.approx(0, abs=1e-6)


def test_the_table_lines_up():
    batch = dict.fromkeys(BATCH_KEYS, 1_234_567.0)
    batch = {**batch, "batch_size": 8, "memory_source": None, "out_of_memory": []}
    batch["flops"] = 2_250_000_000
    record = named({**dict.fromkeys(KEYS, 7), "git_commit": None, "date": "2020-01-02"})
    record["latency_ms"] = {"mean": 1.5, "std": 0.25, "median": 1.25, "calls": 4}
    record.update(parameters=12_345, flops_paper=1_500_000_000)
    large = {**batch, "batch_size": 1_600, "flops": 25_300, "eval_peak_bytes": None}
    record["batches"] = [batch, large]
    lines = table.as_text([record, {**record, "config": "another"}]).splitlines()
    first = lines[3].split()
    assert first[:6] == ["tiny", "12,345", "1.500", "1.25", "8", "2.250"]
    assert lines[4].split()[:2] == ["1,600", "2.53e-05"]
    assert lines[4].split()[-1] == "-"
    assert lines[5].startswith("another ")
    assert len({len(line) for line in lines[2:7]}) == 1
    assert "7 x 7 (7), 7, jax 7, commit no checkout, 2020-01-02" in lines[8]
    assert "tiny with model.width=16" in lines
    assert "tiny: latency of batch 1 1.500 +- 0.250 ms over 4 calls" in lines


def test_the_median_is_that_of_calls_in_turn(monkeypatch):
    clock, calls = [0.0], []

    def takes(name, durations):
        durations = iter(durations)

        def function():
            calls.append(name)
            clock[0] += next(durations)

        return function

    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])
    a, b = takes("a", [100, 1, 5, 2]), takes("b", [100, 7, 7, 8])
    assert timing.median_seconds([a, b], steps=3, seconds=0.0) == [2, 7]
    assert "".join(calls) == "abababab"  # the first pair is not timed


def test_time_ends_the_calls_but_not_the_first_ones(monkeypatch):
    clock, calls = [0.0], []

    def function():
        calls.append(None)
        clock[0] += 1

    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])
    for seconds, timed in ((0.5, timing.FEWEST_STEPS), (4.5, 5), (1e9, 20)):
        calls.clear()
        timing.median_seconds([function], steps=20, seconds=seconds)
        assert len(calls) == 1 + timed


def test_memory_is_the_programs_or_what_the_allocator_saw():
    class Device:
        peak = 5_000

        def memory_stats(self):
            return {"peak_bytes_in_use": self.peak}

    device = Device()
    x = jnp.zeros(256, jnp.float32)
    program, seconds = timing.compiled(jax.jit(lambda x: x + 1), x)
    donated, _ = timing.compiled(jax.jit(lambda x: x + 1, donate_argnums=0), x)
    assert seconds > 0
    cpu = jax.devices()[0]
    assert timing.peak_bytes(cpu) is None
    assert timing.memory(cpu, program, None) == (2_048, "memory_analysis")
    assert timing.memory(cpu, donated, None) == (1_024, "memory_analysis")
    before = timing.peak_bytes(device)
    assert timing.memory(device, program, before) == (2_048, "memory_analysis")
    device.peak = 6_000
    assert timing.memory(device, program, before) == (6_000, "memory_stats")
