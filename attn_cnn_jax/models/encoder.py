"""Transformer blocks over a grid of pixels, and how layers share their weights."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from flax import linen as nn
from jaxtyping import Array, Float

from attn_cnn_jax.models.attention import Keys
from attn_cnn_jax.models.dense import Dense
from attn_cnn_jax.models.dropout import Dropout
from attn_cnn_jax.models.initializers import torch_kernel, torch_uniform
from attn_cnn_jax.models.normalization import layer_norm

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
    "swish": jax.nn.swish,
}


def block_names(num_layers: int, share_weights: bool) -> tuple[str, ...]:
    """Return the names of the blocks in the variables: one where they are shared."""
    if share_weights:
        return ("block",)
    return tuple(f"block_{layer}" for layer in range(num_layers))


def make_blocks(
    block: Callable[[str, int], Any], num_layers: int, share_weights: bool
) -> tuple[Any, ...]:
    """Return the modules of all layers, `block(name, layer)`, or one for all."""
    names = block_names(num_layers, share_weights)
    blocks = tuple(block(name, layer) for layer, name in enumerate(names))
    return blocks * num_layers if share_weights else blocks


def apply_layer(
    blocks: Sequence[Any],
    share_weights: bool,
    layer: int,
    x: Array,
    keys: Array | None,
    *,
    train: bool,
    remat: bool = False,
) -> tuple[Array, Array | None]:
    """Return `x` after a layer and the keys for the next one (None for the first).

    Hierarchical Attention (report, section 4.1), `share_weights`: every layer is the
    same block; it computes keys in its first pass and is handed them in all later ones.
    Queries and values are those of each pass. `remat`: the backward pass computes the
    layer again.
    """

    def apply(block: Any, x: Array, keys: Array | None):
        return block(x, keys, train=train)

    apply = nn.remat(apply) if remat else apply
    x, keys = apply(blocks[layer], x, keys)
    return x, keys if share_weights else None


class EncoderBlock(nn.Module):
    """Attention and MLP, each with a residual and then LayerNorm (BERT's order).

    z1 = LN(z + drop(W_o attention(z) + b_o)); z2 = LN(z1 + drop(MLP(z1))). Without
    `attention_dense`, the report's order, there is no W_o and b_o.
    """

    attention: Callable[..., nn.Module]
    attention_dense: bool
    mlp_dim: int
    activation: str
    dropout_rate: float
    norm_epsilon: float
    param_dtype: Any

    @nn.compact
    def __call__(
        self, x: Float[Array, "B H W D"], keys: Keys = None, *, train: bool
    ) -> tuple[Float[Array, "B H W D"], Keys]:
        """Apply the block and return the keys that its attention returned."""
        width = x.shape[-1]
        update, keys = self.attention(name="attention")(x, keys, train=train)
        if self.attention_dense:
            update = self._dense(width, "attention_dense")(update)
        x = self._add_and_norm(x, update, "attention_norm", train=train)
        hidden = ACTIVATIONS[self.activation](self._dense(self.mlp_dim, "mlp_in")(x))
        update = self._dense(width, "mlp_out")(hidden)
        return self._add_and_norm(x, update, "mlp_norm", train=train), keys

    def _dense(self, features: int, name: str) -> Callable[[Array], Array]:
        def layer(x: Array) -> Array:
            return Dense(
                features,
                dtype=x.dtype,
                param_dtype=self.param_dtype,
                kernel_init=torch_kernel,
                bias_init=torch_uniform(x.shape[-1]),
                name=name,
            )(x)

        return layer

    def _add_and_norm(self, x: Array, update: Array, name: str, *, train: bool):
        update = Dropout(self.dropout_rate)(update, train=train)
        return layer_norm(x + update, self.norm_epsilon, self.param_dtype, name)
