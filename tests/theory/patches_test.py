"""A convolution of pixels as attention between patches (Li et al. 2021)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_cnn_jax import theory
from attn_cnn_jax.models.patches import patchify, unpatchify


@pytest.mark.parametrize(
    "size, patch_size, heads",
    [((3, 3), 1, 9), ((5, 3), 2, 9), ((5, 5), 2, 9), ((4, 1), 3, 3), ((2, 2), 2, 4)]
    + [((1, 1), 2, 1), ((3, 3), 4, 9)],
)
def test_heads_on_patches_are_the_convolution(size, patch_size, heads, convolve, x64):
    """Up to K = 2 P + 1; as many heads as there are patches within reach."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(2, 3 * patch_size, 2 * patch_size, 3))
    kernel, bias = rng.normal(size=(*size, 3, 2)), rng.normal(size=2)
    layer, variables = theory.convolution_as_patch_attention(
        kernel, bias, patch_size=patch_size
    )
    wanted = convolve(images, kernel, bias, "zero", (1, 1), (1, 1))
    actual = jax.jit(layer.apply)(variables, images)
    np.testing.assert_allclose(actual, wanted, atol=1e-10)
    assert len(variables["params"]["attention"]["attention"]["centers"]) == heads


def test_every_head_is_needed(convolve, x64):
    """Of what a head's patch adds to the output no other head knows anything."""
    rng = np.random.default_rng(1)
    images, kernel = rng.normal(size=(256, 6, 6, 1)), rng.uniform(1, 2, (3, 3, 1, 1))
    wanted = convolve(images, kernel, 0.0, "zero", (1, 1), (1, 1))
    middle = np.asarray(patchify(jnp.asarray(wanted), 2))[:, 1, 1]  # of 3 x 3 patches
    patches = np.asarray(patchify(jnp.asarray(images), 2)).reshape(256, 9, 4)
    for missing in range(9):
        seen = np.delete(patches, missing, axis=1).reshape(256, -1)
        best = np.linalg.lstsq(seen, middle, rcond=None)[0]  # any values whatever
        error = np.square(seen @ best - middle).sum() / np.square(middle).sum()
        assert error > 0.01
    exact = np.linalg.lstsq(patches.reshape(256, -1), middle, rcond=None)[0]
    np.testing.assert_allclose(patches.reshape(256, -1) @ exact, middle, atol=1e-10)


@pytest.mark.parametrize("size, dilation", [((7, 3), (1, 1)), ((3, 3), (1, 3))])
def test_a_reach_beyond_the_neighbours_is_refused(size, dilation):
    with pytest.raises(ValueError, match="a kernel that reaches 3 .* patch_size=2"):
        theory.patch_kernel(np.zeros((*size, 1, 1)), 2, dilation)


def test_unpatchify_undoes_patchify():
    images = jnp.asarray(np.random.default_rng(2).normal(size=(2, 6, 9, 5)))
    np.testing.assert_array_equal(unpatchify(patchify(images, 3), 3), images)
    images = jnp.zeros((1, 1, 1, 10))
    with pytest.raises(ValueError, match="10 is no multiple of 4"):
        unpatchify(images, 2)
