"""Vision Transformers (Dosovitskiy et al., ICLR 2021): the report's and Google's."""

from attn_cnn_jax.models.vit.block import TokenAttention, TokenBlock
from attn_cnn_jax.models.vit.network import VisionTransformer

__all__ = ["TokenAttention", "TokenBlock", "VisionTransformer"]
