"""95 % intervals of an accuracy: over runs of several seeds, and of one run."""

import math
import statistics
from collections.abc import Sequence

from scipy import special

CONFIDENCE = 0.95
_UPPER = (1 + CONFIDENCE) / 2


def student(accuracies: Sequence[float]) -> tuple[float, float] | None:
    """Return the interval of the mean over two runs or more, by Student's t.

    mean ± t s / sqrt(n), with the sample standard deviation s and the quantile t of
    n - 1 degrees of freedom, cut to [0, 1]. It says how far the mean over all seeds may
    be, and nothing of other test images. None where all runs are equal: s = 0 is no
    estimate of how seeds differ.
    """
    n, mean = len(accuracies), statistics.fmean(accuracies)
    deviation = statistics.stdev(accuracies)
    if not deviation:
        return None
    quantile = float(special.stdtrit(n - 1, _UPPER))
    reach = quantile * deviation / math.sqrt(n)
    return max(0.0, mean - reach), min(1.0, mean + reach)


def wilson(accuracy: float, images: int) -> tuple[float, float]:
    """Return Wilson's interval of the share that is right of so many test images.

    The roots p of (accuracy - p)^2 = z^2 p (1 - p) / n (Wilson, JASA 1927). It says how
    far the accuracy of this one network on other such images may be, and nothing of
    other seeds.
    """
    z = float(special.ndtri(_UPPER))
    share = z * z / images
    middle = (accuracy + share / 2) / (1 + share)
    variance = accuracy * (1 - accuracy) / images + share / (4 * images)
    reach = z * math.sqrt(max(0.0, variance)) / (1 + share)
    return max(0.0, middle - reach), min(1.0, middle + reach)
