"""Convert a state, a mapping of names to arrays, to our variables, and back."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import traverse_util

from attn_cnn_jax import models
from attn_cnn_jax.errors import UserError, first_line, one_line
from attn_cnn_jax.interop import attention_cnn, google, report, san
from attn_cnn_jax.interop.layouts import Rule, Tensor, mapping
from attn_cnn_jax.interop.state_files import unwrap
from attn_cnn_jax.theory import networks

_IGNORED_BUFFERS = {"attention_mask", "relative_indices", "R", "num_batches_tracked"}
_REPORT = "the report's code"


def from_attention_cnn(state: Mapping[str, Any], config_model: Any) -> dict[str, Any]:
    """Return our variables from a PyTorch state of the paper's epfml/attention-cnn.

    `state` maps the original's names to arrays; its checkpoints, which wrap this as
    `model_state_dict`, and the prefix `module.` of DataParallel are understood. The
    number of classes is that of its classifier. Raises `UserError` naming the tensors
    that are missing, left over or of another shape than `config_model` asks for. A
    ResNet of attention layers takes the state of the ResNet that it computes.
    """
    if networks.is_attention(config_model):
        resnet, encoding = networks.plain(config_model), config_model["encoding"]
        variables = from_attention_cnn(state, resnet)
        return networks.as_attention(resnet, variables, encoding=encoding)[1]
    state = _arrays(state)
    rules = attention_cnn.rules(config_model)
    classifiers = ("classifier.weight", "linear.weight")
    model = _build(config_model, _num_classes(state, classifiers, attention_cnn.ORIGIN))
    # One patch of an image is enough to make all tensors.
    side = config_model.get("patch_size", 32)
    shapes = _shapes(model, (1, side, side, 3))
    return _converted(state, list(mapping(shapes, rules, attention_cnn.ORIGIN)))


def to_attention_cnn(
    variables: Mapping[str, Any], config_model: Any
) -> dict[str, np.ndarray]:
    """Return the original's PyTorch state, without buffers that it makes itself.

    That of a ResNet of attention layers is the state of the ResNet that it computes.
    """
    if networks.is_attention(config_model):
        config_model, variables = networks.as_convolutions(config_model, variables)
    rules = attention_cnn.rules(config_model)
    return _state(mapping(variables, rules, attention_cnn.ORIGIN))


def from_report(state: Mapping[str, Any], config_model: Any) -> dict[str, Any]:
    """Return our variables from a state of the report's networks.

    These are the learned attention and the report's Vision Transformer, both
    hierarchical or not, hierarchical SAN, SAN with the names of the official code (all
    in PyTorch), and the standard Vision Transformer with Google's Flax names, joined by
    "/". The report's own networks have the names of its published modules or the short
    ones of `to_report`; the dict of state_dicts that its code saves may be nested,
    joined (`clf/fc.bias`, `clf.fc.bias`) or merged (`fc.bias`). A state of one SAN
    bottleneck (`sam.conv1.weight`, ...) or of one of Google's blocks
    (`LayerNorm_0/scale`, ...) gives the variables of `san.Bottleneck` or
    `vit.TokenBlock`. Errors are those of `from_attention_cnn`.
    """
    state = _arrays(state)
    full_names = {report.without_module(name): name for name in state}
    bare = {name: state[full_name] for name, full_name in full_names.items()}
    rules = _report_rules(config_model, bare)
    block = _block_of(config_model, bare)
    if block is None:
        names = ("fc.weight", "head/kernel")
        block = _build(config_model, _num_classes(bare, names, _REPORT))
        shape = _image_shape(config_model, bare)
    elif config_model["name"] == "vit":
        shape = (1, 1, config_model["width"])
    else:
        side = 2 * block.kernel_size
        shape = (1, side, side, _bottleneck_width(bare))
    shapes = _shapes(block, shape)
    spellings = (rules, report.published(rules))
    candidates = [list(mapping(shapes, spelling, _REPORT)) for spelling in spellings]
    tensors = max(candidates, key=lambda tensors: sum(t.name in bare for t in tensors))
    return _converted(state, [_renamed(tensor, full_names) for tensor in tensors])


def _renamed(tensor: Tensor, full_names: Mapping[str, str]) -> Tensor:
    """Return the tensor with its full name in the file.

    A missing one is placed in the module of those whose names begin alike.
    """
    start = tensor.name.partition(".")[0]
    like = (n for n in full_names if n.partition(".")[0] == start)
    name = tensor.name if tensor.name in full_names else next(like, "")
    module = full_names.get(name, "").removesuffix(name)
    return tensor._replace(name=module + tensor.name)


def to_report(variables: Mapping[str, Any], config_model: Any) -> dict[str, np.ndarray]:
    """Return the state of a network or a block that `from_report` reads."""
    rules = _report_rules(config_model, traverse_util.flatten_dict(variables, sep="/"))
    return _state(mapping(variables, rules, _REPORT))


def from_state(state: Mapping[str, Any], config_model: Any) -> dict[str, Any]:
    """Return our variables by the one of the two functions that knows the model."""
    convert = from_report if _is_reports(config_model) else from_attention_cnn
    return convert(state, config_model)


def _is_reports(config_model: Any) -> bool:
    if config_model["name"] == "self_attention":
        return config_model["attention"]["name"] == "learned_w_content_report"
    return config_model["name"] == "vit" or _is_san(config_model)


def _is_san(config_model: Any) -> bool:
    return config_model["name"].startswith("san")


def _report_rules(config_model: Any, names: Mapping[str, Any]) -> tuple[Rule, ...]:
    """Return the rules of a network, or a block if `names` (ours, theirs) are one's."""
    name = config_model["name"]
    if not _is_reports(config_model):
        raise UserError(f"{name} is not a network of {_REPORT}.")
    if name == "self_attention":
        return report.learned(config_model)
    if name == "vit":
        if config_model["initialization"] == "torch":
            return report.vision_transformer(config_model)
        if {"LayerNorm_0/scale", "params/mlp_norm/scale"} & names.keys():
            return google.BLOCK
        return google.network(config_model["patch_size"], config_model["share_weights"])
    if {"sam.conv1.weight", "params/norm_1/scale"} & names.keys():
        return san.BOTTLENECK
    return san.HIERARCHICAL if name == "san_hierarchical" else san.NETWORK


