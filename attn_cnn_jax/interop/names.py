"""Which tensor of the original (epfml/attention-cnn) is which array of ours.

The structure comes from our variables: each leaf is matched by one rule, which gives
its name there and its layout. No shape is written down a second time.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from flax import traverse_util

from attn_cnn_jax.errors import UserError


class Layout(NamedTuple):
    """Our array as a PyTorch tensor, and a PyTorch tensor as our array of a shape."""

    to_torch: Callable[[Any], Any]
    from_torch: Callable[[Any, tuple[int, ...]], Any]


# Tensors of the same shape, and biases that PyTorch keeps flat (ours: [N, D]).
_SAME = Layout(lambda a: a, lambda t, shape: t)
_FLAT = Layout(lambda a: a.reshape(-1), lambda t, shape: t.reshape(shape))
# Linear is [out, in]: ours [in, *out], or of all heads ours [N, in, out].
_LINEAR = Layout(
    lambda a: a.reshape(a.shape[0], -1).T, lambda t, shape: t.T.reshape(shape)
)
_HEADS = Layout(
    lambda a: a.reshape(-1, a.shape[-1]).T, lambda t, shape: t.T.reshape(shape)
)
_CONV = Layout(
    lambda a: a.transpose(3, 2, 0, 1), lambda t, shape: t.transpose(2, 3, 1, 0)
)

# A rule: the path of ours (regular expression, without its collection), their name.
_Rule = tuple[str, str, Layout]


def _dense(ours: str, theirs: str) -> tuple[_Rule, ...]:
    return (
        (f"{ours}/kernel", f"{theirs}.weight", _LINEAR),
        (f"{ours}/bias", f"{theirs}.bias", _FLAT),
    )


def _norm(ours: str, theirs: str) -> tuple[_Rule, ...]:
    return (
        (f"{ours}/scale", f"{theirs}.weight", _SAME),
        (f"{ours}/bias", f"{theirs}.bias", _SAME),
        (f"{ours}/mean", f"{theirs}.running_mean", _SAME),
        (f"{ours}/var", f"{theirs}.running_var", _SAME),
    )


def _convolution(ours: str, conv: str, norm: str) -> tuple[_Rule, ...]:
    return (f"{ours}conv/kernel", f"{conv}.weight", _CONV), *_norm(f"{ours}norm", norm)


_OURS = r"block_(\d+)"
_THEIRS = r"encoder.layer.\1"


def _of_attention(ours: str, theirs: str, layout: Layout) -> _Rule:
    return f"{_OURS}/attention/{ours}", rf"{_THEIRS}.attention.self.{theirs}", layout


_NETWORK = (
    *_dense("embedding", "features_upscale"),
    *_dense(f"{_OURS}/attention_dense", f"{_THEIRS}.attention.output.dense"),
    *_norm(f"{_OURS}/attention_norm", f"{_THEIRS}.attention.output.LayerNorm"),
    *_dense(f"{_OURS}/mlp_in", f"{_THEIRS}.intermediate.dense"),
    *_dense(f"{_OURS}/mlp_out", f"{_THEIRS}.output.dense"),
    *_norm(f"{_OURS}/mlp_norm", f"{_THEIRS}.output.LayerNorm"),
    *_dense("classifier", "classifier"),
)
_VALUE = (
    _of_attention("value_kernel", "value.weight", _HEADS),
    _of_attention("value_bias", "value.bias", _SAME),
)
_QUADRATIC = (
    _of_attention("centers", "attention_centers", _SAME),
    _of_attention("spreads", "attention_spreads", _SAME),
    *_VALUE,
)
_QUERY = (
    _of_attention("query_kernel", "query.weight", _LINEAR),
    _of_attention("query_bias", "query.bias", _FLAT),
)
_KEY = (
    _of_attention("key_kernel", "key.weight", _LINEAR),
    _of_attention("key_bias", "key.bias", _FLAT),
)
# Where queries meet the tables, the original's rows are the rows of the image.
_QUERY_TABLES = (
    _of_attention("row_embeddings", "row_embeddings.weight", _SAME),
    _of_attention("col_embeddings", "col_embeddings.weight", _SAME),
)
# Elsewhere its "row" tables follow the columns of the image, and the other way round.
_KEY_TABLES = (
    _of_attention("row_embeddings", "col_embeddings.weight", _SAME),
    _of_attention("col_embeddings", "row_embeddings.weight", _SAME),
    _of_attention("row_keys", "head_keys_col.weight", _LINEAR),
    _of_attention("col_keys", "head_keys_row.weight", _LINEAR),
)
_ATTENTIONS: dict[str, tuple[_Rule, ...]] = {
    "quadratic_isotropic": _QUADRATIC,
    "quadratic_nonisotropic": _QUADRATIC,
    "learned_wo_content": (*_KEY_TABLES, *_VALUE),
    "learned_w_content": (*_QUERY_TABLES, *_QUERY, *_KEY, *_VALUE),
    "learned_query_position": (*_QUERY_TABLES, *_QUERY, *_VALUE),
    "learned_w_content_v1": (*_KEY_TABLES, *_QUERY, *_KEY, *_VALUE),
    "multi_head": tuple(
        rule
        for name in ("query", "key", "value")
        for rule in _dense(
            f"{_OURS}/attention/{name}", f"{_THEIRS}.attention.self.{name}"
        )
    ),
}


def _resnet_rules() -> Iterator[_Rule]:
    yield from _convolution("stem_", "conv1", "bn1")
    for stage in range(4):
        ours, theirs = rf"stage_{stage}_block_(\d+)/", rf"layer{stage + 1}.\1."
        yield from _convolution(rf"{ours}(\d)_", rf"{theirs}conv\2", rf"{theirs}bn\2")
        shortcut = f"{theirs}shortcut"
        yield from _convolution(f"{ours}shortcut_", f"{shortcut}.0", f"{shortcut}.1")
    yield from _dense("classifier", "linear")


class Tensor(NamedTuple):
    """Our path (with its collection), our array or shape, their name, the layout."""

    path: str
    ours: Any
    name: str
    layout: Layout


def mapping(variables: Mapping[str, Any], config_model: Any) -> Iterator[Tensor]:
    """Every leaf of `variables` (arrays or shapes) with its name and layout there."""
    if "attention" in config_model:
        rules = (*_NETWORK, *_ATTENTIONS[config_model["attention"]["name"]])
    else:
        rules = tuple(_resnet_rules())
    for path, leaf in traverse_util.flatten_dict(variables, sep="/").items():
        for ours, theirs, layout in rules:
            match = re.fullmatch(f"(?:params|batch_stats)/{ours}", path)
            if match:
                yield Tensor(path, leaf, match.expand(theirs), layout)
                break
        else:
            raise UserError(f"{path} has no counterpart in epfml/attention-cnn.")
