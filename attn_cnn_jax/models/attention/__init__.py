"""Every attention layer of the two papers; the formulas are in `models.scores`.

A layer maps `(x, keys, *, train) -> (y, keys)` with `x, y: [B, H, W, D]`. `keys` are
those of an earlier pass through a shared layer, or None. While "intermediates" are
being captured a layer sows its probabilities as `attention`,
`[B or 1, N, Hq, Wq, Hk, Wk]`; a leading 1 says that they do not depend on the image.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from flax import linen as nn

from attn_cnn_jax.models.attention.encoded import (
    LearnedAbsoluteAttention,
    SinusoidalAbsoluteAttention,
    TransformerXLAttention,
)
from attn_cnn_jax.models.attention.layer import (
    HeadlessAttention,
    Keys,
    Parameter,
    PixelAttention,
    never,
    once_a_key,
    once_a_pixel,
    value_params,
)
from attn_cnn_jax.models.attention.learned import (
    LearnedContentAttention,
    LearnedContentAttentionV1,
    LearnedPositionAttention,
)
from attn_cnn_jax.models.attention.multi_head import MultiHeadAttention
from attn_cnn_jax.models.attention.quadratic import (
    QuadraticAttention,
    ReportQuadraticAttention,
)

__all__ = [
    "ATTENTIONS",
    "BUILT_IN",
    "HeadlessAttention",
    "Keys",
    "LearnedAbsoluteAttention",
    "LearnedContentAttention",
    "LearnedPositionAttention",
    "MultiHeadAttention",
    "Parameter",
    "PixelAttention",
    "QuadraticAttention",
    "SinusoidalAbsoluteAttention",
    "TransformerXLAttention",
    "add_attention",
    "layer_class",
    "never",
    "once_a_key",
    "once_a_pixel",
    "value_params",
]


class Attention(NamedTuple):
    """An attention by its name: the layer, and its fields with their defaults.

    The fields are those of `config.model.attention` beside `name` and `dropout_rate`.
    """

    layer: Callable[..., nn.Module]
    fields: Mapping[str, Any]


ATTENTIONS: dict[str, Attention] = {}


def add_attention(name: str, layer: Callable[..., nn.Module], **fields: Any) -> None:
    """Make `layer` the attention called `name`, with these fields and their defaults.

    The network builds it as `layer(num_heads, dropout_rate, param_dtype, **fields)`.
    """
    ATTENTIONS[name] = Attention(layer, fields)


def layer_class(layer: Callable[..., nn.Module]) -> Any:
    """Return the class behind a layer that may have some of its arguments already."""
    return layer.func if isinstance(layer, partial) else layer


_GAUSSIAN = {"center_std": 2.0, "spread_std": 0.01}
_isotropic = partial(QuadraticAttention, isotropic=True)
_nonisotropic = partial(QuadraticAttention, isotropic=False)
_report_isotropic = partial(ReportQuadraticAttention, isotropic=True)
_report_nonisotropic = partial(ReportQuadraticAttention, isotropic=False)
add_attention("quadratic_isotropic", _isotropic, **_GAUSSIAN)
add_attention("quadratic_nonisotropic", _nonisotropic, **_GAUSSIAN)
add_attention("quadratic_isotropic_report", _report_isotropic, **_GAUSSIAN)
add_attention("quadratic_nonisotropic_report", _report_nonisotropic, **_GAUSSIAN)
add_attention(
    "learned_wo_content", LearnedPositionAttention, max_position=16, position_dim=400
)
add_attention(
    "learned_wo_content_report",
    LearnedPositionAttention,
    max_position=16,
    position_dim=400,
    project_values=False,
)
add_attention("learned_w_content", LearnedContentAttention, max_position=16)
add_attention(
    "learned_w_content_report",
    partial(LearnedContentAttention, projection_bias=False),
    max_position=16,
    project_values=False,
    transposed=False,
)
add_attention(
    "learned_query_position",
    partial(LearnedContentAttention, content=False),
    max_position=16,
)
add_attention(
    "learned_w_content_v1",
    LearnedContentAttentionV1,
    max_position=16,
    position_dim=400,
)
add_attention("absolute_learned", LearnedAbsoluteAttention, max_position=16)
add_attention("absolute_sinusoidal", SinusoidalAbsoluteAttention)
add_attention("transformer_xl", TransformerXLAttention)
add_attention("multi_head", MultiHeadAttention)
BUILT_IN = frozenset(ATTENTIONS)  # their fields have ranges; a user's own have none
