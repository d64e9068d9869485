"""Images as grids of patches."""

from jaxtyping import Array, Float


def patchify(
    images: Float[Array, "B H W C"], patch_size: int
) -> Float[Array, "B h w D"]:
    """Turn each p x p patch into one pixel of p * p * C values, which can be undone.

    Order inside a patch: row, column, channel (paper, section 4.1).
    """
    batch, height, width, channels = images.shape
    p = patch_size
    if height % p or width % p:
        raise ValueError(
            f"images of {height} x {width} pixels do not split into patches of "
            f"patch_size={p}"
        )
    x = images.reshape(batch, height // p, p, width // p, p, channels)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(
        batch, height // p, width // p, p * p * channels
    )
