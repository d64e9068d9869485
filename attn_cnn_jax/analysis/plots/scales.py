"""The colour scales of maps: what is lightest, what is darkest, what shares a scale."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from attn_cnn_jax.analysis.plots.page import two_digits

Scale = Literal["map", "layer", "figure"]  # what shares one colour scale
Center = Literal["zero", "mean"] | None  # of a diverging scale; None: from 0 up
Limits = tuple[float, float]


def color_limits(
    maps: Sequence[np.ndarray], scale: Scale, center: Center
) -> list[list[Limits]]:
    """Lowest and highest value of the colour scale of every map of every layer."""
    own = [[_own_limits(one, center) for one in layer] for layer in maps]
    if scale == "layer":
        return [[_union(layer)] * len(layer) for layer in own]
    if scale == "figure":
        everything = _union([limits for layer in own for limits in layer])
        return [[everything] * len(layer) for layer in own]
    return own


def ticks_of(
    maps: Sequence[np.ndarray], scale: Scale, center: Center
) -> tuple[str, ...]:
    """What stands at the scale, evenly from its left to its right end."""
    if center == "mean":
        return ("low", "mean", "high")
    if scale != "figure":
        return ("−max", "0", "+max") if center else ("0", "max")
    limits = color_limits(maps, scale, center)
    low, high = next((layer[0] for layer in limits if layer), (0.0, 1.0))
    values = (low, 0.0, high) if center else (low, high)
    return tuple(map(two_digits, values))


def _own_limits(one: np.ndarray, center: Center) -> Limits:
    finite = one[np.isfinite(one)]
    if not finite.size:
        return (0.0, 1.0)
    if center is None:
        return (0.0, float(finite.max()) or 1.0)
    middle = float(finite.mean()) if center == "mean" else 0.0
    reach = float(np.abs(finite - middle).max()) or 1.0
    return (middle - reach, middle + reach)


def _union(limits: Sequence[Limits]) -> Limits:
    if not limits:
        return (0.0, 1.0)
    lows, highs = zip(*limits, strict=True)
    return (min(lows), max(highs))
