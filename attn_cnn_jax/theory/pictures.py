"""One pixel of a digit as a convolution computes it, and as attention does.

Figures 2 and 3 of the authors' article (jbcordonnier.com, "How a self-attention layer
can learn convolutional filters?"), computed: the matrices of one 3 x 3 kernel, at fixed
shifts and behind quadratic heads.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from attn_cnn_jax import data
from attn_cnn_jax.analysis import plots
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.scores import isotropic_axis_scores, sum_axes

FILTERS = ("Sobel down", "Sobel right", "blur")
SHIFTS = tuple((row, column) for row in (-1, 0, 1) for column in (-1, 0, 1))


def filter_kernel() -> Float[np.ndarray, "9 3"]:
    """Return the 3 x 3 kernel of the filters, of one input channel, by its shift."""
    smooth, slope = np.array([1, 2, 1]) / 4, np.array([-1, 0, 1]) / 2
    filters = [np.outer(slope, smooth), np.outer(smooth, slope)]
    return np.stack([*filters, np.outer(smooth, smooth)], axis=-1).reshape(9, 3)


def digit(index: int) -> Float[np.ndarray, "8 8"]:
    """Return a digit of the test set, 0 to 1; `UserError` if there is none."""
    images = data.DATASETS["digits_8x8"].load("").test.images
    if not 0 <= index < len(images):
        raise UserError(f"--image={index}; the digits are 0 to {len(images) - 1}.")
    return images[index, :, :, 0] / 255


def convolved_pixel(
    image: Float[np.ndarray, "H W"], query: tuple[int, int]
) -> plots.PixelSum:
    """Return the convolution's output at a pixel, shift by shift.

    Raises a `UserError` where the kernel does not lie on the image there.
    """
    last = [length - 2 for length in image.shape]
    if not all(1 <= place <= end for place, end in zip(query, last, strict=True)):
        raise UserError(
            f"--query={query[0]},{query[1]}; a 3 x 3 kernel fits rows 1 to {last[0]} "
            f"and columns 1 to {last[1]}."
        )
    places = np.array(SHIFTS) + query
    weights = np.zeros((len(SHIFTS), *image.shape))
    weights[np.arange(len(SHIFTS)), *places.T] = 1
    return _summed(image, query, [f"shift {_signed(s)}" for s in SHIFTS], weights)


def attended_pixel(
    image: Float[np.ndarray, "H W"], query: tuple[int, int], spread: float
) -> plots.PixelSum:
    """Return the output at a pixel of nine quadratic heads with the kernel's matrices.

    The center of head h is the h-th shift (paper, Lemma 2); its attention is a Gaussian
    of precision spread^2 around it. Raises a `UserError` for a spread of 0 or less.
    """
    if not 0 < spread < np.inf:
        raise UserError(f"--spread={spread:g}; take a number above 0.")
    centers, spreads = jnp.array(SHIFTS, jnp.float32), jnp.full(9, spread)
    height, width = image.shape
    scores = sum_axes(*isotropic_axis_scores(centers, spreads, (height, width)))
    at_query = np.asarray(scores)[:, query[0], query[1]].reshape(9, -1)
    weights = np.asarray(jax.nn.softmax(at_query), np.float64)
    names = [f"head {n} at {_signed(s)}" for n, s in enumerate(SHIFTS, 1)]
    return _summed(image, query, names, weights.reshape(9, height, width))


def draw_convolved(pixel: plots.PixelSum) -> plots.Figure:
    """Draw what `convolved_pixel` returns."""
    return plots.pixel_sum(
        pixel,
        title="How a convolution computes a pixel",
        lines=[
            f"A digit and a 3 × 3 kernel of three filters ({', '.join(FILTERS)}): the "
            "pixel at each shift (orange) times the matrix of that shift; their sum.",
        ],
        mean="$x$",
        matrix=r"$W_\Delta$",
    )


def draw_attended(pixel: plots.PixelSum, spread: float) -> plots.Figure:
    """Draw what `attended_pixel` returns."""
    return plots.pixel_sum(
        pixel,
        title="How multi-head attention computes a pixel",
        lines=[
            f"Nine quadratic heads of spread {spread:g}: the mean of all pixels by the "
            "head's attention (orange, around its center +) times the head's matrix, "
            "that of the convolution at this shift; their sum.",
        ],
        mean=r"$\bar{x}$",
        matrix="$W_h$",
    )


def _summed(
    image: np.ndarray, query: tuple[int, int], names: list[str], weights: np.ndarray
) -> plots.PixelSum:
    kernel = filter_kernel()
    means = np.einsum("nhw,hw->n", weights, image)
    products = means[:, None] * kernel
    return plots.PixelSum(
        image,
        query,
        names,
        FILTERS,
        centers=np.array(SHIFTS, float) + query,
        weights=weights,
        means=means,
        kernel=kernel,
        products=products,
        output=products.sum(axis=0),
    )


def _signed(shift: tuple[int, int]) -> str:
    return f"({', '.join(f'{d:+d}' if d else '0' for d in shift)})".replace("-", "−")
