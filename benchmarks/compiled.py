"""Compile training for a GPU that is not at hand, and estimate how long a step takes.

pip install -r benchmarks/requirements-compiled.txt
python -m benchmarks.compiled --target=h200 --configs=quadratic_isotropic,resnet18
python -m benchmarks.compiled --compute_dtypes=bfloat16 --breakdown=12

The program is the whole step of attn_cnn_jax.main: a batch gathered from the images in
the GPU's memory, augmentation, forward, backward, update. Read from what the compiler
made of it: kernels, operations, bytes, temporary memory. Estimated, as
benchmarks/compiled_cost.py says: every time but that of compiling. Without the GPU no
kernel can be tried, so that autotuning is off, products are cuBLAS's and convolutions
cuDNN's, and all are given the same efficiency. What a GPU measures overrules it all.
"""

import json
import pathlib
import time
from typing import Any

import jax
from absl import flags
from ml_collections import ConfigDict

from attn_cnn_jax import command_line, environment
from attn_cnn_jax import config as config_lib
from attn_cnn_jax.errors import UserError
from benchmarks import compiled_cost, compiled_hlo, compiled_program, compiled_summary

_TARGET = flags.DEFINE_enum("target", "h200", list(compiled_cost.GPUS), "The GPU.")
_CONFIGS = flags.DEFINE_list(
    "configs",
    [
        "quadratic_isotropic",
        "quadratic_nonisotropic",
        "learned_wo_content",
        "learned_w_content",
        "resnet18",
    ],
    "Files of configs/ without .py.",
)
_COMPUTE_DTYPES = flags.DEFINE_list(
    "compute_dtypes", ["bfloat16", "float32"], "Each config with each of these."
)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 100, "Images a step.", 1)
_OUTPUT = command_line.define_path("output", None, "File to add a JSON line a row to.")
_BREAKDOWN = flags.DEFINE_integer(
    "breakdown", 0, "Print as many of the most expensive operations of a row.", 0
)


def main() -> None:
    """Print a row for each config and dtype."""
    jax.config.update("jax_platforms", "cpu")  # the compiler for GPUs looks for none
    jax.config.update("jax_enable_compilation_cache", False)  # its time is a result
    rows = [
        (name, _config(name, dtype))
        for name in _CONFIGS.value
        for dtype in _COMPUTE_DTYPES.value
    ]
    gpu = compiled_cost.GPUS[_TARGET.value]
    mesh = compiled_program.target_mesh(_TARGET.value)
    about = environment.describe(mesh)
    print(compiled_summary.heading(), flush=True)
    for name, config in rows:
        program = compiled_program.compile_step(config, mesh)
        kernels = compiled_cost.kernels(compiled_hlo.read(program.hlo))
        row: dict[str, Any] = {
            "target": _TARGET.value,
            "config": name,
            "compute_dtype": config.model.compute_dtype,
            "batch_size": config.batch_size,
            **compiled_summary.summary(
                kernels,
                gpu,
                compute_dtype=config.model.compute_dtype,
                batch_size=config.batch_size,
                num_images=compiled_program.NUM_IMAGES,
            ),
            "mixed_products": program.mixed_products,
            "temporary_gib": program.temporary_bytes / 2**30,
            "compile_seconds": program.compile_seconds,
            "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            **{key: about[key] for key in ("jax", "git_commit")},
        }
        print(compiled_summary.as_line(row), flush=True)
        for line in compiled_summary.breakdown(kernels, gpu, _BREAKDOWN.value):
            print(line)
        if _OUTPUT.value:
            with open(_OUTPUT.value, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def _config(name: str, compute_dtype: str) -> ConfigDict:
    file = pathlib.Path(__file__).parent.parent / "configs" / f"{name}.py"
    if not file.is_file():
        raise UserError(f"there is no configs/{name}.py.")
    config = config_lib.read_file(file)
    config.batch_size = _BATCH_SIZE.value
    config.model.compute_dtype = compute_dtype
    config_lib.check(config)
    return config


if __name__ == "__main__":
    command_line.run(main)
