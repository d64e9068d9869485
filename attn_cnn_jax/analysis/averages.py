"""Maps that average attention over queries or keys: the report's Average Attention.

a_ij is what query pixel i gives key pixel j, of n pixels. The report's Eqn 4 has an
index that its text and its code contradict, so that it is read in three ways:

    query     Avg_i = 1/n sum_j a_ij / sum_k a_kj   the code of the report's figures
    received  Avg_j = 1/n sum_i a_ij                its later code
    literal   Avg_i = 1 / (n sum_k a_ki)            as printed: the inverse of received

(Its text, mean of a row whose sum is 1, is the constant 1/n.)
"""

import numpy as np
from jaxtyping import Float

from attn_cnn_jax.errors import UserError

VARIANTS = ("query", "received", "literal")


def average_attention(
    probs: Float[np.ndarray, "*B H W H W"], variant: str = "query"
) -> Float[np.ndarray, "*B H W"]:
    """The report's Average Attention (Eqn 4) as a map of the grid, float32.

    `query`: a map of queries, each key's column normalised over the queries first (a
    column that nobody attends to counts as 0). `received`: a map of keys. `literal`:
    infinite at a pixel that nobody attends to.
    """
    if variant not in VARIANTS:
        raise UserError(
            f"there is no average {variant!r}; choose from {', '.join(VARIANTS)}."
        )
    num_pixels = probs.shape[-1] * probs.shape[-2]
    received = probs.sum(axis=(-4, -3), dtype=np.float64)
    if variant == "received":
        average = received / num_pixels
    elif variant == "literal":
        with np.errstate(divide="ignore"):
            average = 1 / (num_pixels * received)
    else:
        inverse = np.divide(
            1, received, where=received > 0, out=np.zeros_like(received)
        )
        average = np.einsum("...ijkl,...kl->...ij", probs, inverse) / num_pixels
    return average.astype(np.float32)


def tap_maps(
    weights: Float[np.ndarray, "B H W T G"],
) -> Float[np.ndarray, "B T H W"]:
    """SAN: each tap's weight at every pixel, the mean over the planes (Figs 18, 19)."""
    return weights.mean(axis=-1).transpose(0, 3, 1, 2)
