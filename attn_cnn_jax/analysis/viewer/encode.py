"""Attention maps as bytes of an HTML page: 8-bit codes, gzip, a few bytes escaped.

A row is what one head gives the keys of one query. It keeps its largest absolute value
as float32, and for each value the code of the nearest of the `shares` of that largest:
what the page shows is nowhere more than 1/255 of the row's largest value off.
"""

import gzip
import re

import numpy as np
from jaxtyping import Float, UInt8

from attn_cnn_jax.analysis.pictures import average_attention

# What an HTML parser changes in the text of a script, and the byte that announces that
# the next one stands for itself less 64.
_CHANGED = re.compile(rb"[\0\r<=]")


def shares(*, signed: bool) -> Float[np.ndarray, "codes"]:
    """Return the share of its row's largest absolute value that each code stands for.

    Neighbours are at most 2/255 apart. Signed weights have 256 equal steps from -1 to
    1. Probabilities have a square-root code, fine where they are small, that goes on as
    a straight line where its own steps would pass 2/255: its 192 codes take at most
    7 2/3 bits each, so that gzip holds the size of a map whatever the map shows.
    """
    if signed:
        return np.linspace(-1, 1, 256)
    code = np.arange(192)
    return np.where(code < 127, code**2 / 127, 2 * code - 127) / 255


def quantize(
    rows: Float[np.ndarray, "*rows keys"], *, signed: bool
) -> tuple[Float[np.ndarray, "*rows"], UInt8[np.ndarray, "*rows keys"]]:
    """Return the largest absolute value of each row, float32, and the values' codes.

    Raises a ValueError for values that are not finite, and for negative ones unless
    they are `signed`.
    """
    if not np.isfinite(rows).all():
        raise ValueError("attention holds values that are not finite")
    if not signed and (rows < 0).any():
        raise ValueError("probabilities are negative")
    largest = np.abs(rows).max(-1).astype(np.float32)
    divisor = np.where(largest > 0, largest, 1).astype(np.float64)[..., None]
    scale = shares(signed=signed)
    codes = np.searchsorted((scale[1:] + scale[:-1]) / 2, rows / divisor)
    return largest, codes.astype(np.uint8)


def encode_layer(
    probs: Float[np.ndarray, "N Hq Wq Hk Wk"],
    class_mass: Float[np.ndarray, "N Hq Wq"] | None,
    *,
    signed: bool,
    average: bool,
) -> bytes:
    """Return what the page needs of a layer and an image, values in this order.

    As float32, little-endian: the rows' largest absolute values [N, Hq, Wq],
    `class_mass` [N, Hq, Wq] if there is one, and if `average` the maximum of each
    head's Average Attention [N]. Then codes, a byte each: of the maps
    [N, Hq, Wq, Hk, Wk] and if `average` of Average Attention [N, Hq, Wq].
    """
    heads, *grids = probs.shape
    rows = probs.reshape(heads, grids[0] * grids[1], grids[2] * grids[3])
    largest, codes = quantize(rows, signed=signed)
    floats, bytes_ = [largest], [codes]
    if class_mass is not None:
        floats.append(class_mass)
    if average:
        maps = average_attention(probs).reshape(rows.shape[:2])
        largest, codes = quantize(maps, signed=signed)
        floats.append(largest)
        bytes_.append(codes)
    arrays = [array.astype("<f4") for array in floats] + bytes_
    return b"".join(array.tobytes() for array in arrays)


def block(name: str, raw: bytes) -> bytes:
    """Return `raw`, gzipped, as a script element that no browser runs."""
    text = escape(gzip.compress(raw, compresslevel=6, mtime=0))
    return b'<script type="text/plain" id="%b">%b</script>\n' % (name.encode(), text)


def escape(raw: bytes) -> bytes:
    """Return bytes that a page in windows-1252, a character each, gives back unchanged.

    HTML's windows-1252 has a character for each of the 256 bytes, so that only those
    that its parser changes are escaped: 1.6 % more of random bytes (base64: 33 %).
    """
    return _CHANGED.sub(lambda found: bytes([ord("="), found[0][0] + 64]), raw)
