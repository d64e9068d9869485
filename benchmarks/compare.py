"""Set our training step beside PyTorch's, in turns, or beside itself at other sizes.

python -m benchmarks.compare --configs=quadratic_isotropic,resnet18 --batch_sizes=20
python -m benchmarks.compare --scaling
"""

import json
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

from absl import flags
from ml_collections import ConfigDict

from attn_cnn_jax import command_line, data
from attn_cnn_jax import config as config_lib
from attn_cnn_jax.errors import UserError
from benchmarks import report, scaling
from benchmarks.turns import take_turns, working
from benchmarks.variants import OURS, VARIANTS, default_variants, has_content

_CONFIGS = flags.DEFINE_list(
    "configs",
    ["quadratic_isotropic", "learned_wo_content", "learned_w_content", "resnet18"]
    + ["san_pairwise", "vit"],
    "Names of files in configs/, with an option after a colon: NAME:digits.",
)
_BATCH_SIZES = flags.DEFINE_list("batch_sizes", ["20"], "Images a step: 20,100.")
_VARIANTS = flags.DEFINE_list(
    "variants", [], f"Of {', '.join(VARIANTS)}; default: those that fit the device."
)
_STEPS = flags.DEFINE_integer("steps", 20, "Timed steps of each variant.", 3)
_SECONDS = flags.DEFINE_float(
    "seconds", 120.0, "No further round of a model and batch after these, but for 3.", 0
)
_OUTPUT = command_line.define_path(
    "output", None, "File that keeps a line of JSON a row."
)
_THREADS = flags.DEFINE_integer(
    "threads", 0, "CPU cores that each side may use; 0: all that there are.", 0
)
_SCALING = flags.DEFINE_bool(
    "scaling", False, "Our step at other batches, grids, heads, widths and devices."
)
_ROOT = pathlib.Path(__file__).parent.parent
_FEWEST_STEPS = 3


def main() -> None:
    """Measure what the flags ask for and print it."""
    sizes = _batch_sizes()
    for name in _VARIANTS.value:
        if name not in VARIANTS:
            raise UserError(
                f"--variants: {name!r} is not one of {', '.join(VARIANTS)}."
            )
    configs = {name: _config(name) for name in _CONFIGS.value}
    platform = _platform()
    if _SCALING.value:
        return _scaling(configs, sizes, platform)
    records: list[dict[str, Any]] = []
    busy = os.getloadavg()[0]
    for name, config in configs.items():
        for size in sizes:
            spec = _spec(config, size, platform)
            print(f"{name}, batch {size}", file=sys.stderr, flush=True)
            records += _compare(name, spec)
    print(report.as_text(records))
    print(f"load average of the minute before: {busy:.2f}, of other work")


def _compare(name: str, spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the records of a model at a batch size, and keep them."""
    variants = _VARIANTS.value or default_variants(
        spec["platform"],
        has_content=has_content(spec["config"]["model"]),
        native_bfloat16=_native_bfloat16(),
    )
    flops = _training_flops(spec)
    with working([{**spec, "variant": variant} for variant in variants]) as workers:
        take_turns(workers, _STEPS.value, _SECONDS.value, _FEWEST_STEPS)
        records = [
            report.record(name, spec["batch_size"], worker, flops) for worker in workers
        ]
    report.compare_to_ours(records)
    _keep(records)
    return records


def _scaling(
    configs: dict[str, ConfigDict], sizes: tuple[int, ...], platform: str
) -> None:
    """Print a table for each config."""
    chosen = [name for name in _VARIANTS.value if VARIANTS[name].side == OURS]
    variant = chosen[0] if chosen else "ours_float32"
    for name, config in configs.items():
        spec = _spec(config, sizes[0], platform) | {"variant": variant}
        records = scaling.measure(name, spec, sizes, _STEPS.value, _SECONDS.value)
        _keep(records)
        print(scaling.as_text(records), end="\n\n")


def _keep(records: list[dict[str, Any]]) -> None:
    if _OUTPUT.value:
        path = pathlib.Path(_OUTPUT.value)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(each) + "\n" for each in records)


def _batch_sizes() -> tuple[int, ...]:
    if not _BATCH_SIZES.value or not all(
        re.fullmatch("0*[1-9][0-9]{0,8}", size) for size in _BATCH_SIZES.value
    ):
        raise UserError(
            f"--batch_sizes={','.join(_BATCH_SIZES.value)} is no list of whole numbers "
            "above 0, like 20,100."
        )
    return tuple(map(int, _BATCH_SIZES.value))


def _config(name: str) -> ConfigDict:
    """Return the config of NAME or NAME:options."""
    stem, _, options = name.partition(":")
    path = _ROOT / "configs" / f"{stem}.py"
    if not re.fullmatch(r"\w+", stem) or not path.is_file():
        known = sorted(path.stem for path in (_ROOT / "configs").glob("*.py"))
        raise UserError(f"--configs: {stem!r} is not one of {', '.join(known)}.")
    config = config_lib.read_file(path, options)
    config_lib.check(config)
    return config


def _spec(config: ConfigDict, batch_size: int, platform: str) -> dict[str, Any]:
    """Return what every worker is told, but for its variant."""
    entry = data.DATASETS[config.dataset.name]
    cpus = sorted(os.sched_getaffinity(0))
    if _THREADS.value > len(cpus):
        raise UserError(f"--threads={_THREADS.value} is more than {len(cpus)} cores.")
    return {
        "config": config.to_dict(),
        "batch_size": batch_size,
        "image_shape": entry.image_shape,
        "num_classes": entry.num_classes,
        "platform": platform,
        "cpus": cpus[: _THREADS.value] if _THREADS.value else [],
    }


def _platform() -> str:
    """Return "cpu" or "gpu", as JAX finds it, without holding the device here."""
    code = "import jax; print(jax.default_backend())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return "gpu" if found.stdout.strip() == "gpu" else "cpu"


def _native_bfloat16() -> bool:
    """Tell if this processor multiplies bfloat16, where the system is Linux."""
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return "amx_bf16" in text or "avx512_bf16" in text


def _training_flops(spec: dict[str, Any]) -> int | None:
    """Return the operations of a step as published; None where they are not known."""
    try:
        from benchmarks.torch_step import training_flops

        return training_flops(
            spec["config"]["model"],
            spec["num_classes"],
            spec["image_shape"],
            spec["batch_size"],
        )
    except (ImportError, ValueError):
        return None


if __name__ == "__main__":
    command_line.run(main)
