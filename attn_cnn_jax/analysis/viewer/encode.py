"""Attention maps in few bytes: 8-bit codes, differences or factors, gzip.

A row is what one head gives the keys of one query. It keeps its own range as float32,
`low` (0 for probabilities) and `high`; its values become the nearest of
low + (high - low) scale[code], which is at most 1/255 of the row's largest absolute
value off. See `SCALES`.
"""

import gzip
import zlib

import numpy as np
from jaxtyping import Float, UInt8

from attn_cnn_jax.analysis.pictures import average_attention
from attn_cnn_jax.analysis.viewer.factors import factorize


def _square_root_scale(codes: int) -> Float[np.ndarray, "codes"]:
    return np.square(np.arange(codes) / (codes - 1))


def _stepped_scale(first: float, ratio: float) -> Float[np.ndarray, "codes"]:
    """Shares of the maximum whose steps are `ratio` of a share, 2/255 at most."""
    scale = [0.0, first]
    while scale[-1] < 1:
        step = min(2 / 255, max(first, ratio * scale[-1]))
        scale.append(min(1.0, scale[-1] + step))
    return np.array(scale)


# Weights that may be negative have the first scale. Probabilities have the second, the
# square-root scale, finest where they are small. A layer that would take more than its
# share of 2 MB an image is stored as factors, which the page turns into codes of the
# last, finer scale; or else it has one of those between, which keep the error but are
# coarser for the small: the first that fits, or the smallest.
SCALES: tuple[Float[np.ndarray, "codes"], ...] = (
    np.arange(256) / 255,
    _square_root_scale(256),
    _stepped_scale(1e-4, 0.25),
    _stepped_scale(2e-3, 1.0),
    _stepped_scale(2 / 255, 1.0),
    _square_root_scale(1024),
)
_FACTORS = len(SCALES) - 1
_FACTORS_ERROR = 0.74 / 255  # of the maximum: with half a step of their scale 1/255

# Of a layer, gzipped: 6 of 9 x 256 x 256 codes make 2 MB of text.
_LAYER_BYTES = 282_000
_BYTES_PER_CODE = 0.478
_FINAL_SIZE = 0.93  # of what zlib's fastest level leaves, about

# Letters that stand for characters of seven bits that a page cannot hold as they are.
SUBSTITUTES = {0xC0: 0x00, 0xC1: 0x0D, 0xC2: ord("<")}

# The axes (of [Hq, Wq, Hk, Wk]) along which the codes of a head may be replaced by
# their differences; a head takes what compresses best, and the page sums up again.
_FILTERS: tuple[tuple[int, ...], ...] = ((), (0, 2), (0, 3), (0, 2, 3), (1, 2, 3))


def ranges(
    rows: Float[np.ndarray, "*rows keys"], *, signed: bool
) -> tuple[Float[np.ndarray, "*rows"], Float[np.ndarray, "*rows"]]:
    """`low` and `high` (float32) of each row; `low` is 0 unless signed.

    Raises a ValueError for values that are not finite, and for negative ones unless
    signed.
    """
    low, high = rows.min(-1), rows.max(-1)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ValueError("attention holds values that are not finite")
    if not signed:
        if (low < 0).any():
            raise ValueError("probabilities are negative")
        low = np.zeros_like(low)
    return low.astype(np.float32), high.astype(np.float32)


def quantize(
    rows: Float[np.ndarray, "*rows keys"],
    low: Float[np.ndarray, "*rows"],
    high: Float[np.ndarray, "*rows"],
    scale: Float[np.ndarray, "codes"],
) -> UInt8[np.ndarray, "*rows keys"]:
    """The codes of the nearest values that the scale has between `low` and `high`."""
    low = low.astype(np.float64)[..., None]
    spread = high.astype(np.float64)[..., None] - low
    share = np.divide(rows - low, spread, out=np.zeros(rows.shape), where=spread > 0)
    between = (scale[1:] + scale[:-1]) / 2
    return np.searchsorted(between, share).astype(np.uint8)


def difference(
    codes: UInt8[np.ndarray, "Hq Wq Hk Wk"], axes: tuple[int, ...]
) -> UInt8[np.ndarray, "Hq Wq Hk Wk"]:
    """Differences modulo 256 along each of the axes; the first value stays."""
    for axis in axes:
        codes = np.diff(codes, axis=axis, prepend=np.uint8(0))
    return codes


