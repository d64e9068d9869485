"""Is a trained attention layer a convolution? The closest one, and what it explains.

    [table] = closest_convolutions(Run("runs/demo"))
    table.layers[0].r_squared(3)  # of layer 1 and the closest 3 x 3 convolution
    print(as_text([table]))

The definition is in the docstring of `Convolution`.
"""

from attn_cnn_jax.analysis.closest_convolution.layers import (
    ConvolutionTable,
    LayerConvolutions,
    closest_convolutions,
)
from attn_cnn_jax.analysis.closest_convolution.least_squares import (
    Convolution,
    LeastSquares,
)
from attn_cnn_jax.analysis.closest_convolution.write import (
    as_text,
    write_csv,
    write_json,
)

__all__ = [
    "Convolution",
    "ConvolutionTable",
    "LayerConvolutions",
    "LeastSquares",
    "as_text",
    "closest_convolutions",
    "write_csv",
    "write_json",
]
