"""Our training step, the one of `attn_cnn_jax.train`, as a worker is told."""

import functools
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attn_cnn_jax import config as config_lib
from attn_cnn_jax import data, environment, models, optim, parallel
from attn_cnn_jax.bench import timing
from attn_cnn_jax.timetable import Timetable
from attn_cnn_jax.train import initial_state, make_train_step
from benchmarks.variants import VARIANTS

_IMAGES = 1_024
_CEILING_SIDE = {"cpu": 2048}  # elsewhere 8192


class Step:
    """A compiled step, its state, and random images on the device.

    Unlike PyTorch's it draws, crops, flips and normalises its batch as well.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        variant = VARIANTS[spec["variant"]]
        self.dtype = variant.dtype
        config = config_lib.from_dict(spec["config"])
        config.model.compute_dtype = variant.dtype
        config.matmul_precision = "tf32" if variant.tf32 else "float32"
        config.batch_size, config.steps_per_dispatch = spec["batch_size"], 1
        config_lib.check(config)
        parallel.set_arithmetic(config)
        self.mesh = parallel.make_mesh(_devices(spec.get("devices", 1)))
        dataset = _dataset(spec)
        model = models.build(config.model, dataset.num_classes)
        schedule = Timetable(config, len(dataset.train)).schedule
        optimizer = optim.make_optimizer(config.optimizer, schedule)
        draw = functools.partial(initial_state, config, model, optimizer, dataset)
        self.state = parallel.replicate(jax.jit(draw)(), self.mesh)
        self.feed = parallel.Feed(dataset.train, self.mesh, "device")
        self.rows = np.arange(config.batch_size, dtype=np.int32)
        program = make_train_step(config, model, optimizer, dataset, self.mesh)
        step: Any = parallel.compile_step(program, self.mesh, donate_state=True)
        self.compiled, self.compile_seconds = timing.compiled(
            step, self.state, self.feed(self.rows)
        )

    def __call__(self) -> None:
        """Update the network once, and wait for it."""
        self.state, sums = self.compiled(self.state, self.feed(self.rows))
        jax.block_until_ready((self.state, sums))

    def peak_bytes(self) -> int | None:
        """Return the most that arrays took on an accelerator; None on a CPU."""
        return timing.peak_bytes(self.mesh.devices.flat[0])

    def product(self) -> tuple[int, Any]:
        """Return the operations of a large square product, and what computes it."""
        device = self.mesh.devices.flat[0]
        side = _CEILING_SIDE.get(device.platform, 8192)
        a = jax.random.normal(jax.random.key(0), (side, side), jnp.dtype(self.dtype))
        multiply = jax.jit(jnp.matmul)
        return 2 * side**3, lambda: jax.block_until_ready(multiply(a, a))

    def facts(self) -> dict[str, Any]:
        """Return devices, versions, compile time and collectives of the program."""
        found = environment.describe(self.mesh)
        keys = ("device_kind", "devices", "jax", "python", "git_commit")
        return {
            **{key: found[key] for key in keys},
            "compile_seconds": self.compile_seconds,
            "collectives": collectives(self.compiled.as_text()),
        }


def collectives(program: str) -> dict[str, int]:
    """Count the collective operations in the text of a compiled program, by name."""
    names = "all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute"
    counts: dict[str, int] = {}
    for name in re.findall(rf" ({names})(?:-start)?\(", program):
        counts[name] = counts.get(name, 0) + 1
    return counts


def _devices(count: int) -> list[Any]:
    devices = jax.devices()
    if len(devices) < count:
        raise ValueError(f"there are {len(devices)} devices, not {count}")
    return devices[:count]


def _dataset(spec: Mapping[str, Any]) -> data.Dataset:
    shape, num_classes = tuple(spec["image_shape"]), spec["num_classes"]
    count = max(_IMAGES, spec["batch_size"])
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (count, *shape), np.uint8)
    split = data.Split(images, generator.integers(0, num_classes, count, np.int32))
    names = tuple(map(str, range(num_classes)))
    return data.Dataset(names, (0.5,) * shape[-1], (0.25,) * shape[-1], split, split)
