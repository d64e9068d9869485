"""Attention that finds a convolution by itself, from several random starts.

python -m attn_cnn_jax.theory fit
python -m attn_cnn_jax.theory fit --kernel=sobel --heads=16
python -m attn_cnn_jax.theory fit --study
"""

import dataclasses
import functools

from absl import flags

from attn_cnn_jax import command_line, remote
from attn_cnn_jax.analysis import plots
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.theory import problem, study
from attn_cnn_jax.theory.fit import Fit, FitOptions, fit

_RECIPE = FitOptions()
_KERNEL = flags.DEFINE_enum("kernel", "random", problem.KERNELS, "What to imitate.")
_SIZE = flags.DEFINE_integer("size", 3, "Side of the kernel; odd.", lower_bound=1)
_CHANNELS = flags.DEFINE_integer(
    "channels", problem.CHANNELS, "Output channels of a random kernel.", lower_bound=1
)
_HEADS = flags.DEFINE_integer(
    "heads", None, "Heads of the layer; default (size + 1)^2, more than taps.", 1
)
_DATASET = flags.DEFINE_string(
    "dataset", "digits_8x8", "Images: digits_8x8, digits, cifar10, or a set of TFDS."
)
_DATA_DIR = command_line.define_path(
    "data_dir", None, "Where the dataset was prepared."
)
_WHITEN = flags.DEFINE_bool(
    "whiten", False, "Train on images whose pixels are decorrelated."
)
_SEEDS = flags.DEFINE_integer("seeds", 8, "Number of random starts.", lower_bound=1)
_FIRST_SEED = flags.DEFINE_integer("first_seed", 0, "The first start.", lower_bound=0)
_STEPS = flags.DEFINE_integer(
    "steps",
    _RECIPE.num_steps,
    f"Steps of the optimizer; a multiple of {_RECIPE.record_every}.",
)
_SOLVE_VALUES = flags.DEFINE_bool(
    "solve_values", False, "Take the values from least squares at every step."
)
_OUTPUT = command_line.define_folder("output", "runs/theorem", "Folder of the figure.")
_STUDY = flags.DEFINE_bool(
    "study", False, "Print what helps and what does not: a table of some minutes."
)


def main() -> None:
    """Print what the heads of every start came to, and draw their paths."""
    every = _RECIPE.record_every
    if _STEPS.value < every or _STEPS.value % every:
        raise UserError(f"--steps={_STEPS.value}; take a multiple of {every}.")
    heads = (_SIZE.value + 1) ** 2 if _HEADS.value is None else _HEADS.value
    options = FitOptions(
        num_heads=heads, num_steps=_STEPS.value, solve_values=_SOLVE_VALUES.value
    )
    seeds = range(_FIRST_SEED.value, _FIRST_SEED.value + _SEEDS.value)
    if _STUDY.value:
        if (_KERNEL.value, _SIZE.value) != ("random", 3):
            raise UserError("--study is of its own kernels; drop --kernel and --size.")
        print(study.HEADER, flush=True)
        for name, result in study.study(_problem, seeds, options):
            print(study.row(name, result), flush=True)
        return
    smooth = dataclasses.replace(options, record_every=every // 2)
    result = fit(_problem(), seeds, smooth)
    _print(result)
    _draw(result)


@functools.cache
def _images(whiten: bool):
    return problem.load_images(_DATASET.value, _DATA_DIR.value or "", whiten=whiten)


def _problem(
    *,
    kernel: str | None = None,
    channels: int | None = None,
    kernel_seed: int = 0,
    whiten: bool = False,
) -> problem.Problem:
    """Return the problem that the flags name, but for what is given."""
    kind = kernel or _KERNEL.value
    problem.check_kernel(kind, _SIZE.value)
    train, test = _images(whiten or _WHITEN.value)
    weights = problem.named_kernel(
        kind,
        _SIZE.value,
        train.shape[-1],
        channels or _CHANNELS.value,
        seed=kernel_seed,
    )
    return problem.Problem(weights, train, test)


def _print(result: Fit) -> None:
    print("start  taps covered  all from step  error of the layer")
    rows = zip(
        result.seeds,
        result.covered[:, -1],
        result.found_at,
        result.layer_errors(),
        strict=True,
    )
    for seed, taps, step, error in rows:
        found = "never" if step is None else f"{step}"
        count = f"{taps} of {result.num_taps}"
        print(f"{seed:5}  {count:>12}  {found:>13}  {error:18.1e}")
    print(result.sentence())


def _draw(result: Fit) -> None:
    shape = " x ".join(map(str, result.problem.kernel.shape[:2]))
    channels = " -> ".join(map(str, result.problem.kernel.shape[2:]))
    figure = plots.paths_of_centers(
        result.steps,
        result.centers,
        result.errors,
        result.covered,
        result.problem.tap_norms,
        title=f"{_KERNEL.value} kernel, {shape} taps, channels {channels}, on "
        f"{_DATASET.value}{' (whitened)' * _WHITEN.value}. {result.sentence()}",
        seeds=[f"start {seed}" for seed in result.seeds],
    )
    print(plots.listed(plots.save(figure, remote.local(_OUTPUT.value), "paths")))


if __name__ == "__main__":
    command_line.run(main)
