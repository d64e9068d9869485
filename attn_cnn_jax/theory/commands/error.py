"""The error of attention with soft heads, its bound, and a figure of both.

python -m attn_cnn_jax.theory error --output=FOLDER
"""

import jax
import numpy as np
from absl import flags

from attn_cnn_jax import command_line, data, remote
from attn_cnn_jax.analysis import plots
from attn_cnn_jax.config import base_config
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.theory.errors import error_curves

_OUTPUT = command_line.define_folder("output", "theorem", "Folder to write to.")
_DATASET = flags.DEFINE_string("dataset", "digits", "Whose first test images are seen.")
_SIZE = flags.DEFINE_integer("size", 3, "K of the random K x K kernel.", 1)
_FEATURES = flags.DEFINE_integer("features", 16, "Output channels.", 1)
_SEED = flags.DEFINE_integer("seed", 0, "Of the kernel.", 0)
_NUM_IMAGES = 8
_SHARPNESS = tuple(np.arange(0.5, 10.1, 0.5).tolist())


def main() -> None:
    """Measure, print a line for each sharpness, and draw."""
    jax.config.update("jax_enable_x64", True)
    block = base_config().dataset
    block.name = _DATASET.value
    dataset = data.load(block)
    images = np.asarray(dataset.test.images[:_NUM_IMAGES])
    x = np.asarray(data.normalize(images, dataset.mean, dataset.std), np.float64)
    size = _SIZE.value
    if size > min(x.shape[1:3]):
        raise UserError(f"--size={size} is larger than the images of {_DATASET.value}.")
    shape = (size, size, x.shape[3], _FEATURES.value)
    kernel = np.random.default_rng(_SEED.value).normal(size=shape)
    curves = error_curves(kernel, x, _SHARPNESS)
    print("sharpness" + "".join(f"{c.dtype:>12}{'bound':>10}" for c in curves))
    for row, sharpness in enumerate(_SHARPNESS):
        cells = [f"{c.errors[row]:12.1e}{c.bounds[row]:10.1e}" for c in curves]
        print(f"{sharpness:9.1f}" + "".join(cells))
    subject = (
        f"random {size} x {size} kernel, {shape[2]} -> {shape[3]} channels, "
        f"{len(x)} images of {_DATASET.value}, {x.shape[1]} x {x.shape[2]} pixels"
    )
    figure = plots.error_against_sharpness(curves, subject)
    print(plots.listed(plots.save(figure, remote.local(_OUTPUT.value), "error")))


if __name__ == "__main__":
    command_line.run(main)
