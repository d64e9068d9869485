"""Attentions and datasets of your own, added from a file outside the package."""

import importlib.util
import inspect
import os
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flax import linen as nn

from attn_cnn_jax.data import DATASETS, Dataset, DatasetEntry
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models import attention

# The files of what was added, by its kind and name. A file is imported under one name
# for --config and under another for --variant, so that names of modules do not tell.
_FILES: dict[tuple[str, str], str] = {}


def add_attention(name: str, layer: Callable[..., nn.Module], **fields: Any) -> None:
    """Make `layer` the attention called `name`, with these fields and their defaults.

    As `models.attention.add_attention`, but the same file may be imported twice, and a
    name of the package's own, or of another file, is refused with a `ValueError`.
    """
    _claim("an attention", name, attention.ATTENTIONS)
    attention.add_attention(name, layer, **fields)


def add_dataset(
    name: str,
    load: Callable[[str], Dataset],
    *,
    image_shape: Sequence[int],
    num_classes: int,
    crop_padding: int = 0,
    flip: bool = False,
) -> None:
    """Make what `load(config.dataset.data_dir)` returns the dataset called `name`.

    `image_shape` is (height, width, channels); `crop_padding` and `flip` are set where
    a config takes `name` as an option. The same file may be imported twice; a name of
    the package's own, or of another file, is refused with a `ValueError`.
    """
    shape: Any = tuple(image_shape)
    sizes = (*shape, num_classes)
    if len(sizes) != 4 or not all(type(n) is int and n > 0 for n in sizes):
        raise ValueError(
            f"image_shape={shape} and num_classes={num_classes} must be (height, "
            "width, channels) and a number, all whole and above 0"
        )
    _claim("a dataset", name, DATASETS)
    DATASETS[name] = DatasetEntry(shape, num_classes, load, crop_padding, flip)


def load(path: str | os.PathLike) -> None:
    """Import the user's file at `path`, which calls `add_attention` or `add_dataset`.

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
    except BaseException as error:  # sys.exit() too
        if type(error) is KeyboardInterrupt:
            raise
        reason = str(error).strip().splitlines() or [""]
        raise UserError(
            f"--variant={path} cannot be imported: {type(error).__name__}: {reason[0]}"
        ) from error


def _claim(kind: str, name: str, table: Mapping[str, Any]) -> None:
    """Note that the running file adds `name`; refuse a name of somebody else's."""
    file = _running_file()
    if name in table and _FILES.get((kind, name)) != file:
        raise ValueError(f"there is {kind} called {name} already")
    _FILES[kind, name] = file


def _running_file() -> str:
    """Return the file whose top level is running, that is, which is being imported."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return "" if frame is None else os.path.realpath(frame.f_code.co_filename)
