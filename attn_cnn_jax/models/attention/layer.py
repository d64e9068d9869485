"""The attention layer on a grid of pixels: its scores are all that variants differ in.

A layer also says of each of its parameters what the rest of the package has to know:
which axis counts the heads, and how often an image meets it.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from attn_cnn_jax.models import hardware
from attn_cnn_jax.models.dropout import drop, images_from, seeds
from attn_cnn_jax.models.initializers import torch_uniform
from attn_cnn_jax.models.scores import mix, mix_separable, softmax_over_keys

Keys = Float[Array, "B H W ..."] | None  # pixels or, projected, [B, H, W, N, D_h]
ScoresOfRows = Callable[[Any, int], Float[Array, "B1 rows Wq N Hk Wk"]]
Scores = Array | tuple[Array, Array] | ScoresOfRows


def never(x: Any, keys: Any) -> int:
    """Return 0: the parameter is added or looked up, not multiplied with the map."""
    return 0


def once_a_pixel(x: Any, keys: Any) -> int:
    """Return the number of pixels of the maps `x` [B, H, W, D]."""
    return x.size // x.shape[-1]


def once_a_key(x: Any, keys: Any) -> int:
    """Return the number of pixels where the layer computes keys, else 0."""
    return once_a_pixel(x, keys) if keys is None else 0


def once_a_pair_of_rows(x: Any, keys: Any) -> int:
    """Return H^2, as the published code applies the keys of relative rows."""
    return x.shape[1] ** 2


def once_a_pair_of_columns(x: Any, keys: Any) -> int:
    """Return W^2, as the published code applies the keys of relative columns."""
    return x.shape[2] ** 2


class Parameter(NamedTuple):
    """The facts of a layer's parameter.

    `head_axis` is the axis that counts heads: the layer without a head is the layer
    without that part of it (None: the heads share the parameter). `times(y, keys)` is
    how often a call that returns the map `y` multiplies with all of its values, as the
    papers count: `never` where a submodule counts them (None: not known). A head whose
    `is_value` parameters are 0 adds nothing to the output of the layer.
    """

    head_axis: int | None = None
    times: Callable[[Any, Any], int] | None = None
    is_value: bool = False


def value_params(
    module: nn.Module, num_heads: int, width: int, dtype: Any, features: int = 0
):
    """Return kernel [N, D, E] and bias [E] of the map from all heads to the output.

    Every head mixes the whole width (D_h = D_out, paper, section 2.2): there is no
    projection per head before mixing. E are the `features`, by default the width.
    """
    init = torch_uniform(num_heads * width)
    shape = (num_heads, width, features or width)
    kernel = module.param("value_kernel", init, shape, dtype)
    return kernel, module.param("value_bias", init, shape[2:], dtype)


def check_grid(grid: tuple[int, ...], max_position: int) -> None:
    """Raise a `ValueError` where H x W pixels have no place in tables of positions."""
    if max(grid) > max_position:
        raise ValueError(
            f"a grid of {grid[0]} x {grid[1]} pixels is larger than "
            f"attention.max_position={max_position}"
        )


def probs_of_rows(
    scores: Scores, first: Any, count: int
) -> Float[Array, "B1 rows Wq N Hk Wk"]:
    """Return the probabilities [B or 1, count, Wq, N, Hk, Wk] of query rows."""

    def cut(a: Array, axis: int) -> Array:
        return jax.lax.dynamic_slice_in_dim(a, first, count, axis)

    if isinstance(scores, tuple):
        rows, cols = (jax.nn.softmax(a).transpose(1, 0, 2) for a in scores)
        rows = cut(rows, 0)[:, None, :, :, None]
        return (rows * cols[None, :, :, None, :])[None]
    if callable(scores):
        return softmax_over_keys(scores(first, count))
    scores = scores if scores.ndim == 6 else scores[None]
    return softmax_over_keys(cut(scores, 2).transpose(0, 2, 3, 1, 4, 5))


def in_chunks(
    of_rows: Callable[[Any, int], Float[Array, "B rows W D"]], height: int, chunk: int
) -> Float[Array, "B H W D"]:
    """Return `of_rows(0, height)`, computed for `chunk` rows at a time (0: for all).

    What a chunk needs is computed again in the backward pass, not kept.
    """
    if not 0 < chunk < height:
        return of_rows(0, height)
    whole = height // chunk * chunk
    one_chunk = jax.checkpoint(lambda first: of_rows(first, chunk))
    y = jax.lax.map(one_chunk, jnp.arange(0, whole, chunk))  # [chunks, B, rows, W, D]
    y = y.swapaxes(0, 1).reshape(y.shape[1], whole, *y.shape[3:])
    if whole == height:
        return y
    last = jax.checkpoint(lambda first: of_rows(first, height - whole))(whole)
    return jnp.concatenate([y, last], axis=1)


def one_by_one(
    of_images: Callable[[Array, Array], Array], x: Array, probs: Array
) -> Array:
    """Return `of_images(x, probs)`, of one image after the other on a CPU.

    There the probabilities that all images share are at hand for the next image. On
    several devices, pretended ones too, all but one would wait.
    """
    if not hardware.for_one_cpu() or len(probs) > 1:
        return of_images(x, probs)

    def of_image(image: tuple[Array, Array]) -> Array:
        with images_from(image[0]):
            return of_images(image[1][None], probs)[0]

    # Masks are drawn again in the backward pass: cheaper than to keep what they leave.
    keep = jax.checkpoint_policies.save_only_these_names("means")
    each = jnp.arange(len(x)), x
    return jax.lax.map(jax.checkpoint(of_image, policy=keep), each)


def _separable_from() -> int:
    """Return the number of pixels from which separable scores are mixed by axes.

    On an accelerator the products along an axis of 16 are bound by its memory.
    """
    return 256 if hardware.for_cpu() else 1024


class PixelAttention(nn.Module):
    """Attention between the pixels of a map, with heads as wide as the map.

    A variant is a subclass with its own `scores`, its fields, and its `parameters`: the
    facts of all parameters, by their path in the layer. While "intermediates" are being
    captured the layer sows its probabilities as `attention`.

    With a `query_chunk` the queries of so many rows of the grid are scored at a time,
    forward and again backward: no more probabilities than theirs are ever held.
    """

    num_heads: int
    dropout_rate: float
    param_dtype: Any
    if TYPE_CHECKING:  # checkers do not know that Flax has keyword-only fields
        query_chunk: ClassVar[int] = 0
    else:
        query_chunk: int = dataclasses.field(default=0, kw_only=True)

    parameters: ClassVar[Mapping[str, Parameter]] = {
        "value_kernel": Parameter(0, once_a_pixel, is_value=True),
        "value_bias": Parameter(),
    }
    # Scores of positions alone have a dropout mask an image, or one for the batch.
    one_mask_for_the_batch: ClassVar[bool] = False

    def scores(self, x: Float[Array, "B H W D"], keys: Keys) -> tuple[Scores, Keys]:
        """Return scores [B, N, Hq, Wq, Hk, Wk], and keys for a later pass.

        Scores that do not depend on the image are [N, Hq, Wq, Hk, Wk] or, where they
        are the sum of a row and a column term, the pair [N, Hq, Hk], [N, Wq, Wk]. What
        a large grid should not hold at once is a function of query rows: `(first,
        count)` -> [B or 1, count, Wq, N, Hk, Wk]; `first` may be traced. `keys` are
        those that an earlier pass returned, or None.
        """
        raise NotImplementedError

    def output_map(self, width: int) -> tuple[Array, Array]:
        """Return kernel [N, D, D] and bias [D] of the map behind the heads."""
        return value_params(self, self.num_heads, width, self.param_dtype)

    @nn.compact
    def __call__(
        self, x: Float[Array, "B H W D"], keys: Keys = None, *, train: bool
    ) -> tuple[Float[Array, "B H W D"], Keys]:
        """Mix the pixels of `x`, scored against `keys` (those of `x` if None)."""
        scores, keys = self.scores(x, keys)
        kernel, bias = self.output_map(x.shape[-1])
        y = self._mix(x, scores, kernel, train=train)
        return y + bias.astype(x.dtype)[None, None, None], keys

    def _mix(self, x: Array, scores: Scores, kernel: Array, *, train: bool) -> Array:
        """Mix by the softmax of the scores, all query rows at once or in chunks.

        Probabilities of separable scores factorise, which is faster on large grids;
        they are built for dropout, which needs them whole, and for capture.
        """
        height, width = x.shape[1:3]
        if self.is_mutable_collection("intermediates"):
            probs = probs_of_rows(scores, 0, height)
            self.sow("intermediates", "attention", probs.transpose(0, 3, 1, 2, 4, 5))
        drops = train and self.dropout_rate > 0
        separable = isinstance(scores, tuple)
        if separable and not drops and height * width >= _separable_from():
            rows, cols = map(jax.nn.softmax, scores)
            return mix_separable(x, rows, cols, kernel)
        words: Any = seeds(self.make_rng("dropout")) if drops else None

        def of_rows(first: Any, count: int) -> Array:
            probs, window = probs_of_rows(scores, first, count), {1: (first, height)}
            of_the_batch = drops and self.one_mask_for_the_batch
            if of_the_batch:
                rate = self.dropout_rate
                probs = drop(probs, rate, words, shared=True, window=window)

            def of_images(x: Array, probs: Array) -> Array:
                if drops and not of_the_batch:
                    probs = jnp.broadcast_to(probs, (x.shape[0], *probs.shape[1:]))
                    probs = drop(probs, self.dropout_rate, words, window=window)
                return mix(x, probs, kernel)

            return one_by_one(of_images, x, probs)

        return in_chunks(of_rows, height, self.query_chunk)


class HeadlessAttention(nn.Module):
    """The sum over no heads: the bias of the values, the same at every pixel.

    Nothing is left of queries, keys and positions.
    """

    param_dtype: Any

    parameters: ClassVar[Mapping[str, Parameter]] = {"value_bias": Parameter()}

    @nn.compact
    def __call__(
        self, x: Float[Array, "B H W D"], keys: Keys = None, *, train: bool
    ) -> tuple[Float[Array, "B H W D"], Keys]:
        """Return the bias at every pixel, and `keys` as they came."""
        grid = x.shape[1:3]
        self.sow("intermediates", "attention", jnp.zeros((1, 0, *grid, *grid)))
        # As PyTorch starts the bias of a map without inputs.
        init = nn.initializers.zeros
        bias = self.param("value_bias", init, x.shape[-1:], self.param_dtype)
        return jnp.broadcast_to(bias.astype(x.dtype), x.shape), keys
