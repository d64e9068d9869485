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


def unpatchify(x: Float[Array, "B h w D"], patch_size: int) -> Float[Array, "B H W C"]:
    """Turn each pixel back into the p x p patch that it holds: undoes `patchify`."""
    batch, height, width, depth = x.shape
    p = patch_size
    if depth % p**2:
        raise ValueError(
            f"pixels of {depth} values hold no patches of patch_size={p}: "
            f"{depth} is no multiple of {p**2}"
        )
    x = x.reshape(batch, height, width, p, p, depth // p**2)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(
        batch, height * p, width * p, depth // p**2
    )
