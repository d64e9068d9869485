"""SAN's self-attention layer and the residual block around it."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from attn_cnn_jax.models.dense import Dense
from attn_cnn_jax.models.initializers import torch_kernel, torch_uniform
from attn_cnn_jax.models.normalization import BatchNorm
from attn_cnn_jax.models.san.taps import aggregate, neighbourhoods, subtract
from attn_cnn_jax.models.scores import at_least_float32

RelationKeys = Float[Array, "B H W R"] | None

# Of a block's width C: C / 16 channels relate pixels, C / 4 are aggregated, and eight
# of those share a weight plane, as in the official code.
_RELATION, _VALUE, _SHARE = 16, 4, 8


def dense(features: int, param_dtype: Any, name: str, *, bias: bool = True):
    """Return a 1 x 1 convolution, drawn like PyTorch's."""

    def layer(x: Array) -> Array:
        return Dense(
            features,
            use_bias=bias,
            dtype=x.dtype,
            param_dtype=param_dtype,
            kernel_init=torch_kernel,
            bias_init=torch_uniform(x.shape[-1]),
            name=name,
        )(x)

    return layer


class NeighbourhoodAttention(nn.Module):
    """Pairwise or patchwise self-attention over k x k pixels (report, section 4.2).

    Sows the weights of the taps as `attention`, [B, H, W, T, G]: pairwise a softmax
    over the taps, patchwise not, so that they may be negative.
    """

    attention: str
    kernel_size: int
    projection_bias: bool
    param_dtype: Any

    @nn.compact
    def __call__(
        self, x: Float[Array, "B H W C"], keys: RelationKeys = None, *, train: bool
    ) -> tuple[Float[Array, "B H W D"], RelationKeys]:
        """Return aggregated values, D = C / 4, and keys (those of `x` if None)."""
        width = x.shape[-1]
        if width % (_VALUE * _SHARE):
            raise ValueError(f"{width=} of a SAN block is not a multiple of 32")
        project = partial(
            dense, param_dtype=self.param_dtype, bias=self.projection_bias
        )
        queries = project(width // _RELATION, name="query")(x)
        if keys is None or self.is_initializing():  # the published count has the key
            own = project(width // _RELATION, name="key")(x)
            keys = own if keys is None else keys
        values = project(width // _VALUE, name="value")(x)
        num_planes = width // _VALUE // _SHARE
        weights = {"pairwise": self._pairwise, "patchwise": self._patchwise}
        if self.attention not in weights:
            raise ValueError(
                f"SAN's attention is {self.attention!r}; pairwise or patchwise"
            )
        weights = weights[self.attention](queries, keys, num_planes, train=train)
        self.sow("intermediates", "attention", weights)
        return aggregate(values, weights), keys

    def _pairwise(self, queries, keys, num_planes: int, *, train: bool) -> Array:
        """Return softmax over taps of gamma(query - key, positions) (report, Eq. 5)."""
        relation = subtract(queries, keys, self.kernel_size)
        positions = dense(2, self.param_dtype, "position")(
            position_map(*queries.shape[1:3]).astype(queries.dtype)
        )
        offsets = subtract(positions, positions, self.kernel_size)
        offsets = jnp.broadcast_to(offsets, (*relation.shape[:-1], 2))
        relation = jnp.concatenate([relation, offsets], axis=-1)
        scores = self._weight_network(
            relation, queries.shape[-1], num_planes, train=train
        )
        return jax.nn.softmax(scores.astype(at_least_float32(scores)), axis=-2)

    def _patchwise(self, queries, keys, num_planes: int, *, train: bool) -> Array:
        """Return gamma(query, the keys of all taps) as it is (report, Eq. 6)."""
        taps = neighbourhoods(keys, self.kernel_size)
        patch = taps.swapaxes(-1, -2).reshape(*keys.shape[:3], -1)  # channel, then tap
        patch = jnp.concatenate([queries, patch], axis=-1)
        num_taps = self.kernel_size**2
        weights = self._weight_network(
            patch, num_planes, num_planes * num_taps, train=train
        )
        weights = weights.reshape(*keys.shape[:3], num_planes, num_taps)
        return weights.swapaxes(-1, -2)

    def _weight_network(self, x, hidden: int, features: int, *, train: bool) -> Array:
        """Apply gamma: norm, relu, linear, norm, relu, linear."""
        norm = partial(BatchNorm, self.param_dtype)
        x = nn.relu(norm(name="relation_norm")(x, train=train))
        x = dense(hidden, self.param_dtype, "relation_dense", bias=False)(x)
        x = nn.relu(norm(name="hidden_norm")(x, train=train))
        return dense(features, self.param_dtype, "weight_dense")(x)


class Bottleneck(nn.Module):
    """x + linear(relu(norm(attention(relu(norm(x)))))), SAN's residual block.

    With `pre_activation=False` attention reads x itself, as the published hierarchical
    SAN does; the first norm is then computed and not used.
    """

    attention: str
    kernel_size: int
    projection_bias: bool
    param_dtype: Any
    pre_activation: bool = True

    @nn.compact
    def __call__(
        self, x: Float[Array, "B H W C"], keys: RelationKeys = None, *, train: bool
    ) -> tuple[Float[Array, "B H W C"], RelationKeys]:
        """Return the block's output and the keys that its attention used."""
        activated = nn.relu(BatchNorm(self.param_dtype, name="norm_1")(x, train=train))
        mixed, keys = NeighbourhoodAttention(
            attention=self.attention,
            kernel_size=self.kernel_size,
            projection_bias=self.projection_bias,
            param_dtype=self.param_dtype,
            name="attention",
        )(activated if self.pre_activation else x, keys, train=train)
        mixed = nn.relu(BatchNorm(self.param_dtype, name="norm_2")(mixed, train=train))
        return x + dense(x.shape[-1], self.param_dtype, "expand")(mixed), keys


def position_map(height: int, width: int) -> Float[Array, "1 height width 2"]:
    """Return (x, y) of every pixel, each from -1 to 1 with both ends."""
    x, y = jnp.linspace(-1.0, 1.0, width), jnp.linspace(-1.0, 1.0, height)
    return jnp.stack(jnp.meshgrid(x, y), axis=-1)[None]
