"""Attention to a Gaussian around a learned offset."""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from attn_cnn_jax.models.attention.layer import (
    Keys,
    Parameter,
    PixelAttention,
    Scores,
    never,
)
from attn_cnn_jax.models.scores import (
    isotropic_axis_scores,
    quadratic_scores,
    relative_offsets,
    sum_axes,
)

Gaussians = tuple[Float[Array, "N 2"], Float[Array, "N 2 2"]]


class QuadraticAttention(PixelAttention):
    """Attention to a Gaussian around a learned offset (paper, sections 3.2 and 4.2).

    The precision of a head is spread^2 I (isotropic) or A A^T with A its 2 x 2 spread.
    One dropout mask serves the whole batch, as in the original.
    """

    isotropic: bool
    center_std: float
    spread_std: float

    parameters: ClassVar[Mapping[str, Parameter]] = {
        **PixelAttention.parameters,
        "centers": Parameter(0, never),
        "spreads": Parameter(0, never),
    }
    one_mask_for_the_batch: ClassVar[bool] = True

    def scores(self, x: Float[Array, "B H W D"], keys: Keys) -> tuple[Scores, Keys]:
        """Return the scores by position alone; keys are handed through."""
        init = nn.initializers.normal(self.center_std)
        centers = self.param("centers", init, (self.num_heads, 2), self.param_dtype)
        spreads = self.param("spreads", self._init_spreads)
        grid = x.shape[1], x.shape[2]
        return self.position_scores(centers, spreads, grid), keys

    def position_scores(
        self, centers: Array, spreads: Array, grid: tuple[int, int]
    ) -> Scores:
        """Return the scores of Gaussians on a grid of H x W pixels."""
        if self.isotropic:
            return isotropic_axis_scores(centers, spreads, grid)
        precision, right = precisions(spreads), relative_offsets(grid[1])

        def of_rows(first: Any, count: int) -> Array:
            down = relative_offsets(grid[0], first, count)
            return quadratic_scores(centers, precision, down, right)[None]

        return of_rows

    @classmethod
    def gaussians(cls, params: Mapping[str, Any]) -> Gaussians:
        """Return centre and precision of every head, from the layer's parameters."""
        return jnp.asarray(params["centers"]), precisions(params["spreads"])

    def _init_spreads(self, rng: Array) -> Array:
        if self.isotropic:
            mean = jnp.ones((self.num_heads,), self.param_dtype)
        else:
            identity = jnp.eye(2, dtype=self.param_dtype)
            mean = jnp.broadcast_to(identity, (self.num_heads, 2, 2))
        noise = jax.random.normal(rng, mean.shape, self.param_dtype)
        return mean + self.spread_std * noise


class ReportQuadraticAttention(QuadraticAttention):
    """Quadratic attention with the linear term of the report's code.

    With precision [[a, b], [b, c]] and centre (m, n) a score is linear in the column of
    the offset with c + n + b m in place of c n + b m. An isotropic head looks at column
    1 + n / c, therefore, and not at n, where the report's Fig. 2 draws it.
    """

    def position_scores(
        self, centers: Array, spreads: Array, grid: tuple[int, int]
    ) -> Scores:
        """Return the scores of Gaussians around 0, tilted by the linear term."""
        around_zero: Any = super().position_scores(
            jnp.zeros_like(centers), spreads, grid
        )
        slopes = _report_slopes(centers, precisions(spreads)).T[..., None, None]

        def linear(axis: int, *queries: Any) -> Float[Array, "N query key"]:
            return slopes[axis] * relative_offsets(grid[axis], *queries)[None]

        if isinstance(around_zero, tuple):
            return around_zero[0] + linear(0), around_zero[1] + linear(1)

        def of_rows(first: Any, count: int) -> Array:
            tilt = sum_axes(linear(0, first, count), linear(1))
            return around_zero(first, count) + tilt.transpose(1, 2, 0, 3, 4)[None]

        return of_rows

    @classmethod
    def gaussians(cls, params: Mapping[str, Any]) -> Gaussians:
        """Return the centre that every head looks at, and its precision."""
        centers, precision = super().gaussians(params)
        slopes = _report_slopes(centers, precision)
        return jnp.linalg.solve(precision, slopes[..., None])[..., 0], precision


def _report_slopes(
    centers: Float[Array, "N 2"], precision: Float[Array, "N 2 2"]
) -> Float[Array, "N 2"]:
    """Return the factors of row and column: (a m + b n, c + n + b m)."""
    (a, b), c = precision[:, 0].T, precision[:, 1, 1]
    m, n = centers.T
    return jnp.stack([a * m + b * n, c + n + b * m], axis=-1)


def precisions(spreads: Any) -> Float[Array, "N 2 2"]:
    """Return s^2 I of spreads [N], or A A^T of spreads [N, 2, 2]."""
    if spreads.ndim == 1:
        identity = jnp.eye(2, dtype=spreads.dtype)[None]
        return jnp.square(spreads)[:, None, None] * identity
    return jnp.einsum("nij,nkj->nik", spreads, spreads)