def _block_of(config_model: Any, state: Mapping[str, Any]) -> Any:
    """Return the block that a state holds, or None if it holds a whole network."""
    if _is_san(config_model) and "sam.conv1.weight" in state:
        return models.san.Bottleneck(
            attention=config_model["attention"],
            kernel_size=_kernel_size(config_model, state),
            projection_bias=any(f"sam.conv{i}.bias" in state for i in (1, 2, 3)),
            pre_activation=config_model.get("pre_activation", True),
            param_dtype=jnp.promote_types("float32", config_model["compute_dtype"]),
        )
    if config_model["name"] == "vit" and "LayerNorm_0/scale" in state:
        return _build(config_model, 1).block("block")
    return None


def _kernel_size(config_model: Any, state: Mapping[str, np.ndarray]) -> int:
    """Return the config's kernel size that a bottleneck fits, or its first one."""
    network = _build(config_model, 1)
    sizes = getattr(network, "kernel_sizes", None) or (network.kernel_size,)
    if config_model["attention"] == "pairwise":  # no tensor depends on it
        return sizes[0]
    # That norm reads the query and the keys of all taps, width / 16 channels each.
    relation = _bottleneck_width(state) // 16
    norm = state.get("sam.conv_w.0.weight", np.empty(0))
    fits = (size for size in sizes if norm.shape == (relation * (1 + size**2),))
    return next(fits, sizes[0])


def _bottleneck_width(state: Mapping[str, np.ndarray]) -> int:
    name = "bn1.weight"
    if name not in state:
        raise UserError(f"the state does not fit the config: {name} is missing.")
    shape = state[name].shape
    if len(shape) != 1 or not shape[0] or shape[0] % 32:
        raise UserError(
            f"the state does not fit the config: {name} has shape {shape}, not that of "
            "a width, a multiple of 32."
        )
    return shape[0]


