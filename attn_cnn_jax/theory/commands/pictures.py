"""Pictures of how a convolution and multi-head attention compute one pixel.

python -m attn_cnn_jax.theory pictures --output=FOLDER
"""

import numpy as np
from absl import flags

from attn_cnn_jax import command_line, remote
from attn_cnn_jax.analysis import plots
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.theory import pictures

_OUTPUT = command_line.define_folder("output", None, "Folder to write to.")
_IMAGE = flags.DEFINE_integer("image", 11, "Index of the digit in the test set.")
_QUERY = flags.DEFINE_list("query", ["3", "2"], "row,column of the query pixel.")
_SPREAD = flags.DEFINE_float(
    "spread", 2.0, "Square root of the heads' precision, in 1 / pixels."
)


def main() -> None:
    """Write the two pictures and say what they computed."""
    spread = _SPREAD.value
    if not _OUTPUT.value:
        raise UserError("say where to write the pictures: --output=FOLDER.")
    image, query = pictures.digit(_IMAGE.value), _query()
    convolved = pictures.convolved_pixel(image, query)
    attended = pictures.attended_pixel(image, query, spread)
    figures = {
        "convolution_of_a_pixel": pictures.draw_convolved(convolved),
        "attention_of_a_pixel": pictures.draw_attended(attended, spread),
    }
    for name, figure in figures.items():
        for path in plots.save(figure, remote.local(_OUTPUT.value), name):
            print(path)
    for name, output in (("convolution", convolved), ("attention", attended)):
        numbers = (
            f"{filter_} {value:.4f}"
            for filter_, value in zip(pictures.FILTERS, output.output, strict=True)
        )
        print(f"{name}: {', '.join(numbers)}")
    difference = np.abs(attended.output - convolved.output).max()
    print(f"largest difference: {difference:.3g}")


def _query() -> tuple[int, int]:
    try:
        row, column = map(int, _QUERY.value)
    except ValueError:
        text = ",".join(_QUERY.value)
        raise UserError(f"--query={text}; give row,column, such as 3,4.") from None
    return row, column


if __name__ == "__main__":
    command_line.run(main)
