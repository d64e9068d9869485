"""Every attention layer of the two papers; the formulas are in `models.scores`.

A layer maps `(x, keys, *, train) -> (y, keys)` with `x, y: [B, H, W, D]`. `keys` are
those of an earlier pass through a shared layer, or None. While "intermediates" are
being captured a layer sows its probabilities as `attention`,
`[B or 1, N, Hq, Wq, Hk, Wk]`; a leading 1 says that they do not depend on the image.
"""

from functools import partial

from attn_cnn_jax.models.attention.axes import HEAD_AXES, VALUE_AXES
from attn_cnn_jax.models.attention.headless import HeadlessAttention
from attn_cnn_jax.models.attention.mixing import Keys, dropout_probs, value_params
from attn_cnn_jax.models.attention.multi_head import MultiHeadAttention
from attn_cnn_jax.models.attention.quadratic import QuadraticAttention
from attn_cnn_jax.models.attention.relative import LearnedRelativeAttention

__all__ = [
    "ATTENTIONS",
    "HEAD_AXES",
    "VALUE_AXES",
    "HeadlessAttention",
    "Keys",
    "LearnedRelativeAttention",
    "MultiHeadAttention",
    "QuadraticAttention",
    "dropout_probs",
    "value_params",
]

ATTENTIONS = {
    "quadratic_isotropic": partial(QuadraticAttention, isotropic=True),
    "quadratic_nonisotropic": partial(QuadraticAttention, isotropic=False),
    "learned_wo_content": partial(
        LearnedRelativeAttention, content=False, query_position=False
    ),
    "learned_w_content": partial(
        LearnedRelativeAttention, content=True, query_position=True
    ),
    "learned_w_content_report": partial(
        LearnedRelativeAttention,
        content=True,
        query_position=True,
        projection_bias=False,
    ),
    "learned_query_position": partial(
        LearnedRelativeAttention, content=False, query_position=True
    ),
    "learned_w_content_v1": partial(
        LearnedRelativeAttention, content=True, query_position=False
    ),
    "multi_head": MultiHeadAttention,
}
