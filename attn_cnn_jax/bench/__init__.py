"""Speed, memory and FLOPs of a config: `measure(config, plan)` returns a record."""

import dataclasses
import functools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax.sharding import Mesh
from ml_collections import ConfigDict

from attn_cnn_jax import data, environment, models, optim, parallel
from attn_cnn_jax.bench import timing
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.evaluate import make_eval_step
from attn_cnn_jax.models.flops import paper_flops, program_flops
from attn_cnn_jax.timetable import Timetable
from attn_cnn_jax.train import TrainState, initial_state, make_train_step

_MOST_PIXELS = 2**30  # bytes of the random images to train on


@dataclasses.dataclass(frozen=True)
class Plan:
    """The measurements to make, and for how long."""

    batch_sizes: tuple[int, ...] = ()  # empty: the config's
    steps: int = 20  # timed ones at each batch size, in training and in inference
    seconds: float = 60.0  # after them no more steps, but for the first FEWEST_STEPS
    latency_calls: int = 300  # 0: no latency
    warmup_calls: int = 10
    train: bool = True


def measure(config: ConfigDict, plan: Plan) -> dict[str, Any]:
    """Measure FLOPs, latency, images/s, compile time and memory of a config.

    The keys and their units are those of docs/performance.md; what was not measured is
    None, and what the device has too little memory for is named in `out_of_memory`.
    """
    mesh = parallel.make_mesh()
    dataset = _dataset(config.dataset)
    sizes = plan.batch_sizes or (config.batch_size,)
    _refuse_too_large(sizes, dataset)
    model = models.build(config.model, dataset.num_classes)
    optimizer = _optimizer(_with_batch_size(config, 1), dataset)
    draw = functools.partial(initial_state, config, model, optimizer, dataset)
    state = jax.device_get(jax.jit(draw)())
    forward = functools.partial(model.apply, train=False)
    shape, variables = dataset.image_shape, state.variables

    def flops(batch_size: int) -> int | None:
        """Count the FLOPs of an image; None where an operation has no rule."""
        batch = jax.ShapeDtypeStruct((batch_size, *shape), jnp.float32)
        try:
            return round(program_flops(forward, variables, batch) / batch_size)
        except ValueError:
            return None

    found = environment.describe(mesh)
    record: dict[str, Any] = {
        "model": config.model.name,
        **{key: found[key] for key in ("device_kind", "platform", "devices")},
        "compute_dtype": parallel.arithmetic(config, mesh),
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        **{key: found[key] for key in ("jax", "git_commit")},
        "parameters": models.count_parameters(variables),
        "flops_paper": paper_flops(model, variables, shape),
        "flops": flops(config.batch_size),
        "latency_ms": _latency(forward, variables, shape, plan),
    }
    # A device remembers the most it ever held: what takes little memory goes first.
    cells: dict[tuple[str, int], _Cell] = {}
    for kind in ("eval", "train") if plan.train else ("eval",):
        for size in sorted(set(sizes)):
            sized = _with_batch_size(config, size)
            cells[kind, size] = _unless_out_of_memory(
                _KINDS[kind], sized, model, dataset, mesh, state, plan
            )
    record["batches"] = [
        {**_batch_record(cells, size), "flops": flops(size)} for size in sizes
    ]
    return record


def _with_batch_size(config: ConfigDict, batch_size: int) -> ConfigDict:
    config = config.copy_and_resolve_references()
    config.batch_size = batch_size
    if config.micro_batch_size and batch_size % config.micro_batch_size:
        config.micro_batch_size = 0
    return config


def _optimizer(
    config: ConfigDict, dataset: data.Dataset
) -> optax.GradientTransformation:
    schedule = Timetable(config, len(dataset.train)).schedule
    return optim.make_optimizer(config.optimizer, schedule)


def _refuse_too_large(batch_sizes: Sequence[int], dataset: data.Dataset) -> None:
    largest, images = max(batch_sizes), len(dataset.train)
    if largest > images:
        raise UserError(
            f"a batch of {largest:,} images is more than the {images:,} to train on: "
            "name a smaller one in --batch_sizes."
        )


