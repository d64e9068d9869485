"""Post-norm transformer blocks over a grid of pixels."""

from collections.abc import Callable
from typing import Any

import jax
from flax import linen as nn
from jaxtyping import Array, Float

from attn_cnn_jax.models.attention import Keys
from attn_cnn_jax.models.initializers import torch_kernel, torch_uniform

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "relu": jax.nn.relu,
    "swish": jax.nn.swish,
}


class EncoderBlock(nn.Module):
    """Attention and MLP, each with a residual and then LayerNorm (BERT's order).

    z1 = LN(z + drop(W_o attention(z) + b_o)); z2 = LN(z1 + drop(MLP(z1))).
    """

    attention: Callable[..., nn.Module]
    mlp_dim: int
    activation: str
    dropout_rate: float
    norm_epsilon: float
    param_dtype: Any

    @nn.compact
    def __call__(
        self, x: Float[Array, "B H W D"], keys: Keys = None, *, train: bool
    ) -> tuple[Float[Array, "B H W D"], Keys]:
        """One block; `keys` are those that the attention layer returned."""
        width = x.shape[-1]
        mixed, keys = self.attention(name="attention")(x, keys, train=train)
        update = self._dense(width, "attention_dense")(mixed)
        x = self._add_and_norm(x, update, "attention_norm", train=train)
        hidden = ACTIVATIONS[self.activation](self._dense(self.mlp_dim, "mlp_in")(x))
        update = self._dense(width, "mlp_out")(hidden)
        return self._add_and_norm(x, update, "mlp_norm", train=train), keys

    def _dense(self, features: int, name: str) -> Callable[[Array], Array]:
        def layer(x: Array) -> Array:
            return nn.Dense(
                features,
                dtype=x.dtype,
                param_dtype=self.param_dtype,
                kernel_init=torch_kernel,
                bias_init=torch_uniform(x.shape[-1]),
                name=name,
            )(x)

        return layer

    def _add_and_norm(self, x: Array, update: Array, name: str, *, train: bool):
        update = nn.Dropout(self.dropout_rate)(update, deterministic=not train)
        # The fast variance E[x^2] - E[x]^2 is not accurate to an epsilon of 1e-12.
        norm = nn.LayerNorm(
            epsilon=self.norm_epsilon,
            use_fast_variance=False,
            dtype=self.param_dtype,
            param_dtype=self.param_dtype,
            name=name,
        )
        return norm(x + update).astype(x.dtype)
