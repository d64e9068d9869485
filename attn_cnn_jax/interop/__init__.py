"""Weights of the original code (PyTorch, epfml/attention-cnn) as our variables.

    python -m attn_cnn_jax.interop --source=STATE --config=FILE.py --workdir=DIR

makes a workdir that evaluates and analyses like one that was trained here. The config
is that of the run that the weights come from; `sources` says what a STATE is.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from attn_cnn_jax import models
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.interop.names import Tensor, mapping
from attn_cnn_jax.interop.sources import unwrap

_IGNORED_BUFFERS = {"attention_mask", "relative_indices", "R", "num_batches_tracked"}


def from_attention_cnn(state: Mapping[str, Any], config_model: Any) -> dict[str, Any]:
    """Our variables from a PyTorch state of the original, in the dtype of the model.

    `state` maps the original's names to arrays; its checkpoints, which wrap this as
    `model_state_dict`, and the prefix `module.` of DataParallel are understood. The
    number of classes is that of its classifier. Raises `UserError` naming the tensors
    that are missing, left over or of another shape than `config_model` asks for.
    """
    state = {
        name: np.asarray(value)
        for name, value in unwrap(state).items()
        if name.rsplit(".", 1)[-1] not in _IGNORED_BUFFERS
    }
    tensors = list(mapping(_shapes(config_model, _num_classes(state)), config_model))
    _check_state(state, tensors)
    variables = {
        tensor.path: jnp.asarray(
            tensor.layout.from_torch(state[tensor.name], tensor.ours.shape),
            tensor.ours.dtype,
        )
        for tensor in tensors
    }
    return traverse_util.unflatten_dict(variables, sep="/")


def to_attention_cnn(
    variables: Mapping[str, Any], config_model: Any
) -> dict[str, np.ndarray]:
    """The original's PyTorch state (without buffers that it makes itself)."""
    return {
        tensor.name: tensor.layout.to_torch(np.asarray(tensor.ours))
        for tensor in mapping(variables, config_model)
    }


def _num_classes(state: Mapping[str, np.ndarray]) -> int:
    for name in ("classifier.weight", "linear.weight"):
        if name in state and state[name].ndim == 2:
            return state[name].shape[0]
    raise UserError(
        "the state has no classifier.weight or linear.weight [classes, width]: "
        "it is not one of epfml/attention-cnn."
    )


def _shapes(config_model: Any, num_classes: int) -> dict[str, Any]:
    """Our variables as shapes. One patch of an image is enough to make them all."""
    side = config_model.get("patch_size", 32)
    init = partial(models.initial_variables, image_shape=(side, side, 3))
    try:
        model = models.build(config_model, num_classes)
        return jax.eval_shape(partial(init, model), jax.random.key(0))
    except models.ModelError as error:
        raise UserError(str(error)) from error


def _check_state(state: Mapping[str, np.ndarray], tensors: list[Tensor]) -> None:
    shapes = {
        tensor.name: jax.eval_shape(tensor.layout.to_torch, tensor.ours).shape
        for tensor in tensors
    }
    problems = [f"{name} is missing" for name in shapes if name not in state]
    problems += [f"{name} is left over" for name in state if name not in shapes]
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
