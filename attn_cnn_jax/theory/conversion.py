"""A run of a ResNet, converted to attention, as a new run.

print(convert("runs/resnet18_seed42", "runs/resnet18_as_attention"))
"""

import dataclasses
import os
import time

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from attn_cnn_jax import checkpoint as checkpoint_lib
from attn_cnn_jax import config as config_lib
from attn_cnn_jax import models
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.run import Run, refuse_misfits
from attn_cnn_jax.theory import networks
from attn_cnn_jax.theory.lemmas import check_sharpness, exact_sharpness


@dataclasses.dataclass(frozen=True)
class Conversion:
    """A run that was converted; `str` says it in a line."""

    run: str
    target: str
    step: int
    num_layers: int
    num_heads: int
    sharpness: float
    one_hot: bool
    parameters: tuple[int, int]  # before and after

    def __str__(self) -> str:
        before, after = self.parameters
        how = "one-hot" if self.one_hot else "not one-hot"
        return (
            f"{self.run}, step {self.step}: {self.num_layers} convolutions are "
            f"attention layers with {self.num_heads} heads of sharpness "
            f"{self.sharpness:.4g} ({how}) in {self.target}; {before:,} parameters "
            f"became {after:,}"
        )


def convert(
    workdir: str | os.PathLike,
    target: str | os.PathLike,
    *,
    sharpness: float | None = None,
    encoding: str = "quadratic",
    checkpoint: str | int = "last",
) -> Conversion:
    """Write the ResNet of a run, as attention, as the workdir `target` (Theorem 1).

    The new workdir evaluates and analyses as its checkpoint 0, and `main --init_from`
    trains it on. `sharpness` and `encoding` are those of `convolution_as_attention`.
    Raises a `UserError` for another network, and where `target` is a run.
    """
    run = Run(workdir, checkpoint)
    config_lib.check(run.config)
    model = run.config.model
    if model.name not in config_lib.RESNETS:
        raise UserError(
            f"{workdir} is a run of {model.name}; the networks whose convolutions "
            f"become attention are {', '.join(config_lib.RESNETS)}."
        )
    dtype = jnp.promote_types(jnp.float32, model.compute_dtype)
    exact = exact_sharpness(dtype)
    sharpness = exact if sharpness is None else sharpness
    try:
        check_sharpness(sharpness, dtype)
    except ValueError as error:
        raise UserError(f"--{error}.") from error
    config = run.config.copy_and_resolve_references()
    config.model, variables = networks.as_attention(
        model, run.variables, sharpness=sharpness, encoding=encoding
    )
    variables = jax.device_get(variables)
    refuse_misfits(config, variables, "the converted network does not fit its config")
    checkpoint_lib.write_variables(target, config, variables)
    kernels = networks.kernels(run.variables)
    trees = run.variables, variables
    before, after = map(models.count_parameters, trees)
    return Conversion(
        run=run.name,
        target=str(target),
        step=run.step,
        num_layers=len(kernels),
        num_heads=sum(kernel.shape[0] * kernel.shape[1] for kernel in kernels),
        sharpness=sharpness,
        one_hot=sharpness >= exact,
        parameters=(before, after),
    )


@dataclasses.dataclass(frozen=True)
class Agreement:
    """Two runs on the same test images; `str` says it in a line."""

    num_images: int
    same: int  # images of the same predicted class
    largest_difference: float  # of any logit
    seconds: tuple[float, float]  # of the forward passes, without compilation

    def __str__(self) -> str:
        before, after = self.seconds
        return (
            f"the same class on {self.same:,} of {self.num_images:,} test images, "
            f"logits within {self.largest_difference:.2g}; {before:.1f} s as "
            f"convolutions, {after:.1f} s as attention ({after / before:.1f} x)"
        )


def agreement(
    before: Run, after: Run, num_images: int | None = None, batch_size: int = 100
) -> Agreement:
    """Compare the predictions of two runs on the first test images, or on all."""
    total = len(before.dataset.test)
    num_images = total if num_images is None else min(num_images, total)
    images = np.asarray(before.dataset.test.images[:num_images])
    (a, first), (b, second) = (
        _logits(run, images, batch_size) for run in (before, after)
    )
    return Agreement(
        num_images=num_images,
        same=int((a.argmax(1) == b.argmax(1)).sum()),
        largest_difference=float(np.abs(a - b).max()),
        seconds=(first, second),
    )


def _logits(
    run: Run, images: np.ndarray, batch_size: int
) -> tuple[Float[np.ndarray, "B num_classes"], float]:
    """Return the logits of the images, and the seconds that they took."""
    forward, variables = jax.jit(run.forward), jax.device_put(run.variables)
    batches = []
    for start in range(0, len(images), batch_size):
        rows = np.arange(start, start + batch_size) % len(images)  # fills up the last
        batches.append((images[rows], rows.astype(np.int32)))
    jax.block_until_ready(forward(variables, *batches[0]))
    start = time.perf_counter()
    logits = [np.asarray(forward(variables, *batch)) for batch in batches]
    return np.concatenate(logits)[: len(images)], time.perf_counter() - start
