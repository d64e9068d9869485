"""Train a config, resume it, or score it again.

python -m attn_cnn_jax.main --config=configs/learned_wo_content.py
python -m attn_cnn_jax.main --mode=evaluate --workdir=runs/learned_wo_content_seed42
python -m attn_cnn_jax.main --config=configs/laptop.py --init_from=runs/pruned
"""

import contextlib
import json
import os
from collections.abc import Callable

import jax
from absl import flags
from ml_collections import ConfigDict, config_flags

from attn_cnn_jax import (
    checkpoint,
    cluster,
    command_line,
    parallel,
    remote,
    signals,
    train,
)
from attn_cnn_jax import config as config_lib
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.run import Run

_CONFIG = command_line.define_config_flag()
_WORKDIR = command_line.define_folder(
    "workdir",
    None,
    "Folder of the run; default runs/<config>[_<option>][_<field>=<value>]_seed<n>.",
)
_INIT_FROM = command_line.define_folder(
    "init_from", None, "Workdir whose model and last variables a new run starts from."
)
_RESTART = flags.DEFINE_bool(
    "restart",
    False,
    "Begin anew where a run has lost its checkpoints, over its records.",
)
_MODE = flags.DEFINE_enum(
    "mode", "train", ["train", "evaluate"], "Train (or continue), or score again."
)
_CHECKPOINT = flags.DEFINE_string(
    "checkpoint", "last", "For --mode=evaluate: last, best, or a step."
)
_DATA_DIR = command_line.define_path(
    "data_dir", None, "TFDS data_dir; default TFDS_DATA_DIR or ~/tensorflow_datasets."
)
_MULTI_HOST = flags.DEFINE_bool(
    "multi_host", False, "Join the other processes through JAX's distributed runtime."
)
_COORDINATOR = flags.DEFINE_string(
    "coordinator_address", None, "HOST:PORT of process 0, where JAX cannot find it out."
)
_NUM_PROCESSES = flags.DEFINE_integer(
    "num_processes", None, "How many processes, where JAX cannot find it out."
)
_PROCESS_ID = flags.DEFINE_integer(
    "process_id", None, "Which of them this is, where JAX cannot find it out."
)
_HEARTBEAT_TIMEOUT = flags.DEFINE_float(
    "heartbeat_timeout_seconds",
    30.0,
    "Time without a sign of life after which one of several processes counts as gone.",
    lower_bound=1.0,
)

command_line.define_variant_flag()


def main() -> int:
    """Run what the flags ask for; returns the exit status."""
    if _MODE.value == "evaluate":
        return _evaluate()
    if _CONFIG.value is None:
        raise UserError("--config=FILE.py is missing; see the files in configs/.")
    config = _CONFIG.value
    if _data_dir() is not None:
        config.dataset.data_dir = _data_dir()
    init_from = _INIT_FROM.value
    if init_from and not remote.is_remote(init_from):
        init_from = os.path.abspath(init_from)
    workdir = _WORKDIR.value or config_lib.default_workdir(
        config_flags.get_config_filename(flags.FLAGS["config"]),
        config_lib.changes(command_line.config_as_written(), config),
        config.seed,
        init_from,
    )
    if init_from:
        _take_model(config, init_from, workdir)
    config_lib.check(config)
    with _cluster(lambda: _saved(workdir)):
        parallel.set_arithmetic(config)
        if jax.process_index() == 0:
            signals.tell(f"{workdir}: reading {config.dataset.name}")
        try:
            with remote.training(workdir) as folder:
                train.train(config, folder, restart=_RESTART.value)
        except signals.Stopped as stopped:
            if jax.process_index() == 0:
                signals.tell(
                    f"{stopped}, saved; the same command continues from there."
                )
            return 128 + stopped.signal_number
    return 0


def _take_model(config: ConfigDict, init_from: str, workdir: str) -> None:
    """Put the model of the run `init_from` into `config`, under the flags' overrides.

    A run that began there knows its model, should `init_from` be gone by now.
    """
    origin, own = (
        checkpoint.read_config(remote.local(path)) for path in (init_from, workdir)
    )
    if origin is None and own is not None and own.get("init_from") == init_from:
        origin = own
    if origin is None or "model" not in origin:
        raise UserError(f"--init_from: {init_from} is not the workdir of a run.")
    config.init_from = init_from
    with config.ignore_type():
        config.model = origin.model
        overrides = config_flags.get_override_values(flags.FLAGS["config"])
        for field in filter(lambda name: name.startswith("model."), overrides):
            try:
                config.update_from_flattened_dict({field: overrides[field]})
            except (IndexError, KeyError, TypeError) as error:
                raise UserError(
                    f"--config.{field}: the model of {init_from} has no such field; "
                    "leave it out."
                ) from error


def _evaluate() -> int:
    if not _WORKDIR.value:
        raise UserError("--mode=evaluate needs --workdir=RUN.")
    if _INIT_FROM.value:
        raise UserError("--init_from starts a training; leave --mode=evaluate out.")
    if _CONFIG.value is not None:
        raise UserError(
            "--mode=evaluate takes the run's own config; leave --config out."
        )
    workdir, name = _WORKDIR.value, _CHECKPOINT.value
    run = Run(workdir, command_line.checkpoint_named(name), _data_dir())
    config_lib.check(run.config)
    with _cluster(lambda: "the same command begins again"):
        parallel.set_arithmetic(run.config)
        result = run.evaluate()
    if jax.process_index() != 0:
        return 0
    print(json.dumps({"workdir": workdir, "checkpoint": name, **result}))
    print(
        f"test accuracy {result['accuracy']:.4f}, loss {result['loss']:.4f} "
        f"({result['images']:,} images, checkpoint of step {result['step']})"
    )
    return 0


def _data_dir() -> str | None:
    path = _DATA_DIR.value
    if not path or "://" in path:
        return path
    return os.path.abspath(path)  # config.json is read anywhere


def _cluster(outcome: Callable[[], str]) -> contextlib.AbstractContextManager:
    """Join the other processes of the run, if it has several."""
    if not _MULTI_HOST.value:
        return contextlib.nullcontext()
    return cluster.Cluster(_HEARTBEAT_TIMEOUT.value, outcome).join(
        _COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value
    )


def _saved(workdir: str) -> str:
    """Say what is left of a run that ends now."""
    is_remote = remote.is_remote(workdir)
    newest = remote.newest_checkpoint if is_remote else checkpoint.last_resumable
    step = newest(workdir)
    if step is None:
        return f"nothing is saved in {workdir} yet, the same command begins again"
    return f"step {step} is safe in {workdir}, the same command continues from there"


if __name__ == "__main__":
    command_line.run(main)