def _image_shape(
    config_model: Any, state: Mapping[str, np.ndarray]
) -> tuple[int, int, int, int]:
    """Return the shape of an image for which a network has the tensors of `state`."""
    name = config_model["name"]
    if _is_san(config_model):
        return 1, 224, 224, 3
    if name == "self_attention":
        return 1, config_model["patch_size"], config_model["patch_size"], 3
    theirs = ("position_embedding.weight", "Transformer/posembed_input/pos_embedding")
    lengths = [state[name].shape[-2:-1] for name in theirs if name in state]
    num_tokens = next((length[0] for length in lengths if length), 1)
    num_patches = num_tokens - (config_model["class_token"] != "none")
    size = config_model["patch_size"]
    return 1, size * max(num_patches, 1), size, 3


def _arrays(state: Mapping[str, Any]) -> dict[str, np.ndarray]:
    arrays = {}
    for name, value in unwrap(state).items():
        if name.rsplit(".", 1)[-1] in _IGNORED_BUFFERS:
            continue
        try:
            arrays[name] = np.asarray(value)
        except (TypeError, ValueError) as error:
            raise UserError(
                f"{one_line(name)} is not a tensor: {first_line(error)}."
            ) from error
    return arrays


def _num_classes(
    state: Mapping[str, np.ndarray], classifiers: tuple[str, ...], origin: str
) -> int:
    for name in classifiers:
        if name in state and state[name].ndim == 2 and state[name].size:
            return state[name].shape[1 if name.endswith("kernel") else 0]
    raise UserError(
        f"the state has no {' or '.join(classifiers)} [classes, width]: it is not one "
        f"of {origin}."
    )


def _build(config_model: Any, num_classes: int) -> Any:
    try:
        return models.build(config_model, num_classes)
    except models.ModelError as error:
        raise UserError(str(error)) from error


def _shapes(module: nn.Module, input_shape: tuple[int, ...]) -> dict[str, Any]:
    """Return the variables of a network or a block as shapes."""
    init = partial(module.init, train=False)
    example = jax.ShapeDtypeStruct(input_shape, jnp.float32)
    try:
        return dict(jax.eval_shape(init, jax.random.key(0), example))
    except (TypeError, ValueError) as error:
        raise UserError(f"this model cannot be built: {error}.") from error


def _converted(
    state: Mapping[str, np.ndarray], tensors: list[Tensor]
) -> dict[str, Any]:
    _check_state(state, tensors)
    variables = {
        tensor.path: jnp.asarray(
            tensor.layout.from_torch(state[tensor.name], tensor.ours.shape),
            tensor.ours.dtype,
        )
        for tensor in tensors
    }
    return traverse_util.unflatten_dict(variables, sep="/")


def _state(tensors: Any) -> dict[str, np.ndarray]:
    return {t.name: t.layout.to_torch(np.asarray(t.ours)) for t in tensors}


def _check_state(state: Mapping[str, np.ndarray], tensors: list[Tensor]) -> None:
    shapes = {
        tensor.name: jax.eval_shape(tensor.layout.to_torch, tensor.ours).shape
        for tensor in tensors
    }
    problems = [f"{name} is missing" for name in shapes if name not in state]
    problems += [
        f"{one_line(name)} is left over" for name in state if name not in shapes
    ]
    for name in shapes.keys() & state.keys():
        value, shape = state[name], shapes[name]
        if value.shape != shape:
            problems.append(f"{name} has shape {value.shape}, not {shape}")
        elif not jnp.issubdtype(value.dtype, jnp.floating):
            problems.append(f"{name} is {value.dtype}, not floating point")
    if problems:
        more = len(problems) - 5
        raise UserError(
            "the state does not fit the config: "
            + "; ".join(sorted(problems)[:5])
            + (f"; and {more} more." if more > 0 else ".")
        )
