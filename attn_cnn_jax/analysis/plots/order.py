"""The order in which the heads of a layer are shown."""

import numpy as np
from jaxtyping import Float, Int


def reading_order(
    offsets: Float[np.ndarray, "N 2"],
) -> Int[np.ndarray, "N"]:  # noqa: F821
    """Heads sorted as one reads: by the row they look at, then by the column.

    `offsets`: expected offset (row, column) of every head, key minus query. Rows count
    in whole pixels (the nearest), so that heads that look along one row stand together
    however they differ below half a pixel; columns count as they are. Equal heads keep
    their order; heads without a finite offset come last. Nine heads that do a 3 x 3
    convolution so stand in the order of its kernel, in every layer. `order[i]` is the
    head that is shown at place i.
    """
    rows = np.rint(offsets[:, 0])
    columns = offsets[:, 1]
    unknown = ~np.isfinite(offsets).all(axis=1)
    return np.lexsort((columns, rows, unknown))
