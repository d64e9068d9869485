"""Rules that say which tensor of a published code is which array of ours.

The structure comes from our variables: one rule matches each leaf and gives its name
there and its layout, so that no shape is written down a second time.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from flax import traverse_util

from attn_cnn_jax.errors import UserError


class Layout(NamedTuple):
    """Two functions: our array as a PyTorch tensor, and a tensor as our array."""

    to_torch: Callable[[Any], Any]
    from_torch: Callable[[Any, tuple[int, ...]], Any]


# Tensors that are alike, and biases that PyTorch keeps flat (ours: [N, D]).
SAME = Layout(lambda a: a, lambda t, shape: t)
FLAT = Layout(lambda a: a.reshape(-1), lambda t, shape: t.reshape(shape))
# PyTorch's Linear is [out, in]; ours is [in, *out], or [N, in, out] for all heads.
LINEAR = Layout(
    lambda a: a.reshape(a.shape[0], -1).T, lambda t, shape: t.T.reshape(shape)
)
HEADS = Layout(
    lambda a: a.reshape(-1, a.shape[-1]).T, lambda t, shape: t.T.reshape(shape)
)
CONV = Layout(
    lambda a: a.transpose(3, 2, 0, 1), lambda t, shape: t.transpose(2, 3, 1, 0)
)

# A 1x1 convolution [out, in, 1, 1] is one of our linear maps [in, out].
POINTWISE = Layout(lambda a: a.T[:, :, None, None], lambda t, shape: t[:, :, 0, 0].T)
# A Linear that projects to all heads at once is [N * out, in]; ours is [N, in, out].
TO_HEADS = Layout(
    lambda a: a.transpose(0, 2, 1).reshape(-1, a.shape[1]),
    lambda t, shape: t.reshape(shape[0], shape[2], shape[1]).transpose(0, 2, 1),
)


def patch_layout(patch_size: int) -> Layout:
    """Return the layout of a Linear [out, in] that reads a patch.

    The patch is (channel, row, column) there; ours is [in, out], the patch (row,
    column, channel).
    """
    p = patch_size

    def to_torch(a: Any) -> Any:
        a = a.reshape(p, p, -1, a.shape[-1]).transpose(3, 2, 0, 1)
        return a.reshape(a.shape[0], -1)

    def from_torch(t: Any, shape: tuple[int, ...]) -> Any:
        t = t.reshape(t.shape[0], -1, p, p).transpose(2, 3, 1, 0)
        return t.reshape(shape)

    return Layout(to_torch, from_torch)


# A rule is our path (a regular expression, without the collection), their name (with
# the groups of that expression) and the layout.
Rule = tuple[str, str, Layout]


def dense(ours: str, theirs: str, layout: Layout = LINEAR) -> tuple[Rule, ...]:
    """Return the rules of a linear map, with its bias where it has one."""
    return (
        (f"{ours}/kernel", f"{theirs}.weight", layout),
        (f"{ours}/bias", f"{theirs}.bias", FLAT),
    )


def norm(ours: str, theirs: str) -> tuple[Rule, ...]:
    """Return the rules of a LayerNorm, or a BatchNorm with its running statistics."""
    return (
        (f"{ours}/scale", f"{theirs}.weight", SAME),
        (f"{ours}/bias", f"{theirs}.bias", SAME),
        (f"{ours}/mean", f"{theirs}.running_mean", SAME),
        (f"{ours}/var", f"{theirs}.running_var", SAME),
    )


def convolution(ours: str, conv: str, bn: str) -> tuple[Rule, ...]:
    """Return the rules of a convolution without bias and of the norm behind it."""
    return (f"{ours}conv/kernel", f"{conv}.weight", CONV), *norm(f"{ours}norm", bn)


class Tensor(NamedTuple):
    """A leaf: our path with its collection, our array or shape, their name, layout."""

    path: str
    ours: Any
    name: str
    layout: Layout


def mapping(
    variables: Mapping[str, Any], rules: Iterable[Rule], origin: str
) -> Iterator[Tensor]:
    """Yield every leaf of `variables` (arrays or shapes), its name there, its layout.

    Raises `UserError` for a leaf without a counterpart in `origin`.
    """
    rules = tuple(rules)
    for path, leaf in traverse_util.flatten_dict(variables, sep="/").items():
        for ours, theirs, layout in rules:
            match = re.fullmatch(f"(?:params|batch_stats)/{ours}", path)
            if match:
                yield Tensor(path, leaf, match.expand(theirs), layout)
                break
        else:
            raise UserError(f"{path} has no counterpart in {origin}.")
