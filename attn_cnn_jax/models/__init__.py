"""The models by name: `build(config.model, num_classes)`, then init and apply.

A model is `model.apply(variables, images [B, H, W, C] normalised, train=False)`, which
returns logits [B, num_classes]. With `mutable=["intermediates"]` an attention network
also returns the probabilities of every layer.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Int

from attn_cnn_jax.models import san
from attn_cnn_jax.models.layers import AttentionParams, ModelError, attention_params
from attn_cnn_jax.models.resnet import RESNETS, RESNETS_AS_ATTENTION
from attn_cnn_jax.models.self_attention import SelfAttentionNetwork
from attn_cnn_jax.models.vit import VisionTransformer

__all__ = [
    "LAYERED",
    "MODELS",
    "AttentionParams",
    "ModelError",
    "attention_params",
    "build",
    "count_parameters",
    "evaluation_draws",
    "initial_variables",
    "san",
]

MODELS: dict[str, Callable[..., nn.Module]] = {
    "self_attention": SelfAttentionNetwork,
    "vit": VisionTransformer,
    **RESNETS,
    **RESNETS_AS_ATTENTION,
    **san.SANS,
}

# Networks that can be run from any of their layers on: `embed`, `layer`, `classify`.
LAYERED = (SelfAttentionNetwork, VisionTransformer)


def build(model_config: Any, num_classes: int) -> nn.Module:
    """Return the module that `config.model` (any mapping) describes by its fields."""
    fields = _plain(model_config)
    name = fields.pop("name", None)
    if name not in MODELS:
        raise ModelError(f"model.name is {name!r}; choose from {', '.join(MODELS)}.")
    try:
        return MODELS[name](num_classes=num_classes, **fields)
    except TypeError as error:
        raise ModelError(f"config.model of {name}: {error}.") from error


def initial_variables(
    model: nn.Module, rng: jax.Array, image_shape: tuple[int, int, int]
) -> dict[str, Any]:
    """Draw the variables of a new network for images of `image_shape` (H, W, C).

    Raises `ModelError` where the model cannot take such images. Under `jax.eval_shape`
    no array is made.
    """
    images = jnp.zeros((1, *image_shape), jnp.float32)
    try:
        return dict(model.init(rng, images, train=False))
    except (TypeError, ValueError) as error:
        raise ModelError(f"this model cannot be built: {error}.") from error


def evaluation_draws(
    model: nn.Module, rng: jax.Array, indices: Int[Array, "B"], channels: int
) -> dict[str, Array]:
    """Draw for evaluation and return arguments of `apply`; most networks need none.

    The draw of an image comes from `rng` and its index in the dataset alone, so that
    evaluation repeats whatever the batches are. `channels` are those of the images.
    """
    draws = getattr(model, "evaluation_draws", None)
    return {} if draws is None else draws(rng, indices, channels)


def count_parameters(variables: Mapping[str, Any]) -> int:
    """Return the number of trained values."""
    return sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))


def _plain(fields: Any) -> dict[str, Any]:
    return {
        key: _plain(value) if hasattr(value, "items") else value
        for key, value in fields.items()
    }
