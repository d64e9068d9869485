"""PyTorch's default initialisers, which the published networks rely on."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Initializer

# U(-1 / sqrt(fan_in), 1 / sqrt(fan_in)): PyTorch's Linear and Conv weights.
torch_kernel = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


def torch_uniform(fan_in: int) -> Initializer:
    """Draw from U(-1 / sqrt(fan_in), 1 / sqrt(fan_in)), in any layout."""

    def init(key: jax.Array, shape, dtype=jnp.float32):
        bound = fan_in**-0.5
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init