def _dataset(dataset: ConfigDict) -> data.Dataset:
    """Return random images of the dataset's shape, as many as CIFAR's if they fit.

    What comes with the requirements or is not in the table is loaded.
    """
    entry = data.DATASETS.get(dataset.name)
    if entry is None or entry.bundled:
        return data.load(dataset)
    shape, num_classes = entry.image_shape, entry.num_classes
    count = min(50_000, _MOST_PIXELS // math.prod(shape))
    generator = np.random.default_rng(0)

    def split(count: int) -> data.Split:
        images = generator.integers(0, 256, (count, *shape), np.uint8)
        return data.Split(images, generator.integers(0, num_classes, count, np.int32))

    return data.Dataset(
        class_names=tuple(map(str, range(num_classes))),
        mean=(0.5,) * shape[-1],
        std=(0.25,) * shape[-1],
        train=split(count),
        test=split(count // 5),
    )


def _latency(
    forward: Callable[..., Any],
    variables: Any,
    image_shape: tuple[int, int, int],
    plan: Plan,
) -> dict[str, float | int] | None:
    """Time one image that lies on the device, from the call to its logits, in ms."""
    if not plan.latency_calls:
        return None
    variables = jax.device_put(variables)
    image = jax.random.normal(jax.random.key(0), (1, *image_shape), jnp.float32)
    call = jax.jit(forward)

    def milliseconds() -> float:
        start = time.perf_counter()
        jax.block_until_ready(call(variables, image))
        return 1e3 * (time.perf_counter() - start)

    for _ in range(max(plan.warmup_calls, 1)):  # the first one compiles
        milliseconds()
    times = [milliseconds() for _ in range(plan.latency_calls)]
    return {
        "mean": statistics.fmean(times),
        "std": statistics.pstdev(times),
        "median": statistics.median(times),
        "calls": len(times),
    }


@dataclasses.dataclass(frozen=True)
class _Cell:
    """Training or inference at one batch size; None where memory ran out."""

    images_per_second: float | None = None
    compile_seconds: float | None = None
    peak_bytes: int | None = None
    memory_source: str | None = None
    out_of_memory: bool = False


def _training(
    config: ConfigDict,
    model: nn.Module,
    dataset: data.Dataset,
    mesh: Mesh,
    state: TrainState,
    plan: Plan,
) -> _Cell:
    """Measure what `train.train` dispatches, augmentation included."""
    device = mesh.devices.ravel()[0]
    peak_before = timing.peak_bytes(device)
    longest = Timetable(config, len(dataset.train)).longest_block
    length = parallel.batches_per_program(mesh, longest)
    optimizer = _optimizer(config, dataset)
    program = make_train_step(config, model, optimizer, dataset, mesh)
    count: tuple[int, ...] = ()
    if length > 1:
        program, count = parallel.loop_over(program, length), (length,)
    batch = _batches(config, dataset.train, mesh, *count)
    state = parallel.replicate(state, mesh)
    train_step: Any = parallel.compile_step(program, mesh, donate_state=True)
    compiled, compile_seconds = timing.compiled(train_step, state, batch(), *count)

    def step() -> Any:
        nonlocal state
        state, sums = compiled(state, batch(), *count)
        return state, sums

    seconds = timing.median_seconds([step], plan.steps, plan.seconds)[0]
    return _Cell(
        length * config.batch_size / seconds,
        compile_seconds,
        *timing.memory(device, compiled, peak_before),
    )


def _inference(
    config: ConfigDict,
    model: nn.Module,
    dataset: data.Dataset,
    mesh: Mesh,
    state: TrainState,
    plan: Plan,
) -> _Cell:
    """Measure the step of `evaluate.evaluate`."""
    device = mesh.devices.ravel()[0]
    peak_before = timing.peak_bytes(device)
    batch = _batches(config, dataset.test, mesh)
    variables = parallel.replicate(state.variables, mesh)
    weights = np.ones(config.batch_size, np.float32)
    eval_step: Any = make_eval_step(config, model, dataset, mesh)
    rows = np.arange(config.batch_size, dtype=np.int32)
    compiled, compile_seconds = timing.compiled(
        eval_step, variables, batch(), rows, weights
    )
    seconds = timing.median_seconds(
        [lambda: compiled(variables, batch(), rows, weights)], plan.steps, plan.seconds
    )[0]
    return _Cell(
        config.batch_size / seconds,
        compile_seconds,
        *timing.memory(device, compiled, peak_before),
    )


_KINDS = {"train": _training, "eval": _inference}


def _unless_out_of_memory(kind: Callable[..., _Cell], *args: Any) -> _Cell:
    try:
        return kind(*args)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return _Cell(out_of_memory=True)


def _batches(
    config: ConfigDict, split: data.Split, mesh: Mesh, *count: int
) -> Callable[[], Any]:
    """Return a function that hands over random rows: a batch, or `count` of them."""
    feed = parallel.Feed(split, mesh, config.dataset.placement)
    generator, shape = np.random.default_rng(0), (*count, config.batch_size)
    return lambda: feed(generator.integers(0, feed.num_images, shape, np.int32))


def _batch_record(cells: dict[tuple[str, int], _Cell], size: int) -> dict[str, Any]:
    own = {kind: cells.get((kind, size), _Cell()) for kind in ("train", "eval")}
    sources = {k: cell.memory_source for k, cell in own.items() if cell.memory_source}
    if len(set(sources.values())) == 1:
        (source,) = set(sources.values())
    else:
        source = ", ".join(f"{kind}: {said}" for kind, said in sources.items()) or None
    return {
        "batch_size": size,
        **{f"{kind}_images_per_second": c.images_per_second for kind, c in own.items()},
        **{f"{kind}_compile_seconds": c.compile_seconds for kind, c in own.items()},
        **{f"{kind}_peak_bytes": c.peak_bytes for kind, c in own.items()},
        "memory_source": source,
        "out_of_memory": [kind for kind, cell in own.items() if cell.out_of_memory],
    }
