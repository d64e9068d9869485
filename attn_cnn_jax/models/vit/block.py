"""Pre-norm transformer blocks over tokens."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Initializer
from jaxtyping import Array, Float

from attn_cnn_jax.models.attention import Parameter
from attn_cnn_jax.models.dense import Dense, DenseGeneral
from attn_cnn_jax.models.dropout import Dropout
from attn_cnn_jax.models.encoder import ACTIVATIONS
from attn_cnn_jax.models.initializers import torch_kernel, torch_uniform
from attn_cnn_jax.models.normalization import layer_norm
from attn_cnn_jax.models.scores import product_in_float32

TokenKeys = Float[Array, "B T N E"] | None


class Initializers(NamedTuple):
    """The initialisers of the parameters; that of a bias takes its fan-in."""

    embedding: Initializer
    position: Initializer
    kernel: Initializer
    projection_bias: Callable[[int], Initializer]
    mlp_bias: Callable[[int], Initializer]
    embedding_bias: Callable[[int], Initializer]
    classifier: Initializer
    classifier_bias: Callable[[int], Initializer]


_zeros = nn.initializers.zeros_init()
INITIALIZERS = {
    "torch": Initializers(
        embedding=torch_kernel,
        position=nn.initializers.normal(1.0),
        kernel=torch_kernel,
        projection_bias=torch_uniform,
        mlp_bias=torch_uniform,
        embedding_bias=torch_uniform,
        classifier=torch_kernel,
        classifier_bias=torch_uniform,
    ),
    "google": Initializers(
        embedding=nn.initializers.lecun_normal(),
        position=nn.initializers.normal(0.02),
        kernel=nn.initializers.xavier_uniform(),
        projection_bias=lambda fan_in: _zeros,
        mlp_bias=lambda fan_in: nn.initializers.normal(1e-6),
        embedding_bias=lambda fan_in: _zeros,
        classifier=_zeros,
        classifier_bias=lambda fan_in: _zeros,
    ),
}


class TokenAttention(nn.Module):
    """Multi-head attention between tokens, heads of `head_dim`, and an output map.

    Sows its probabilities as `attention`, [B, N, Tq, Tk].
    """

    num_heads: int
    head_dim: int
    projection_bias: bool
    dropout_rate: float
    initializers: Initializers
    param_dtype: Any

    parameters: ClassVar[Mapping[str, Parameter]] = {
        "value/kernel": Parameter(1, is_value=True),
        "value/bias": Parameter(0, is_value=True),
    }

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], keys: TokenKeys = None, *, train: bool
    ) -> tuple[Float[Array, "B T D"], TokenKeys]:
        """Return softmax(q . k / sqrt(head_dim)) v and keys (those of `x` if None)."""
        width = x.shape[-1]
        draws = self.initializers
        project = partial(
            DenseGeneral,
            (self.num_heads, self.head_dim),
            use_bias=self.projection_bias,
            dtype=x.dtype,
            param_dtype=self.param_dtype,
            kernel_init=draws.kernel,
            bias_init=draws.projection_bias(width),
        )
        queries, values = project(name="query")(x), project(name="value")(x)
        keys = jnp.asarray(project(name="key")(x) if keys is None else keys)
        scores = product_in_float32(
            "bqnd,bknd->bnqk", queries * self.head_dim**-0.5, keys
        )
        probs = jax.nn.softmax(scores)
        self.sow("intermediates", "attention", probs)
        probs = Dropout(self.dropout_rate)(probs, train=train)
        mixed = jnp.einsum("bnqk,bknd->bqnd", probs.astype(x.dtype), values)
        y = DenseGeneral(
            width,
            axis=(-2, -1),
            dtype=x.dtype,
            param_dtype=self.param_dtype,
            kernel_init=draws.kernel,
            bias_init=draws.projection_bias(self.num_heads * self.head_dim),
            name="output",
        )(mixed)
        return y, keys


class TokenBlock(nn.Module):
    """Attention and MLP, each behind a LayerNorm and beside a residual.

    u = LN(x), z = attention(u) + x, m = LN(z), y = MLP(m) + z. With
    `normalized_residual`, as the report's code does it, u and m are added, not x and z.
    """

    attention: Callable[..., nn.Module]
    mlp_dim: int
    activation: str
    dropout_rate: float
    norm_epsilon: float
    normalized_residual: bool
    initializers: Initializers
    param_dtype: Any

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], keys: TokenKeys = None, *, train: bool
    ) -> tuple[Float[Array, "B T D"], TokenKeys]:
        """Apply the block and return the keys that its attention used."""
        normalized = layer_norm(
            x, self.norm_epsilon, self.param_dtype, "attention_norm"
        )
        mixed, keys = self.attention(name="attention")(normalized, keys, train=train)
        residual = normalized if self.normalized_residual else x
        x = residual + self._drop(mixed, train=train)
        normalized = layer_norm(x, self.norm_epsilon, self.param_dtype, "mlp_norm")
        hidden = self._dense(self.mlp_dim, normalized, "mlp_in")
        hidden = self._drop(ACTIVATIONS[self.activation](hidden), train=train)
        update = self._drop(self._dense(x.shape[-1], hidden, "mlp_out"), train=train)
        return (normalized if self.normalized_residual else x) + update, keys

    def _drop(self, x: Array, *, train: bool) -> Array:
        return Dropout(self.dropout_rate)(x, train=train)

    def _dense(self, features: int, x: Array, name: str) -> Array:
        return Dense(
            features,
            dtype=x.dtype,
            param_dtype=self.param_dtype,
            kernel_init=self.initializers.kernel,
            bias_init=self.initializers.mlp_bias(x.shape[-1]),
            name=name,
        )(x)
