"""The check of `config.model`, as far as it can be told without the images."""

from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import ConfigDict

from attn_cnn_jax.config import model_blocks
from attn_cnn_jax.config.fields import check_schema, require
from attn_cnn_jax.config.record import flatten
from attn_cnn_jax.models.attention import ATTENTIONS, BUILT_IN, layer_class
from attn_cnn_jax.models.attention.convolutional import ENCODINGS
from attn_cnn_jax.models.encoder import ACTIVATIONS
from attn_cnn_jax.models.resnet import KERNELS
from attn_cnn_jax.models.vit.block import INITIALIZERS

_CHOICES = {
    "compute_dtype": ("float32", "bfloat16", "float64"),
    "activation": tuple(ACTIVATIONS),
    "class_token": ("random", "learned", "none"),
    "readout": ("mean", "token"),
    "attention": ("pairwise", "patchwise"),
    "encoding": tuple(ENCODINGS),
}
_LARGEST_KERNEL = 11
# Bounds far above any network: beyond them arrays have more bytes than can be counted,
# or tracing the layers one by one does not end.
_LARGEST_SIZE, _MOST_LAYERS = 2**20, 1000
_REPEATED = ("num_layers", "num_blocks", "num_passes", "num_sweeps")


def check_model(model: ConfigDict) -> None:
    """Raise a `UserError` that names the first field out of its type or range."""
    name = model.get("name", "")
    choices = f"one of {', '.join(_CHECKS)}"
    known = isinstance(name, str) and name in _CHECKS
    require(known, "model.name", name, choices)
    _CHECKS[name](model)


def _check_self_attention(model: ConfigDict) -> None:
    block = model.get("attention", ConfigDict())
    is_block = isinstance(block, ConfigDict)
    require(is_block, "model.attention", block, "a block of fields")
    attention = block.get("name", "")
    choices = f"one of {', '.join(ATTENTIONS)}"
    known = isinstance(attention, str) and attention in ATTENTIONS
    require(known, "model.attention.name", attention, choices)
    schema = model_blocks.self_attention(attention)
    check_schema(model, schema, "model.", {"num_heads": tuple})
    check_schema(model.attention, schema.attention, "model.attention.")
    _check_fields(model)
    _check_heads(model)
    layer = layer_class(ATTENTIONS[attention].layer)
    wanted = f"0 for {attention}, which is not a PixelAttention"
    chunks = model.query_chunk == 0 or hasattr(layer, "query_chunk")
    require(chunks, "model.query_chunk", model.query_chunk, wanted)
    if getattr(layer, "heads_share_width", False):
        heads = model.num_heads
        numbers = heads if isinstance(heads, tuple) else (heads,)
        divides = all(n > 0 and model.width % n == 0 for n in numbers)
        wanted = f"a divisor of config.model.width ({model.width}) for {attention}"
        require(divides, "model.num_heads", heads, wanted)
    if getattr(layer, "halves_queries", False):
        wanted = "even: half of each query meets the rows, half the columns"
        require(model.width % 2 == 0, "model.width", model.width, wanted)
    if getattr(layer, "is_sinusoidal", False):
        wanted = "a multiple of 4: sines and cosines of rows and of columns"
        require(model.width % 4 == 0, "model.width", model.width, wanted)


def _check_heads(model: ConfigDict) -> None:
    """Refuse all but one number of heads, or one for each layer, 0 too."""
    heads = model.num_heads
    if not isinstance(heads, tuple):
        return
    wanted = "one number where config.model.share_weights is set"
    require(not model.share_weights, "model.num_heads", heads, wanted)
    whole = all(type(n) is int and 0 <= n <= _LARGEST_SIZE for n in heads)
    wanted = (
        "one whole number, or one for each of the config.model.num_layers "
        f"({model.num_layers}) layers"
    )
    fits = whole and len(heads) == model.num_layers
    require(fits, "model.num_heads", heads, wanted)


def _check_resnet(model: ConfigDict) -> None:
    check_schema(model, model_blocks.resnet(model.name), "model.")
    _check_fields(model)
    _check_initialization(model, KERNELS)


def _check_resnet_as_attention(model: ConfigDict) -> None:
    check_schema(model, model_blocks.resnet_as_attention(model.name), "model.")
    _check_fields(model)


def _check_initialization(model: ConfigDict, choices: Mapping[str, Any]) -> None:
    name = model.initialization
    wanted = f"one of {', '.join(choices)}"
    require(name in choices, "model.initialization", name, wanted)


