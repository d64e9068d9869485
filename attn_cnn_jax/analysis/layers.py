"""Attention between tokens as attention on a grid."""

import numpy as np
from jaxtyping import Float


def tokens_to_grid(
    probs: Float[np.ndarray, "B N T T"], grid: tuple[int, int]
) -> tuple[Float[np.ndarray, "B N Hq Wq Hk Wk"], Float[np.ndarray, "B N Hq Wq"] | None]:
    """Attention between patches as attention on their grid, and the class token's mass.

    Token 0 is the class token if there is one more than the grid has patches: it is
    dropped as a query and as a key, and rows are not renormalised (they sum to 1 less
    the mass). The mass is None where there is no such token.
    """
    height, width = grid
    batch, num_heads, tokens, _ = probs.shape
    extra = tokens - height * width
    if extra not in (0, 1):
        raise ValueError(f"{tokens} tokens are not a grid of {height} x {width}")
    on_grid = probs[:, :, extra:, extra:].reshape(batch, num_heads, *grid, *grid)
    if not extra:
        return on_grid, None
    return on_grid, probs[:, :, 1:, 0].reshape(batch, num_heads, *grid)
