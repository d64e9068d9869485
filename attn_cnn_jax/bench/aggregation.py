"""Aggregation of SAN against its copied-out form: temporary memory and time.

`san.aggregate` weighs the k * k neighbours of a pixel without copying them out; the
form beside it makes the array [B, H, W, k * k, C] first. Both run forward and backward.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn_cnn_jax.bench.timing import median_seconds
from attn_cnn_jax.models import san


def copied_out(
    values: Float[Array, "B H W C"], weights: Float[Array, "B H W T G"]
) -> Float[Array, "B H W C"]:
    """Compute `san.aggregate` from all neighbourhoods at once.

    Channel c is weighed by plane c mod G.
    """
    taps, planes = weights.shape[-2:]
    neighbours = san.neighbourhoods(values, round(taps**0.5))
    neighbours = neighbours.reshape(*neighbours.shape[:-1], -1, planes)
    return jnp.einsum("bhwtsg,bhwtg->bhwsg", neighbours, weights).reshape(values.shape)


def compare(
    *,
    batch_size: int = 64,
    size: int = 32,
    channels: int = 64,
    planes: int = 8,
    kernel_size: int = 7,
    steps: int,
    seconds: float,
) -> dict[str, Any]:
    """Measure temporary bytes and median seconds of both forms, and their ratios.

    A step is sum(out * cotangent) with its gradients with respect to values and
    weights, float32; the two forms take turns.
    """
    grid, device = (batch_size, size, size), jax.devices()[0]
    shapes = {
        "values": (*grid, channels),
        "weights": (*grid, kernel_size**2, planes),
        "cotangent": (*grid, channels),
    }
    keys = jax.random.split(jax.random.key(0), len(shapes))
    args = [
        jax.random.normal(key, shape, jnp.float32)
        for key, shape in zip(keys, shapes.values(), strict=True)
    ]
    forms = {"aggregate": san.aggregate, "copied_out": copied_out}
    steps_of = {name: _gradients(form).lower(*args) for name, form in forms.items()}
    compiled: dict[str, Any] = {name: s.compile() for name, s in steps_of.items()}
    times = median_seconds(
        [lambda step=step: step(*args) for step in compiled.values()], steps, seconds
    )
    memory = [s.memory_analysis().temp_size_in_bytes for s in compiled.values()]
    return {
        "batch_size": batch_size,
        "size": size,
        "channels": channels,
        "planes": planes,
        "kernel_size": kernel_size,
        "compute_dtype": "float32",
        "device_kind": device.device_kind,
        "platform": device.platform,
        "jax": jax.__version__,
        "temp_bytes": dict(zip(forms, memory, strict=True)),
        "temp_ratio": memory[0] / memory[1],
        "seconds": dict(zip(forms, times, strict=True)),
        "seconds_ratio": times[0] / times[1],
    }


def as_text(record: dict[str, Any]) -> str:
    """Return the comparison as lines for a person."""
    rows = [("", "temporary MiB", "ms")]
    for name in record["seconds"]:
        mebibytes = record["temp_bytes"][name] / 2**20
        rows.append(
            (name, f"{mebibytes:,.1f}", f"{1e3 * record['seconds'][name]:,.1f}")
        )
    rows.append(
        ("ratio", f"{record['temp_ratio']:.3f}", f"{record['seconds_ratio']:.3f}")
    )
    lines = [f"{name:<12}{memory:>15}{time:>12}" for name, memory, time in rows]
    return "\n".join(
        [
            f"aggregation forward + backward, {record['channels']} channels, "
            f"{record['planes']} planes, {record['size']} x {record['size']} pixels, "
            f"kernel {record['kernel_size']}, batch {record['batch_size']}",
            *lines,
            f"{record['device_kind']} ({record['platform']}), "
            f"{record['compute_dtype']}, jax {record['jax']}",
        ]
    )


def _gradients(form: Callable[[Array, Array], Array]) -> Any:
    def step(values: Array, weights: Array, cotangent: Array) -> Any:
        def loss(values: Array, weights: Array) -> Array:
            return (form(values, weights) * cotangent).sum()

        return jax.value_and_grad(loss, argnums=(0, 1))(values, weights)

    return jax.jit(step)
