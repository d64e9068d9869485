"""The whole training step of a config, compiled for a GPU that need not be there."""

import dataclasses
import functools
import importlib.util
import pathlib
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh
from ml_collections import ConfigDict

from attn_cnn_jax import data, models, optim, parallel
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.timetable import Timetable
from attn_cnn_jax.train import initial_state, make_train_step

NUM_IMAGES = 50_000  # to train on, as CIFAR-10 has

# Autotuning would need the GPU to time kernels on; without it Triton's tiles are a
# blind guess, so that matrix products are left to cuBLAS.
_OPTIONS = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}


@dataclasses.dataclass(frozen=True)
class Program:
    """What the compiler made of a step, and what it was traced from."""

    mixed_products: int  # in the traced program, see `mixed_products`
    hlo: str  # the optimised module as text
    temporary_bytes: int  # of the device's memory, beside arguments and results
    compile_seconds: float


def target_mesh(target: str) -> Mesh:
    """Return a mesh of one device that is described by `benchmarks/TARGET.txtpb`.

    Programs can be compiled for it, but not run.
    """
    if importlib.util.find_spec("jax_cuda13_plugin") is None:
        raise UserError(
            "compiling for NVIDIA GPUs needs more packages: "
            "pip install -r benchmarks/requirements-compiled.txt"
        )
    file = pathlib.Path(__file__).with_name(f"{target}.txtpb")
    topology = topologies.get_topology_desc(
        platform="cuda", target_config=file.read_text(), topology="1x1x1"
    )
    return parallel.make_mesh(topology.devices)


def compile_step(config: ConfigDict, mesh: Mesh) -> Program:
    """Compile the step of `train.train` for the device of `mesh`; nothing is run."""
    start = time.perf_counter()
    traced = trace_step(config, mesh)
    compiled = traced.lower().compile(compiler_options=_OPTIONS)
    return Program(
        mixed_products(traced.jaxpr),
        compiled.as_text(),
        compiled.memory_analysis().temp_size_in_bytes,
        time.perf_counter() - start,
    )


def trace_step(config: ConfigDict, mesh: Mesh) -> Any:
    """Trace the step of `train.train`, without arrays; returns a `jax.stages.Traced`.

    It is one update: gathering a batch from NUM_IMAGES images on the device,
    augmentation, forward, backward, update.
    """
    dataset = _dataset(config.dataset.name)
    model = models.build(config.model, dataset.num_classes)
    schedule = Timetable(config, len(dataset.train)).schedule
    optimizer = optim.make_optimizer(config.optimizer, schedule)
    draw = functools.partial(initial_state, config, model, optimizer, dataset)
    step = make_train_step(config, model, optimizer, dataset, mesh)
    images, labels = dataset.train.images, dataset.train.labels
    rows = jax.ShapeDtypeStruct((config.batch_size,), jnp.int32)
    arguments = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=parallel.replicated(mesh)
        ),
        (jax.eval_shape(draw), (images, labels, rows)),
    )
    compiled_step: Any = parallel.compile_step(step, mesh, donate_state=True)
    return compiled_step.trace(*arguments)


def _dataset(name: str) -> data.Dataset:
    """Return black images of the shape of a dataset in the table."""
    entry = data.DATASETS[name]
    images = np.zeros((NUM_IMAGES, *entry.image_shape), np.uint8)
    split = data.Split(images, np.zeros(NUM_IMAGES, np.int32))
    channels = entry.image_shape[-1]
    names = tuple(map(str, range(entry.num_classes)))
    return data.Dataset(names, (0.5,) * channels, (0.25,) * channels, split, split)


def mixed_products(jaxpr: Any) -> int:
    """Count the matrix products of two dtypes, such as float32 x bfloat16.

    GPUs have none: both operands become the wider type, and the product slower. Each
    counts once, also in a loop. `jaxpr` is a traced program, closed or open. (JAX has
    no convolutions of two dtypes.)
    """
    count = 0
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        if equation.primitive.name == "dot_general":
            left, right = (variable.aval.dtype for variable in equation.invars)
            count += left != right
        inner = jax.tree.leaves(list(equation.params.values()), is_leaf=_is_jaxpr)
        count += sum(mixed_products(value) for value in inner if _is_jaxpr(value))
    return count


def _is_jaxpr(value: Any) -> bool:
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")
