"""The devices that a program is traced for, where its fastest form depends on them."""

import contextlib
import contextvars
from collections.abc import Iterator

import jax

_target: contextvars.ContextVar[tuple[str, int] | None] = contextvars.ContextVar(
    "target", default=None
)


@contextlib.contextmanager
def traced_for(platform: str, num_devices: int) -> Iterator[None]:
    """Let what is traced inside be for so many devices of a platform, such as "cpu".

    Elsewhere it is for all devices of JAX's default platform.
    """
    token = _target.set((platform, num_devices))
    try:
        yield
    finally:
        _target.reset(token)


def for_cpu() -> bool:
    """Tell if programs are traced for CPUs."""
    return _traced_for()[0] == "cpu"


def for_one_cpu() -> bool:
    """Tell if programs are traced for a CPU that does not pretend to be several."""
    return _traced_for() == ("cpu", 1)


def _traced_for() -> tuple[str, int]:
    return _target.get() or (jax.default_backend(), jax.device_count())
