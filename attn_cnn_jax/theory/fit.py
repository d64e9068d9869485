"""A quadratic attention layer that is trained to imitate a convolution.

Theorem 1 says where the heads have to look: one at every tap of the kernel. Nothing
here tells them; they start at random offsets and follow the gradient.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from attn_cnn_jax.covered_offsets import COVERING_MASS
from attn_cnn_jax.models.attention import QuadraticAttention
from attn_cnn_jax.models.scores import isotropic_axis_scores
from attn_cnn_jax.theory.problem import Problem, convolve

Params = Mapping[str, Array]  # centers [N, 2], spreads [N], values [N, C, E]

_RIDGE = 1e-6  # of the mean energy of the heads, in the least squares
_SMALL = 1e-3  # an error with which the sentence calls it imitated
_OPTIMIZERS = {"adam": optax.adam, "sgd": partial(optax.sgd, momentum=0.9)}


@dataclasses.dataclass(frozen=True)
class FitOptions:
    """How the layer starts and how it is trained; the defaults are what succeeds.

    Centres start as normal numbers of deviation `center_std` (pixels), spreads around
    `spread` (1 / pixels). Spreads are learned, unless `final_spread` is above 0: then
    those of all heads grow to it, by the same factor at every step. `solve_values`
    takes the values, in which the layer is linear, from the least squares of each
    batch; else they are trained like the centres. `center_rate` is the learning rate of
    centres and spreads.
    """

    num_heads: int = 16
    num_steps: int = 400
    record_every: int = 10
    batch_size: int = 64
    optimizer: str = "adam"
    center_rate: float = 0.05
    value_rate: float = 0.02
    center_std: float = 1.0
    spread: float = 1.0
    final_spread: float = 0.0
    solve_values: bool = False


@dataclasses.dataclass(frozen=True)
class Fit:
    """What S starts came to, at R recorded steps, the start itself the first of them.

    `errors` are the energy of the residual over that of the convolution, on the test
    images; `covered` counts the taps with weights that are not 0 to which a head gives
    a mean attention of `COVERING_MASS` or more, over the queries that see the kernel
    whole. `values` are those at the end.
    """

    problem: Problem
    seeds: tuple[int, ...]
    steps: Int[np.ndarray, "R"]
    centers: Float[np.ndarray, "S R N 2"]
    spreads: Float[np.ndarray, "S R N"]
    values: Float[np.ndarray, "S N C E"]
    errors: Float[np.ndarray, "S R"]
    covered: Int[np.ndarray, "S R"]

    @property
    def num_taps(self) -> int:
        """The number of taps with weights that are not 0."""
        return int((self.problem.tap_norms > 0).sum())

    @property
    def found(self) -> Bool[np.ndarray, "S"]:
        """Tell of every start if all taps are covered at the end."""
        return self.covered[:, -1] == self.num_taps

    @property
    def found_at(self) -> list[int | None]:
        """The recorded step of every start from which on all taps are covered."""
        complete = self.covered == self.num_taps
        last_without = [np.flatnonzero(~row)[-1:] for row in complete]
        after = [int(index[0]) + 1 if len(index) else 0 for index in last_without]
        steps = [*self.steps.tolist(), None]
        return [steps[index] for index in after]

    def layer_errors(self) -> Float[np.ndarray, "S"]:
        """Return the final errors, computed by the layer `QuadraticAttention` itself.

        Its values map a width to itself, so that images and kernel are as wide as the
        larger of C and E; the channels beyond are 0.
        """
        test, kernel = self.problem.test, self.problem.kernel
        width = max(kernel.shape[2:])
        num_heads, in_channels, out_channels = self.values.shape[1:]
        layer = QuadraticAttention(
            num_heads, 0.0, jnp.float32, isotropic=True, center_std=1.0, spread_std=0.0
        )
        x = np.pad(test, ((0, 0),) * 3 + ((0, width - in_channels),))
        channels = (0, width - in_channels), (0, width - out_channels)
        params = {
            "centers": self.centers[:, -1],
            "spreads": self.spreads[:, -1],
            "value_kernel": np.pad(self.values, ((0, 0), (0, 0), *channels)),
            "value_bias": np.zeros((len(self.values), width), np.float32),
        }

        def error(params: Params, x: Array, y: Array) -> Array:
            output, _ = layer.apply({"params": params}, x, train=False)
            return _relative(output[..., :out_channels], y)

        y = convolve(test, kernel)
        of_starts = jax.jit(lambda p, x, y: jax.lax.map(lambda p: error(p, x, y), p))
        return np.asarray(of_starts(params, jnp.asarray(x), y))

    def sentence(self) -> str:
        """Return in words what came out."""
        starts, size = len(self.seeds), len(self.problem.kernel)
        heads = self.centers.shape[2]
        which = f"all {self.num_taps} taps of the {size} x {size} kernel"
        if self.num_taps < size**2:
            which = f"{which} that are not 0"
        text = (
            f"In {self.found.sum()} of {starts} starts the {heads} heads cover {which}"
        )
        if self.found.any():
            latest = max(step for step in self.found_at if step is not None)
            text = f"{text}, from step {latest} on at the latest"
        if not self.found.all():
            mean = self.covered[:, -1].mean()
            text = f"{text}; the mean over all starts is {mean:.1f} taps"
        error = float(np.median(self.errors[:, -1]))
        text = f"{text}. The median error after {self.steps[-1]} steps is {error:.1e}."
        if not self.found.any() and error < _SMALL:
            text += " They imitate the kernel without a head at every tap."
        return text


def fit(problem: Problem, seeds: Sequence[int], options: FitOptions) -> Fit:
    """Train a layer from every seed's start to compute the convolution of `problem`.

    The loss is the relative error of a batch of training images, all pixels of which
    count: the convolution repeats the border outside, as a sharp head does.
    """
    if options.num_steps % options.record_every:
        raise ValueError("num_steps has to be a multiple of record_every")
    rngs = jax.vmap(jax.random.key)(np.asarray(seeds, np.uint32))
    images = [
        (x, np.asarray(convolve(x, problem.kernel)))
        for x in (problem.train, problem.test)
    ]
    train = jax.jit(jax.vmap(partial(_train, options), in_axes=(None, None, None, 0)))
    taps = problem.tap_norms > 0
    path, errors, covered = jax.device_get(train(taps, *images, rngs))
    return Fit(
        problem=problem,
        seeds=tuple(seeds),
        steps=np.arange(0, options.num_steps + 1, options.record_every),
        centers=path["centers"],
        spreads=np.abs(path["spreads"]),
        values=path["values"][:, -1],
        errors=errors,
        covered=covered,
    )


def head_means(
    centers: Float[Array, "N 2"], spreads: Float[Array, "N"], x: Float[Array, "B H W C"]
) -> Float[Array, "B H W N C"]:
    """Return the mean of the pixels that every head attends to, for every query."""
    scores = isotropic_axis_scores(centers, spreads, (x.shape[1], x.shape[2]))
    rows, columns = map(jax.nn.softmax, scores)
    lines = jnp.einsum("njl,bklc->bkjnc", columns, x)
    return jnp.einsum("nik,bkjnc->bijnc", rows, lines)


def tap_masses(
    centers: Float[Array, "N 2"],
    spreads: Float[Array, "N"],
    size: int,
    grid: tuple[int, int],
) -> Float[Array, "N K K"]:
    """Return the mean attention of every head to the taps of a `size` x `size` kernel.

    The mean is over the queries of the grid (H, W) whose taps all lie inside.
    """
    half = size // 2

    def mean(scores: Array) -> Array:
        queries = jnp.arange(half, scores.shape[1] - half)[:, None]
        keys = queries + jnp.arange(-half, half + 1)[None]
        return jax.nn.softmax(scores)[:, queries, keys].mean(axis=1)

    rows, columns = map(mean, isotropic_axis_scores(centers, spreads, grid))
    return rows[:, :, None] * columns[:, None, :]


def least_squares(
    means: Float[Array, "B H W N C"], y: Float[Array, "B H W E"]
) -> Float[Array, "N C E"]:
    """Return the values with which the heads are nearest to `y`."""
    heads = means.shape[-2:]
    a = means.reshape(-1, heads[0] * heads[1])
    gram = a.T @ a
    gram += _RIDGE * jnp.trace(gram) / len(gram) * jnp.eye(len(gram))
    values = jax.scipy.linalg.solve(gram, a.T @ y.reshape(len(a), -1), assume_a="pos")
    return values.reshape(*heads, -1)


def _relative(output: Array, y: Array) -> Array:
    return jnp.square(output - y).sum() / jnp.square(y).sum()


def _start(options: FitOptions, x: Array, y: Array, rng: Array) -> dict[str, Array]:
    of_centers, of_spreads, of_values = jax.random.split(rng, 3)
    heads = options.num_heads
    shape = heads, x.shape[-1], y.shape[-1]
    noise = 0.01 * jax.random.normal(of_spreads, (heads,))  # as in the paper's networks
    params = {
        "centers": options.center_std * jax.random.normal(of_centers, (heads, 2)),
        "spreads": options.spread * (1 + noise),
        "values": jax.random.uniform(of_values, shape, minval=-1) / heads**0.5,
    }
    if options.solve_values:
        first = slice(options.batch_size)
        means = head_means(params["centers"], params["spreads"], x[first])
        params["values"] = least_squares(means, y[first])
    return params


def _train(
    options: FitOptions,
    taps: Bool[Array, "K K"],
    train: tuple[Array, Array],
    test: tuple[Array, Array],
    rng: Array,
) -> Any:
    """Return parameters, errors and numbers of covered taps at the recorded steps."""
    x, y = train
    adapt = _OPTIMIZERS[options.optimizer]
    optimizer = optax.multi_transform(
        {"place": adapt(options.center_rate), "value": adapt(options.value_rate)},
        {"centers": "place", "spreads": "place", "values": "value"},
    )

    def loss(params: Params, x: Array, y: Array) -> tuple[Array, Array]:
        means, values = head_means(params["centers"], params["spreads"], x), None
        if options.solve_values:  # whose gradient is 0 at the least squares
            values = jax.lax.stop_gradient(least_squares(means, y))
        values = params["values"] if values is None else values
        return _relative(jnp.einsum("bijnc,nce->bije", means, values), y), values

    def step(state: tuple, number: Array) -> tuple[tuple, None]:
        params, memory = state
        order = jax.random.fold_in(rng, number)
        rows = jax.random.randint(order, (options.batch_size,), 0, len(x))
        grads, values = jax.grad(loss, has_aux=True)(params, x[rows], y[rows])
        updates, memory = optimizer.update(grads, memory, params)
        new: Any = optax.apply_updates(params, updates)
        if options.solve_values:
            new |= {"values": values}
        if options.final_spread:
            growth = options.final_spread / options.spread
            spread = options.spread * growth ** ((number + 1) / options.num_steps)
            new |= {"spreads": jnp.full_like(new["spreads"], spread)}
        return (new, memory), None

    def record(params: Any) -> tuple[Any, Array, Array]:
        centers, spreads = params["centers"], params["spreads"]
        means = head_means(centers, spreads, test[0])
        output = jnp.einsum("bijnc,nce->bije", means, params["values"])
        masses = tap_masses(centers, spreads, len(taps), (x.shape[1], x.shape[2]))
        covered = (masses >= COVERING_MASS).any(axis=0) & taps
        return params, _relative(output, test[1]), covered.sum()

    def block(state: tuple, first: Array) -> tuple[tuple, Any]:
        numbers = first + jnp.arange(options.record_every)
        state, _ = jax.lax.scan(step, state, numbers)
        return state, record(state[0])

    params = _start(options, x, y, rng)
    firsts = jnp.arange(0, options.num_steps, options.record_every)
    _, after = jax.lax.scan(block, (params, optimizer.init(params)), firsts)
    return jax.tree.map(
        lambda start, rest: jnp.concatenate([start[None], rest]), record(params), after
    )
