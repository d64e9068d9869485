"""All that is known of devices: the mesh, where arrays lie, how a step is compiled.

A step is one program over all devices: the state is replicated and the batch is split
over the axis `data`. BatchNorm and the loss are those of the global batch, whatever the
number of devices.
"""

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from attn_cnn_jax.data import Split
from attn_cnn_jax.models import hardware

_AXIS = "data"
_SHARE_OF_MEMORY = 0.25  # what the images of a split may take of a device's memory
_PRECISIONS = {"float32": "float32", "tf32": "tensorfloat32"}  # JAX's names


def make_mesh(devices: Sequence[Any] | None = None) -> Mesh:
    """Make a mesh of all devices of all processes, or of the given ones."""
    return Mesh(np.asarray(devices or jax.devices()), (_AXIS,))


def set_arithmetic(config: ConfigDict) -> None:
    """Let JAX compute in the precision that the config asks for; before any array."""
    if config.model.compute_dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    precision = _PRECISIONS[config.matmul_precision]
    jax.config.update("jax_default_matmul_precision", precision)


def matmul_precision(config: ConfigDict) -> AbstractContextManager:
    """Return the context in which products of float32 have the config's precision."""
    return jax.default_matmul_precision(_PRECISIONS[config.matmul_precision])


def arithmetic(config: ConfigDict, mesh: Mesh) -> str:
    """Return the arithmetic of products: the compute dtype, or tf32 where it is that.

    A CPU computes in float32 whatever the config says.
    """
    dtype, on_cpu = config.model.compute_dtype, _platform(mesh) == "cpu"
    return config.matmul_precision if dtype == "float32" and not on_cpu else dtype


def _platform(mesh: Mesh) -> str:
    return mesh.devices.flat[0].platform


def replicated(mesh: Mesh) -> NamedSharding:
    """Return the sharding that keeps a whole copy on every device."""
    return NamedSharding(mesh, PartitionSpec())


def replicate(tree: Any, mesh: Mesh) -> Any:
    """Copy every array, which all processes hold alike, to every device."""
    sharding = replicated(mesh)

    def put(leaf: Any) -> jax.Array:
        leaf = np.asarray(leaf)
        return jax.make_array_from_callback(leaf.shape, sharding, lambda i: leaf[i])

    return jax.tree.map(put, tree)


def split_batch(tree: Any, mesh: Mesh) -> Any:
    """Split, inside a step, the leading axis of every array over the devices.

    Any batch size is accepted; the last device may get fewer rows.
    """
    sharding = NamedSharding(mesh, PartitionSpec(_AXIS))
    return jax.lax.with_sharding_constraint(tree, sharding)


def compile_step(
    step: Callable[..., Any], mesh: Mesh, *, donate_state: bool = False
) -> Callable[..., Any]:
    """Compile `step(state, ...)` once for the mesh; its results are replicated."""

    @functools.wraps(step)
    def traced(*arguments: Any) -> Any:
        with hardware.traced_for(_platform(mesh), mesh.size):
            return step(*arguments)

    return jax.jit(
        traced,
        out_shardings=replicated(mesh),
        donate_argnums=(0,) if donate_state else (),
    )


def loop_over(
    step: Callable[..., Any], length: int
) -> Callable[[Any, Any, Any], tuple[Any, Any]]:
    """Return `(state, fed, count) -> (state, results)`: `count` steps, one program.

    `fed` is of `length` batches, and the results of the steps are stacked to that
    length. As `count` is known at run time only, shorter blocks are the same program.
    """

    def steps(state: Any, fed: Any, count: Any) -> tuple[Any, Any]:
        def body(i: Any, carry: Any) -> tuple[Any, Any]:
            state, results = carry
            state, result = step(state, batch_of(fed, i))
            return state, jax.tree.map(lambda a, r: a.at[i].set(r), results, result)

        result = jax.eval_shape(step, state, batch_of(fed, 0))[1]
        results = jax.tree.map(
            lambda leaf: jnp.zeros((length, *leaf.shape), leaf.dtype), result
        )
        return jax.lax.fori_loop(0, count, body, (state, results))

    return steps