def encode_layer(
    probs: Float[np.ndarray, "N Hq Wq Hk Wk"],
    class_mass: Float[np.ndarray, "N Hq Wq"] | None,
    *,
    signed: bool,
    average: bool,
) -> bytes:
    """What the page needs of a layer and an image, gzipped; values in this order.

    float32, little-endian: `low` [N, Hq, Wq] if signed, `high` [N, Hq, Wq],
    `class_mass` [N, Hq, Wq] if there is one, and if `average` the `high` of each head's
    Average Attention [N]. Then bytes: codes of Average Attention [N, Hq, Wq] on the
    square-root scale if `average`, the number of the scale of the rest. If that is
    the last scale, then the ranks R of the heads' factors [N], their steps [N] as
    float32, and the bytes of each (`Factors.to_bytes`); else the axes of each head's
    differences [N] (bit a for axis a), and those differences [N, Hq, Wq, Hk, Wk].
    """
    heads, *grids = probs.shape
    rows = probs.reshape(heads, grids[0] * grids[1], grids[2] * grids[3])
    low, high = ranges(rows, signed=signed)
    floats, averages = [low, high] if signed else [high], b""
    if class_mass is not None:
        floats.append(class_mass)
    if average:
        maps = average_attention(probs).reshape(rows.shape[:2])
        zero, average_high = ranges(maps, signed=False)
        floats.append(average_high)
        averages = quantize(maps, zero, average_high, SCALES[1]).tobytes()
    before = b"".join(np.asarray(f, "<f4").tobytes() for f in floats) + averages

    if signed:
        codes = quantize(rows, low, high, SCALES[0])
        coded = _as_differences(0, codes.reshape(probs.shape))
    else:
        coded = _fit(rows, high, probs.shape)
    return compress(before + coded)


def _fit(
    rows: Float[np.ndarray, "N queries keys"],
    high: Float[np.ndarray, "N queries"],
    shape: tuple[int, ...],
) -> bytes:
    """The first form of a layer that keeps it in its share, or the smallest."""
    budget = max(_LAYER_BYTES, _BYTES_PER_CODE * rows.size)
    sizes: dict[bytes, float] = {}
    for number in (1, _FACTORS, *range(2, _FACTORS)):
        if number == _FACTORS:
            coded = _as_factors(rows, high)
            if coded is None:
                continue
        else:
            codes = quantize(rows, np.zeros_like(high), high, SCALES[number])
            coded = _as_differences(number, codes.reshape(shape))
        if len(coded) <= budget:
            return coded
        sizes[coded] = _FINAL_SIZE * len(zlib.compress(coded, 1))
        if sizes[coded] <= budget:
            return coded
    return min(sizes, key=lambda form: sizes[form])


def _as_factors(
    rows: Float[np.ndarray, "N queries keys"], high: Float[np.ndarray, "N queries"]
) -> bytes | None:
    """A layer as factors of its heads, None where a head has none."""
    heads = []
    for head, largest in zip(rows, high[..., None], strict=True):
        shares = np.divide(head, largest, out=np.zeros(head.shape), where=largest > 0)
        heads.append(factorize(shares, _FACTORS_ERROR))
        if heads[-1] is None:
            return None
    ranks = bytes([_FACTORS, *(head.rank for head in heads)])
    steps = np.array([head.step for head in heads], "<f4").tobytes()
    return ranks + steps + b"".join(head.to_bytes() for head in heads)


def _as_differences(number: int, codes: UInt8[np.ndarray, "N Hq Wq Hk Wk"]) -> bytes:
    """A layer's codes of a scale, each head by the filter that suits it."""
    filters = [_best_filter(head) for head in codes]
    bits = [sum(1 << axis for axis in axes) for axes in filters]
    heads = map(difference, codes, filters)
    return bytes([number, *bits]) + b"".join(head.tobytes() for head in heads)


def compress(raw: bytes) -> bytes:
    """Gzip, the same bytes for the same input."""
    return gzip.compress(raw, compresslevel=9, mtime=0)


def to_text(packed: bytes) -> str:
    """Bytes as text, seven bits a character: of UTF-8 an eighth less than base64.

    A page may not hold NUL and carriage return, and `<` would end a script: three
    letters stand for them, of two bytes each (`SUBSTITUTES`).
    """
    bits = np.unpackbits(np.frombuffer(packed, np.uint8))
    sevens = np.append(bits, np.zeros(-len(bits) % 7, np.uint8)).reshape(-1, 7)
    codes = np.packbits(sevens, axis=1) >> 1
    letters = {code: chr(letter) for letter, code in SUBSTITUTES.items()}
    return codes.tobytes().decode("ascii").translate(letters)


def _best_filter(codes: UInt8[np.ndarray, "Hq Wq Hk Wk"]) -> tuple[int, ...]:
    sizes = [len(zlib.compress(difference(codes, f).tobytes(), 1)) for f in _FILTERS]
    return _FILTERS[int(np.argmin(sizes))]