def _check_san(model: ConfigDict) -> None:
    check_schema(model, model_blocks.san("pairwise", model.name), "model.")
    _check_fields(model)
    for field in ("num_blocks", "kernel_sizes"):
        if field in model:
            wanted = f"as long as config.model.widths ({len(model.widths)})"
            long = len(model[field]) == len(model.widths)
            require(long, f"model.{field}", model[field], wanted)
    for field in ("widths", "kernel_sizes"):
        for value in model.get(field, ()):
            _check_san_size(field, value, model[field])
    blocks = model.get("num_blocks", ())
    wanted = f"at most {_MOST_LAYERS} blocks in all"
    require(sum(blocks) <= _MOST_LAYERS, "model.num_blocks", blocks, wanted)


def _check_hierarchical_san(model: ConfigDict) -> None:
    check_schema(model, model_blocks.san_hierarchical("pairwise"), "model.")
    _check_fields(model)
    depth = model.num_passes * model.num_sweeps * model.num_blocks
    wanted = (
        f"at most {_MOST_LAYERS} with config.model.num_sweeps ({model.num_sweeps}) and "
        f"config.model.num_blocks ({model.num_blocks}) multiplied"
    )
    require(depth <= _MOST_LAYERS, "model.num_passes", model.num_passes, wanted)
    _check_san_size("widths", model.width, model.width, "width")
    _check_san_size("kernel_sizes", model.kernel_size, model.kernel_size, "kernel_size")


def _check_san_size(kind: str, value: int, shown: Any, field: str = "") -> None:
    field = f"model.{field or kind}"
    if kind == "widths":
        wanted = "multiples of 32" if isinstance(shown, tuple) else "a multiple of 32"
        require(value % 32 == 0, field, shown, wanted)
    else:
        odd = value % 2 == 1 and 3 <= value <= _LARGEST_KERNEL
        require(odd, field, shown, f"odd, from 3 to {_LARGEST_KERNEL}")


def _check_vit(model: ConfigDict) -> None:
    check_schema(model, model_blocks.vit(), "model.")
    _check_fields(model)
    _check_initialization(model, INITIALIZERS)
    reads = model.readout != "token" or model.class_token != "none"
    wanted = 'mean where config.model.class_token is "none"'
    require(reads, "model.readout", model.readout, wanted)


_CHECKS: dict[str, Callable[[ConfigDict], None]] = {
    "self_attention": _check_self_attention,
    "vit": _check_vit,
    "san": _check_san,
    "san_hierarchical": _check_hierarchical_san,
    **dict.fromkeys(model_blocks.IMAGENET_SANS, _check_san),
    **dict.fromkeys(model_blocks.RESNETS, _check_resnet),
    **dict.fromkeys(model_blocks.RESNETS_AS_ATTENTION, _check_resnet_as_attention),
}


def _check_fields(model: ConfigDict) -> None:
    """Check the range of every field but those that only a user's own layer knows."""
    fields = flatten(model, "model.")
    if model.name == "self_attention" and model.attention.name not in BUILT_IN:
        own = tuple(ATTENTIONS[model.attention.name].fields)
        fields = {
            field: value
            for field, value in fields.items()
            if field.removeprefix("model.attention.").partition(".")[0] not in own
        }
    for field, value in fields.items():
        _check_field(field, value)


def _check_field(field: str, value: Any) -> None:
    kind = field.rsplit(".", 1)[-1]
    if kind == "name" or isinstance(value, bool):
        return
    if kind in _CHOICES:
        require(
            value in _CHOICES[kind], field, value, f"one of {', '.join(_CHOICES[kind])}"
        )
        return
    if kind in ("dropout_rate", "attention_dropout_rate"):
        require(0 <= value < 1, field, value, "at least 0 and below 1")
        return
    largest = _MOST_LAYERS if kind in _REPEATED else _LARGEST_SIZE
    bound = f"and at most {largest}"
    if kind in ("center_std", "spread_std"):
        require(0 <= value <= largest, field, value, f"at least 0 {bound}")
    elif kind == "norm_epsilon":
        require(0 < value <= largest, field, value, f"above 0 {bound}")
    elif kind in ("stem_width", "query_chunk"):
        require(0 <= value <= largest, field, value, f"at least 0 {bound}")
    elif isinstance(value, tuple) and kind != "num_heads":
        whole = all(type(v) is int and 1 <= v <= largest for v in value)
        wanted = f"a tuple of whole numbers, each at least 1 {bound}"
        require(whole and len(value) > 0, field, value, wanted)
    elif isinstance(value, int):
        require(1 <= value <= largest, field, value, f"at least 1 {bound}")
