"""Attention variants of your own, added from a file outside the package."""

import importlib.util
import inspect
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

from flax import linen as nn

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models import attention

# The files of the variants that were added. A file is imported under one name for
# --config and under another for --variant, so that names of modules do not tell.
_FILES: dict[str, str] = {}


def add_attention(name: str, layer: Callable[..., nn.Module], **fields: Any) -> None:
    """Make `layer` the attention called `name`, with these fields and their defaults.

    As `models.attention.add_attention`, but the same file may be imported twice, and a
    name of the package's own, or of another file, is refused with a `ValueError`.
    """
    file = _running_file()
    if name in attention.ATTENTIONS and _FILES.get(name) != file:
        raise ValueError(f"there is an attention called {name} already")
    attention.add_attention(name, layer, **fields)
    _FILES[name] = file


def load(path: str | os.PathLike) -> None:
    """Import the user's file at `path`, which calls `add_attention`.

    This runs the file; it is never done for a path that a workdir names.
    """
    path = pathlib.Path(path).expanduser()
    name = f"variant_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise UserError(f"--variant={path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        reason = str(error).strip().splitlines() or [""]
        raise UserError(
            f"--variant={path} cannot be imported: {type(error).__name__}: {reason[0]}"
        ) from error


def _running_file() -> str:
    """Return the file whose top level is running, that is, which is being imported."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return "" if frame is None else os.path.realpath(frame.f_code.co_filename)
