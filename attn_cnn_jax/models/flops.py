"""Floating-point operations of a model, counted two ways and without arrays.

`paper_flops` counts layers as the papers' tables do, `program_flops` the operations of
a traced function. A multiply-add is two operations in both.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn


def paper_flops(
    model: nn.Module, variables: Mapping[str, Any], image_shape: tuple[int, int, int]
) -> int | None:
    """Count the operations of dense and convolution layers for one image (H, W, C).

    The FLOPs of the paper's Table 1: 2 x multiply-adds of the evaluated network,
    without biases, norms and the products with attention scores and probabilities. A
    layer with kernels of its own counts them as its `parameters` say (`times`): as the
    published code applies them, not as this package rewrites them. A layer that is
    called several times counts each time; one inside `nn.scan` as often as it is
    traced. None: a layer holds a kernel of which it does not say how often it is met.

    `variables` may be arrays or their shapes.
    """
    multiply_adds: list[int | None] = []

    def count(layer, args, kwargs, context) -> Any:
        output = layer(*args, **kwargs)
        if context.method_name == "__call__":
            multiply_adds.append(
                _layer_multiply_adds(context.module, args, kwargs, output)
            )
        return output

    def forward(variables, images):
        with nn.intercept_methods(count):
            return model.apply(variables, images, train=False)

    images = jax.ShapeDtypeStruct((1, *image_shape), jnp.float32)
    jax.eval_shape(forward, variables, images)
    return None if None in multiply_adds else 2 * sum(filter(None, multiply_adds))


def _layer_multiply_adds(
    layer: nn.Module, args: tuple, kwargs: Mapping[str, Any], output: Any
) -> int | None:
    x: Any = args[0] if args else None
    if isinstance(layer, nn.Dense):
        return output.size * x.shape[-1]
    if isinstance(layer, nn.DenseGeneral):
        axes = (layer.axis,) if isinstance(layer.axis, int) else layer.axis
        return output.size * math.prod(x.shape[axis] for axis in axes)
    if isinstance(layer, nn.Conv):
        depth = x.shape[-1] // layer.feature_group_count
        return output.size * depth * _volume(layer.kernel_size)
    keys = args[1] if len(args) > 1 else kwargs.get("keys")
    y = output[0] if isinstance(output, tuple) else output
    facts, total = getattr(layer, "parameters", {}), 0
    for name, value in layer.variables.get("params", {}).items():
        times = facts[name].times if name in facts else None
        if times is not None:
            total += value.size * times(y, keys)
        elif not isinstance(value, Mapping) and value.ndim > 1:
            return None
    return total


def _volume(sizes: int | Iterable[int]) -> int:
    return sizes if isinstance(sizes, int) else math.prod(sizes)


def program_flops(function: Callable[..., Any], *args: Any) -> int:
    """Count the operations of `function(*args)` as it is traced, of arrays or shapes.

    Matrix products and convolutions: 2 x multiply-adds, products with padding and with
    the zeros of a dilation included. Other arithmetic whose result is floating-point
    (exp and the like too): 1 per element of its largest operand or result; pooling: 1
    per element of every window. Moving, selecting, comparing and converting values,
    integers and random bits: 0. Of a `cond` the largest branch; a `scan` (and a loop
    of fixed length, which is one) as often as it turns.

    Raises `ValueError` for arithmetic in a loop of unknown length and for operations
    without a rule (kernels, decompositions).
    """
    return _jaxpr_flops(jax.make_jaxpr(function)(*args).jaxpr)


# One traced program inside another that runs once.
_CALLS = {
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "composite",
    "remat",
    "remat2",
    "checkpoint",
    "custom_jvp_call",
    "custom_vjp_call",
    "custom_vjp_call_jaxpr",
}
_MOVES = {
    "bitcast_convert_type",
    "broadcast_in_dim",
    "concatenate",
    "conj",
    "convert_element_type",
    "copy",
    "copy_p",
    "device_put",
    "dynamic_slice",
    "dynamic_update_slice",
    "empty",
    "empty2",
    "expand_dims",
    "gather",
    "imag",
    "iota",
    "mesh_cast",
    "name",
    "optimization_barrier",
    "pad",
    "real",
    "reduce_precision",
    "reshape",
    "reshard",
    "rev",
    "scatter",
    "select_n",
    "sharding_constraint",
    "slice",
    "sort",
    "split",
    "squeeze",
    "stack",
    "stop_gradient",
    "tile",
    "top_k",
    "transpose",
    "unstack",
}
_NO_RULE = {
    "cholesky",
    "eig",
    "eigh",
    "fft",
    "ffi_call",
    "geqrf",
    "householder_product",
    "io_callback",
    "lu",
    "pure_callback",
    "ragged_dot_general",
    "schur",
    "svd",
    "triangular_solve",
    "tridiagonal_solve",
}


def _jaxpr_flops(jaxpr: Any) -> int:
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)  # closed or open
    return sum(_equation_flops(equation) for equation in jaxpr.eqns)


def _equation_flops(equation: Any) -> int:
    name, params = equation.primitive.name, equation.params
    if name in _CALLS:
        return _jaxpr_flops(params.get("jaxpr") or params["call_jaxpr"])
    if name == "scan":
        return params["length"] * _jaxpr_flops(params["jaxpr"])
    if name == "cond":
        return max(_jaxpr_flops(branch) for branch in params["branches"])
    if name == "while":
        turn = _jaxpr_flops(params["cond_jaxpr"]) + _jaxpr_flops(params["body_jaxpr"])
        if turn:
            raise ValueError(
                "the operations of a while loop of unknown length cannot be counted"
            )
        return 0
    results = [_shape(v) for v in equation.outvars if _is_floating(v)]
    if not results or name in _MOVES:
        return 0
    operands = [_shape(v) for v in equation.invars]
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        depth = math.prod(operands[0][axis] for axis in contracted)
        return 2 * math.prod(results[0]) * depth
    if name == "conv_general_dilated":
        features = operands[1][params["dimension_numbers"].rhs_spec[0]]
        return 2 * math.prod(results[0]) * (math.prod(operands[1]) // features)
    if name.startswith("reduce_window"):
        return math.prod(results[0]) * math.prod(params["window_dimensions"])
    if name.startswith("scatter"):  # with arithmetic; of operand, indices, updates
        return math.prod(operands[2])
    holds_program = any(
        hasattr(v, "eqns") or hasattr(v, "jaxpr") for v in params.values()
    )
    if name in _NO_RULE or (holds_program and not name.startswith("reduce")):
        raise ValueError(f"there is no rule for the operations of {name}")
    return max(map(math.prod, [*results, *operands]))


def _shape(variable: Any) -> tuple[int, ...]:
    return getattr(variable.aval, "shape", ())


def _is_floating(variable: Any) -> bool:
    dtype = getattr(variable.aval, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.inexact)
