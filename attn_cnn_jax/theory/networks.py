"""A ResNet with attention in the place of every convolution, and back."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float
from ml_collections import ConfigDict

from attn_cnn_jax import config as config_lib
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention.convolutional import ConvolutionalAttention
from attn_cnn_jax.theory.construction import attention_params

_SUFFIX = "_as_attention"


def is_attention(model: ConfigDict) -> bool:
    """Tell if a `config.model` is a ResNet of attention layers."""
    return model["name"] in config_lib.RESNETS_AS_ATTENTION


def as_attention(
    model: ConfigDict,
    variables: Mapping[str, Any],
    *,
    sharpness: float | None = None,
    encoding: str = "quadratic",
) -> tuple[ConfigDict, dict[str, Any]]:
    """Return `config.model` and variables of a ResNet with attention layers.

    Every convolution becomes the layer of Theorem 1; BatchNorm and classifier stay.
    """
    new = config_lib.resnet_as_attention(model.name + _SUFFIX)
    new.update(width=model.width, compute_dtype=model.compute_dtype, encoding=encoding)
    params = {
        path: _attention(leaf["kernel"], encoding, sharpness) if is_layer else leaf
        for path, leaf, is_layer in _layers(variables["params"])
    }
    return new, {**variables, "params": _nested(params)}


def as_convolutions(
    model: ConfigDict, variables: Mapping[str, Any]
) -> tuple[ConfigDict, dict[str, Any]]:
    """Return `config.model` and variables of the ResNet that `as_attention` took.

    Raises a `UserError` where a layer is no convolution: a head is off the taps or not
    one-hot, or the layer adds a bias.
    """
    new = plain(model)
    params = {
        path: _convolution("/".join(path), leaf, model.encoding) if is_layer else leaf
        for path, leaf, is_layer in _layers(variables["params"])
    }
    return new, {**variables, "params": _nested(params)}


def plain(model: ConfigDict) -> ConfigDict:
    """Return `config.model` of the ResNet whose convolutions became attention."""
    new = config_lib.resnet(model["name"].removesuffix(_SUFFIX))
    new.update(width=model["width"], compute_dtype=model["compute_dtype"])
    return new


def kernels(variables: Mapping[str, Any]) -> list[Float[Any, "K K D E"]]:
    """Return the kernels of all convolutions of a ResNet."""
    found = _layers(variables["params"])
    return [leaf["kernel"] for _, leaf, is_layer in found if is_layer]


def _layers(
    tree: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any, bool]]:
    """Yield (path, parameters, True) of a convolution, (path, array, False) of more."""
    for name, value in tree.items():
        if name.endswith("conv"):
            yield (*path, name), value, True
        elif isinstance(value, Mapping):
            yield from _layers(value, (*path, name))
        else:
            yield (*path, name), value, False


def _nested(leaves: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        place = tree
        for name in path[:-1]:
            place = place.setdefault(name, {})
        place[path[-1]] = leaf
    return tree


def _attention(kernel: Any, encoding: str, sharpness: float | None) -> dict[str, Any]:
    size, features = kernel.shape[:2], kernel.shape[3]
    layer = ConvolutionalAttention(features, size, encoding=encoding)
    return attention_params(layer, kernel, sharpness=sharpness)


def _convolution(name: str, layer: Mapping[str, Any], encoding: str) -> dict[str, Any]:
    """Return the kernel that the heads of a layer are, in the order of its taps."""
    params = layer["attention"]
    values = np.asarray(params["value_kernel"])
    side = math.isqrt(len(values))
    kernel = values.reshape(side, side, *values.shape[1:])
    exact = _attention(kernel, encoding, None)["attention"]
    if "spreads" in exact and not (params["spreads"] >= exact["spreads"]).all():
        raise UserError(f"{name}: its heads are not one-hot, so it is no convolution.")
    for part in exact.keys() - {"value_kernel", "spreads"}:
        if not np.array_equal(exact[part], params[part]):
            raise UserError(f"{name}: its {part} are not those of a convolution.")
    return {"kernel": kernel}
