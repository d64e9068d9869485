"""PyTorch's side: the same networks from the same `config.model`, in plain PyTorch.

Written from the formulas of the papers, in the form that their code has: scores of all
pairs of pixels, softmax, mix, project. The names of the tensors are those that
`attn_cnn_jax.interop` reads, and a test holds the networks to ours through it.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from benchmarks.torch_models.resnet import ResNet
from benchmarks.torch_models.san import SAN
from benchmarks.torch_models.self_attention import SelfAttentionNetwork
from benchmarks.torch_models.vit import VisionTransformer
from benchmarks.variants import has_content

_MODELS: dict[str, Callable[..., nn.Module]] = {
    "resnet18": ResNet,
    "san": SAN,
    "self_attention": SelfAttentionNetwork,
    "vit": VisionTransformer,
}
# The values of fields that these networks have alone.
_FIXED: dict[str, dict[str, Any]] = {
    "self_attention": {
        "share_weights": False,
        "attention_dense": True,
        "activation": "gelu",
    },
    "vit": {
        "share_weights": False,
        "activation": "gelu",
        "class_token": "random",
        "normalized_residual": True,
        "projection_bias": False,
        "final_norm": False,
        "readout": "mean",
        "initialization": "torch",
        "dropout_rate": 0.0,
    },
}


def build(
    model: Mapping[str, Any],
    num_classes: int,
    image_shape: tuple[int, int, int],
    attention: Callable[..., Any] | None = None,
) -> nn.Module:
    """Return the network that `config.model` describes, for images [B, C, H, W].

    `image_shape` is (H, W, C). `attention`, with the arguments of
    `torch.nn.functional.scaled_dot_product_attention`, computes attention with content
    in place of the plain formula. Raises `ValueError` where there is no such network
    here.
    """
    name = model["name"]
    if name not in _MODELS:
        raise ValueError(f"there is no {name} in PyTorch here")
    for field, value in _FIXED.get(name, {}).items():
        if model[field] != value:
            raise ValueError(f"PyTorch's {name} here has {field}={value!r} alone")
    if attention is None:
        return _MODELS[name](model, num_classes, image_shape)
    if not has_content(model):
        raise ValueError("a fused attention is for attention with content")
    return _MODELS[name](model, num_classes, image_shape, attention)
