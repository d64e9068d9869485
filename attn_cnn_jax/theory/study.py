"""What makes the heads find the taps, and what does not: one change at a time."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from attn_cnn_jax.theory.fit import Fit, FitOptions, fit
from attn_cnn_jax.theory.problem import Problem


class Change(NamedTuple):
    """A row of the study: its name, and what differs from the recipe.

    `problem` are arguments of the function that makes problems, `options` fields of
    `FitOptions`.
    """

    name: str
    problem: dict[str, Any] = {}
    options: dict[str, Any] = {}


CHANGES = (
    Change("the recipe"),
    Change("another random kernel", {"kernel_seed": 1}),
    Change("a third random kernel", {"kernel_seed": 2}),
    Change("12 heads", {}, {"num_heads": 12}),
    Change("9 heads, one a tap", {}, {"num_heads": 9}),
    Change("9 heads, 8 output channels", {"channels": 8}, {"num_heads": 9}),
    Change("8 output channels", {"channels": 8}),
    Change("1 output channel", {"channels": 1}),
    Change("rate of the values 0.05", {}, {"value_rate": 0.05}),
    Change("rate of the values 0.005", {}, {"value_rate": 0.005}),
    Change("values by least squares", {}, {"solve_values": True}),
    Change("rate of centres and spreads 0.01", {}, {"center_rate": 0.01}),
    Change("centres start near 0 (0.3 pixels)", {}, {"center_std": 0.3}),
    Change("centres start far (2 pixels)", {}, {"center_std": 2.0}),
    Change("wide heads at the start (spread 0.5)", {}, {"spread": 0.5}),
    Change("sharp heads at the start (spread 2)", {}, {"spread": 2.0}),
    Change("spreads annealed from 1 to 4", {}, {"final_spread": 4.0}),
    Change("SGD with momentum, same rates", {}, {"optimizer": "sgd"}),
    Change("whitened training images", {"whiten": True}),
    Change("Sobel", {"kernel": "sobel"}),
    Change("Laplace", {"kernel": "laplace"}),
    Change("blur", {"kernel": "blur"}),
)


def study(
    make_problem: Callable[..., Problem],
    seeds: Sequence[int],
    recipe: FitOptions,
    changes: Sequence[Change] = CHANGES,
) -> Iterator[tuple[str, Fit]]:
    """Return the name of every change and what all starts came to with it."""
    for change in changes:
        options = dataclasses.replace(recipe, **change.options)
        yield change.name, fit(make_problem(**change.problem), seeds, options)


HEADER = (
    "| change | starts with all taps | taps, mean | median error | largest error "
    "| median step |\n|---|---|---|---|---|---|"
)


def row(name: str, result: Fit) -> str:
    """Return a row of the study's table, Markdown under `HEADER`.

    The median step is that of the starts that found all taps: from it on they have
    them.
    """
    errors, taps = result.errors[:, -1], result.covered[:, -1].mean()
    steps = [step for step in result.found_at if step is not None]
    cells = (
        name,
        f"{result.found.sum()} of {len(result.seeds)}",
        f"{taps:.1f} of {result.num_taps}",
        f"{np.median(errors):.1e}",
        f"{errors.max():.1e}",
        f"{np.median(steps):.0f}" if steps else "-",
    )
    return f"| {' | '.join(cells)} |"
