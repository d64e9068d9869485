"""Print and keep the speed, memory and FLOPs of configs.

python -m attn_cnn_jax.bench --config=configs/quadratic_isotropic.py
python -m attn_cnn_jax.bench --configs='configs/learned_*.py' --batch_sizes=1,100
"""

import glob
import json
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

from attn_cnn_jax import bench, checkpoint, command_line, parallel, remote
from attn_cnn_jax import config as config_lib
from attn_cnn_jax.bench import aggregation, table, timing
from attn_cnn_jax.errors import UserError

_CONFIG = command_line.define_config_flag()
_CONFIGS = flags.DEFINE_multi_string(
    "configs", [], "Config files to set side by side; FILE.py:option, and * in FILE."
)
_WORKDIR = command_line.define_folder(
    "workdir", None, "Run whose config is measured and whose bench.jsonl keeps it."
)
_BATCH_SIZES = flags.DEFINE_list(
    "batch_sizes", [], "Images a step, 20,100 for two; default: the config's."
)
_STEPS = flags.DEFINE_integer(
    "steps", 20, "Timed steps of each kind and batch size.", timing.FEWEST_STEPS
)
_SECONDS = flags.DEFINE_float(
    "seconds", 60.0, f"No further step after these, but for {timing.FEWEST_STEPS}.", 0
)
_LATENCY_CALLS = flags.DEFINE_integer("latency_calls", 300, "Timed calls.", 1)
_WARMUP_CALLS = flags.DEFINE_integer("warmup_calls", 10, "Calls before them.", 1)
_LATENCY = flags.DEFINE_bool("latency", True, "Measure latency at batch 1.")
_TRAIN = flags.DEFINE_bool("train", True, "Measure training.")
_JSON = flags.DEFINE_bool("json", False, "Print JSON lines instead of a table.")
_AGGREGATION = flags.DEFINE_bool(
    "aggregation", False, "Compare SAN's aggregation with its copied-out form instead."
)

# What the process of each of --configs is told as well.
_SHARED = (
    "batch_sizes",
    "steps",
    "seconds",
    "latency_calls",
    "warmup_calls",
    "latency",
    "train",
    "variant",
)

command_line.define_variant_flag()


def main() -> int:
    """Measure what the flags ask for; returns the exit status."""
    if _AGGREGATION.value:
        return _aggregation()
    if _CONFIGS.value:
        if _CONFIG.value is not None or _WORKDIR.value:
            raise UserError("--configs goes with neither --config nor --workdir.")
        return _side_by_side(_matching(_CONFIGS.value))
    name, config, overrides = _named_config()
    config_lib.check(config)
    parallel.set_arithmetic(config)
    record = {
        "config": name,
        "overrides": overrides,
        **bench.measure(config, _plan()),
    }
    if _WORKDIR.value:
        _keep(record, pathlib.Path(remote.local(_WORKDIR.value)))
    print(json.dumps(record) if _JSON.value else table.as_text([record]))
    return 0


def _aggregation() -> int:
    sizes = _batch_sizes() or (64,)
    for size in sizes:
        record = aggregation.compare(
            batch_size=size, steps=_STEPS.value, seconds=_SECONDS.value
        )
        print(json.dumps(record) if _JSON.value else aggregation.as_text(record))
    return 0


def _named_config() -> tuple[str, ConfigDict, dict[str, Any]]:
    """Return a config's name (file and options, or run), itself, and its overrides."""
    workdir = _WORKDIR.value and remote.local(_WORKDIR.value)
    own = checkpoint.read_config(workdir) if workdir else None
    if _CONFIG.value is not None:
        if own is not None and own.get("model") != _CONFIG.value.model:
            raise UserError(
                f"{workdir} holds a run of another model; leave --config out to "
                "measure that one, or name another --workdir."
            )
        flag = flags.FLAGS["config"]
        path = config_flags.get_config_filename(flag)
        file, colon, options = path.partition(":")
        name = pathlib.Path(file).stem + colon + options
        return name, _CONFIG.value, dict(config_flags.get_override_values(flag))
    if own is None:
        where = f"{workdir} holds no run; " if workdir else ""
        raise UserError(f"{where}name what to measure: --config=FILE.py or --configs.")
    return pathlib.Path(workdir or "").resolve().name, own, {}


def _batch_sizes() -> tuple[int, ...]:
    sizes = [size.strip() for size in _BATCH_SIZES.value]
    if not all(re.fullmatch("0*[1-9][0-9]{0,8}", size) for size in sizes):
        raise UserError(
            f"--batch_sizes={','.join(_BATCH_SIZES.value)} is no list of whole numbers "
            "above 0, like 20,100."
        )
    return tuple(map(int, sizes))


def _plan() -> bench.Plan:
    return bench.Plan(
        batch_sizes=_batch_sizes(),
        steps=_STEPS.value,
        seconds=_SECONDS.value,
        latency_calls=_LATENCY_CALLS.value if _LATENCY.value else 0,
        warmup_calls=_WARMUP_CALLS.value,
        train=_TRAIN.value,
    )


def _matching(patterns: list[str]) -> list[str]:
    """Return FILE.py[:options] of every file that a pattern names, in its order."""
    found = []
    for pattern in patterns:
        file, colon, options = pattern.partition(":")
        paths = sorted(glob.glob(os.path.expanduser(file)))
        if not paths:
            raise UserError(f"there is no config file {file}.")
        found.extend(path + colon + options for path in paths)
    return list(dict.fromkeys(found))


def _side_by_side(configs: list[str]) -> int:
    """Measure each in a process of its own, so that they share no memory.

    One that fails costs its own line alone, and the exit status.
    """
    _batch_sizes()  # refused here, once
    shared = [a for f in _SHARED for a in flags.FLAGS[f].serialize().split("\n")]
    records, failed = [], False
    for i, config in enumerate(configs):
        print(f"{i + 1} of {len(configs)}: {config}", file=sys.stderr, flush=True)
        result = subprocess.run(
            [sys.executable, "-m", "attn_cnn_jax.bench", f"--config={config}"]
            + ["--json", *filter(None, shared)],
            stdout=subprocess.PIPE,
            text=True,
        )
        if result.returncode:
            print(f"error: {config} was not measured", file=sys.stderr)
            failed = True
            continue
        records.append(json.loads(result.stdout))
        if _JSON.value:
            print(result.stdout, end="", flush=True)
    if records and not _JSON.value:
        print(table.as_text(records))
    return 2 if failed else 0


def _keep(record: dict[str, Any], workdir: pathlib.Path) -> None:
    workdir.mkdir(parents=True, exist_ok=True)
    checkpoint.refuse_links(workdir)
    with (workdir / "bench.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    command_line.run(main)
