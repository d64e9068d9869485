"""All that is known of devices: the mesh, where arrays lie, how a step is compiled.

A step is one program over all devices: the state is replicated and the batch is split
over the axis `data`. BatchNorm and the loss are those of the global batch, whatever the
number of devices.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from attn_cnn_jax.data import Split

_AXIS = "data"
_SHARE_OF_MEMORY = 0.25  # what the images of a split may take of a device's memory


def make_mesh(devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh of all devices of all processes, or of the given ones, along `data`."""
    return Mesh(np.asarray(devices or jax.devices()), (_AXIS,))


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding that keeps a whole copy on every device."""
    return NamedSharding(mesh, PartitionSpec())


def replicate(tree: Any, mesh: Mesh) -> Any:
    """Copy every array, which all processes hold alike, to every device."""
    sharding = replicated(mesh)

    def put(leaf: Any) -> jax.Array:
        leaf = np.asarray(leaf)
        return jax.make_array_from_callback(leaf.shape, sharding, lambda i: leaf[i])

    return jax.tree.map(put, tree)


def split_batch(tree: Any, mesh: Mesh) -> Any:
    """Inside a step: split the leading axis of every array over the devices.

    Any batch size is accepted; the last device may get fewer rows.
    """
    sharding = NamedSharding(mesh, PartitionSpec(_AXIS))
    return jax.lax.with_sharding_constraint(tree, sharding)


def compile_step(
    step: Callable[..., Any], mesh: Mesh, *, donate_state: bool = False
) -> Callable[..., Any]:
    """Compile `step(state, ...)` once for the mesh; its results are replicated."""
    return jax.jit(
        step,
        out_shardings=replicated(mesh),
        donate_argnums=(0,) if donate_state else (),
    )


class Feed:
    """Hands the rows of a split to a compiled step.

    The images lie on every device where they fit (`placement` "auto"), and only row
    indices travel; else each process gathers its own rows on the host.
    """

    def __init__(self, split: Split, mesh: Mesh, placement: str = "auto") -> None:
        self._mesh = mesh
        self._split = split
        self.num_images = len(split)
        if placement == "auto":
            fits = _fits(split.images.nbytes, mesh.local_devices[0])
            placement = "device" if fits else "host"
        self.on_device = placement == "device"
        if self.on_device:
            self._arrays = replicate((split.images, split.labels), mesh)

    def __call__(self, rows: np.ndarray) -> tuple[Any, Any, Any]:
        """Arguments for `gather` inside the step."""
        if self.on_device:
            return (*self._arrays, replicate(rows, self._mesh))
        divides = len(rows) % self._mesh.size == 0
        spec = PartitionSpec(_AXIS) if divides else PartitionSpec()
        sharding = NamedSharding(self._mesh, spec)

        def own_rows(values: np.ndarray) -> jax.Array:
            def of_device(index: Any) -> np.ndarray:
                return values[rows[index[0]]]

            shape = (len(rows), *values.shape[1:])
            return jax.make_array_from_callback(shape, sharding, of_device)

        return own_rows(self._split.images), own_rows(self._split.labels), None


def gather(
    source: tuple[jax.Array, jax.Array, jax.Array | None], mesh: Mesh
) -> tuple[jax.Array, jax.Array]:
    """Inside a step: the images and labels of a batch, split over the devices."""
    images, labels, rows = source
    if rows is not None:
        images, labels = jnp.take(images, rows, axis=0), jnp.take(labels, rows, axis=0)
    return split_batch((images, labels), mesh)


def _fits(num_bytes: int, device: Any) -> bool:
    limit = (device.memory_stats() or {}).get("bytes_limit")
    return limit is None or num_bytes < _SHARE_OF_MEMORY * limit
