"""What a model costs: its parameters, and what `bench` measured of it."""

import dataclasses
import functools
import json
import math
import pathlib
import warnings
from collections.abc import Mapping
from typing import Any

import jax
from ml_collections import ConfigDict

from attn_cnn_jax import config as config_lib
from attn_cnn_jax import data, models


@dataclasses.dataclass(frozen=True)
class Bench:
    """What `bench` measured last in a workdir; None where it does not say."""

    device: str  # with the computing type where that is not float32
    date: str
    flops_paper: float | None  # an image: 2 x multiply-adds of dense and convolution
    flops: float | None  # an image, attention included
    latency_ms: float | None  # mean of one image


def read_bench(workdir: pathlib.Path, parameters: int | None) -> Bench | None:
    """The last whole line of `bench.jsonl`, or None.

    One that cannot be read, or is about a model of another number of parameters, is
    left out with a warning.
    """
    file = workdir / "bench.jsonl"
    if not file.exists():
        return None
    found = None
    try:
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            found = record if isinstance(record, dict) else found
    except OSError:
        pass
    if found is None:
        warnings.warn(f"{one_line(file)} has no line that can be read.", stacklevel=3)
        return None
    counted = found.get("parameters")
    if None not in (parameters, counted) and counted != parameters:
        warnings.warn(
            f"{one_line(file)} is about a model of {one_line(counted)} parameters, not "
            f"{parameters}, and is left out.",
            stacklevel=3,
        )
        return None
    latency = found.get("latency_ms")
    return Bench(
        device=_device(found),
        date=str(found.get("date", "")),
        flops_paper=finite(found.get("flops_paper")),
        flops=finite(found.get("flops")),
        latency_ms=finite(latency.get("mean")) if isinstance(latency, dict) else None,
    )


def _device(record: Mapping[str, Any]) -> str:
    name = str(record.get("device_kind", "unknown device"))
    dtype = record.get("compute_dtype", "float32")
    return name if dtype == "float32" else f"{name}, {dtype}"


def count_parameters(config: ConfigDict) -> int | None:
    """Trained values of the config's model; None where counting takes its data.

    No array is made. What is wrong with the model is raised as it comes.
    """
    if (entry := data.DATASETS.get(str(config.dataset.name))) is None:
        return None
    fields = config_lib.to_json(config.model)
    return _count(fields, entry.image_shape, entry.num_classes)


@functools.lru_cache(maxsize=256)
def _count(model_json: str, image_shape: tuple[int, int, int], num_classes: int) -> int:
    fields = config_lib.from_dict(json.loads(model_json))
    model = models.build(fields, num_classes)
    variables = jax.eval_shape(
        lambda: models.initial_variables(model, jax.random.key(0), image_shape)
    )
    return models.count_parameters(variables)


def finite(value: Any) -> float | None:
    """`value` as a float where it is a finite number from 0 to 1e18, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= 1e18 and math.isfinite(value) else None


def one_line(value: Any) -> str:
    """`value` as text for a message: one line, printable, of bounded length."""
    text = "".join(c if c.isprintable() else "?" for c in str(value))
    return text if len(text) <= 300 else f"{text[:297]}..."