def sum_over_parts(
    function: Callable[..., Any], images: Any, labels: Any, size: int
) -> Any:
    """Return, inside a step, the sum of `function(images, labels, first)` over parts.

    The parts of the batch have `size` images, from its index `first` on, and are
    computed one after the other.
    """
    images, labels = (a.reshape(-1, size, *a.shape[1:]) for a in (images, labels))
    firsts = jnp.arange(0, len(images) * size, size)
    like = jax.eval_shape(function, images[0], labels[0], firsts[0])

    def add(total: Any, part: tuple[Any, Any, Any]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, function(*part)), None

    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
    return jax.lax.scan(add, zero, (images, labels, firsts))[0]


def batches_per_program(mesh: Mesh, wanted: int) -> int:
    """Return how many batches one program runs: `wanted`, but one at a time on CPUs.

    There dispatch costs nothing, and XLA rounds the convolutions and sums in the body
    of a loop differently, by which a run would depend on the length of its blocks.
    """
    return 1 if _platform(mesh) == "cpu" else wanted


def compile_blocks(
    step: Callable[..., Any], feed: "Feed", longest: int
) -> Callable[[Any, np.ndarray], tuple[Any, list[Any]]]:
    """Compile `block(state, rows [n, B]) -> (state, results)`, n at most `longest`.

    It is n times `step(state, fed) -> (state, result)`. Each of the results is that
    of a step, or of several, stacked; beyond n they are padding.
    """
    length = batches_per_program(feed.mesh, longest)
    program = step if length == 1 else loop_over(step, length)
    compiled = compile_step(program, feed.mesh, donate_state=True)

    def block(state: Any, rows: np.ndarray) -> tuple[Any, list[Any]]:
        if length > 1:
            padded = np.resize(rows, (length, rows.shape[1]))
            state, stacked = compiled(state, feed(padded), np.int32(len(rows)))
            return state, [stacked]
        results = []
        for batch in rows:
            state, result = compiled(state, feed(batch))
            results.append(result)
        return state, results

    return block


class Feed:
    """Hands the rows of a split to a compiled step.

    The images lie on every device where they fit (`placement` "auto"), and only row
    indices travel; else each process gathers its own rows on the host.
    """

    def __init__(self, split: Split, mesh: Mesh, placement: str = "auto") -> None:
        self.mesh = mesh
        self._split = split
        self.num_images = len(split)
        if placement == "auto":
            fits = _fits(split.images.nbytes, mesh.local_devices[0])
            placement = "device" if fits else "host"
        self.on_device = placement == "device"
        if self.on_device:
            self._arrays = replicate((split.images, split.labels), mesh)

    def __call__(self, rows: np.ndarray) -> tuple[Any, Any, Any]:
        """Return what `gather` takes of a batch, rows [B].

        Rows [n, B] make that of n batches, of which `batch_of` takes one.
        """
        if self.on_device:
            return (*self._arrays, rows)  # they travel with the call of the program
        divides = rows.shape[-1] % self.mesh.size == 0
        spec = [None] * (rows.ndim - 1) + [_AXIS if divides else None]
        sharding = NamedSharding(self.mesh, PartitionSpec(*spec))

        def own_rows(values: np.ndarray) -> jax.Array:
            def of_device(index: Any) -> np.ndarray:
                return values[rows[index[: rows.ndim]]]

            shape = (*rows.shape, *values.shape[1:])
            return jax.make_array_from_callback(shape, sharding, of_device)

        return own_rows(self._split.images), own_rows(self._split.labels), None


def batch_of(fed: tuple[Any, Any, Any], index: Any) -> tuple[Any, Any, Any]:
    """Return one of the batches of `fed`, inside a program."""
    images, labels, rows = fed
    if rows is None:
        return images[index], labels[index], None
    return images, labels, rows[index]


def gather(
    fed: tuple[jax.Array, jax.Array, jax.Array | None], mesh: Mesh
) -> tuple[jax.Array, jax.Array]:
    """Gather, inside a step, images and labels of a batch, split over the devices."""
    images, labels, rows = fed
    if rows is not None:
        images, labels = jnp.take(images, rows, axis=0), jnp.take(labels, rows, axis=0)
    return split_batch((images, labels), mesh)


def _fits(num_bytes: int, device: Any) -> bool:
    limit = (device.memory_stats() or {}).get("bytes_limit")
    return limit is None or num_bytes < _SHARE_OF_MEMORY * limit
