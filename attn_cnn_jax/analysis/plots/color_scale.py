"""The colour scales of maps: of each alone, of a layer, or one for all of a page."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

from attn_cnn_jax.analysis.plots.page import two_digits
from attn_cnn_jax.analysis.plots.style import DIVERGING, SEQUENTIAL

Center = Literal["zero", "mean"] | None  # None for a scale that rises from 0
Sharing = Literal["map", "layer", "page"]  # what has a scale of its own


@dataclasses.dataclass(frozen=True)
class ColorScale:
    """The colours of maps [N, H, W] of every layer.

    With `center` they go both ways from zero, or from the mean of each map; maps that
    share a scale then go as far to either side.
    """

    maps: Sequence[np.ndarray]
    center: Center = None
    of_each: Sharing = "map"

    @property
    def cmap(self) -> str:
        """The colour map."""
        return DIVERGING if self.center else SEQUENTIAL

    @property
    def title(self) -> str:
        """What stands above the scale."""
        return "scale of all maps" if self._is_one else f"scale of each {self.of_each}"

    @property
    def ticks(self) -> tuple[str, ...]:
        """What stands under it, from end to end."""
        if self.center is None:
            end = f"{two_digits(100 * self._reach)} %" if self._is_one else "max"
            return ("0", end)
        if self.center == "mean" and not self._is_one:
            return ("low", "mean", "high")
        end = two_digits(self._reach) if self._is_one else "max"
        return (f"−{end}", "0" if self.center == "zero" else "mean", f"+{end}")

    def limits(self, layer: int) -> list[tuple[float, float]]:
        """Return the lowest and the highest value that each map of a layer shows."""
        own = [self._middle_and_reach(one) for one in self.maps[layer]]
        shared = max((reach for _, reach in own), default=0.0)
        shared = self._reach if self._is_one else shared
        limits = []
        for middle, reach in own:
            reach = (reach if self.of_each == "map" else shared) or 1.0
            limits.append((middle - reach if self.center else 0.0, middle + reach))
        return limits

    @property
    def _is_one(self) -> bool:
        return self.of_each == "page"

    @property
    def _reach(self) -> float:
        """The farthest that any map goes from its middle."""
        ends = [self._middle_and_reach(one) for layer in self.maps for one in layer]
        return max((reach for _, reach in ends), default=0.0)

    def _middle_and_reach(self, one: np.ndarray) -> tuple[float, float]:
        finite = one[np.isfinite(one)]
        if not finite.size:
            return 0.0, 0.0
        middle = float(finite.mean()) if self.center == "mean" else 0.0
        reach = np.abs(finite - middle).max() if self.center else finite.max()
        return middle, float(reach)
