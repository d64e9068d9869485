"""BatchNorm with PyTorch's running variance, and an accurate LayerNorm."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float


class BatchNorm(nn.Module):
    """Normalise each channel over all other axes, with scale and bias.

    In training by the statistics of the global batch, which also move the running ones
    by a tenth; the running variance is the unbiased one (n / (n - 1)), as in PyTorch.
    """

    param_dtype: Any
    momentum: float = 0.9
    epsilon: float = 1e-5

    @nn.compact
    def __call__(
        self, x: Float[Array, "*batch C"], *, train: bool
    ) -> Float[Array, "*batch C"]:
        """Normalise `x` and keep its dtype."""
        shape, dtype = x.shape[-1:], self.param_dtype
        scale = self.param("scale", nn.initializers.ones, shape, dtype)
        bias = self.param("bias", nn.initializers.zeros, shape, dtype)
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, shape, dtype)
        running_var = self.variable("batch_stats", "var", jnp.ones, shape, dtype)
        y = x.astype(dtype)
        axes = tuple(range(x.ndim - 1))
        if train:
            mean, var = y.mean(axes), y.var(axes)
            if not self.is_initializing():
                n = y.size // y.shape[-1]
                self._move(running_mean, mean)
                self._move(running_var, var * (n / max(n - 1, 1)))
        else:
            mean, var = running_mean.value, running_var.value
        scale = scale * jax.lax.rsqrt(var + self.epsilon)
        mean, scale, bias = (jnp.expand_dims(a, axes) for a in (mean, scale, bias))
        y = (y - mean) * scale + bias
        return y.astype(x.dtype)

    def _move(self, running: nn.Variable, value: Array) -> None:
        running.value = self.momentum * running.value + (1 - self.momentum) * value


def make_layer_norm(epsilon: float, param_dtype: Any, name: str) -> nn.LayerNorm:
    """Return a LayerNorm over the last axis, in `param_dtype`.

    The fast variance E[x^2] - E[x]^2 is not accurate to the original's epsilon, 1e-12.
    """
    return nn.LayerNorm(
        epsilon=epsilon,
        use_fast_variance=False,
        dtype=param_dtype,
        param_dtype=param_dtype,
        name=name,
    )


def layer_norm(x: Array, epsilon: float, param_dtype: Any, name: str) -> Array:
    """Apply `make_layer_norm` inside a module and keep the dtype of `x`."""
    return make_layer_norm(epsilon, param_dtype, name)(x).astype(x.dtype)
