"""Convolutions in plain NumPy, for the tests of the theorem."""

import numpy as np
import pytest

_MODES = {"edge": "edge", "zero": "constant", "reflect": "reflect"}


def convolve(x, kernel, bias, padding, strides, dilation):
    """The convolution as a sum over taps, padded around the middle of the kernel."""
    sides = []
    for size, spacing in zip(kernel.shape[:2], dilation, strict=True):
        middle = (size - 1) // 2
        sides.append((spacing * middle, spacing * (size - 1 - middle)))
    if padding != "valid":
        x = np.pad(x, ((0, 0), *sides, (0, 0)), mode=_MODES[padding])
    height, width = (
        length - sum(side) for length, side in zip(x.shape[1:3], sides, strict=True)
    )
    y = np.zeros((len(x), height, width, kernel.shape[3])) + bias
    for i in range(kernel.shape[0]):
        for j in range(kernel.shape[1]):
            top, left = i * dilation[0], j * dilation[1]
            window = x[:, top : top + height, left : left + width]
            y = y + np.einsum("bhwd,de->bhwe", window, kernel[i, j])
    return y[:, :: strides[0], :: strides[1]]


@pytest.fixture(name="convolve")
def _convolve():
    return convolve
