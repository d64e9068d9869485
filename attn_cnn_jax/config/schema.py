"""The one schema of a run, whose fields a row of a table sets."""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from attn_cnn_jax.data import DATASETS
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.optim import OPTIMIZERS


def _dataset(name: str) -> dict[str, Any]:
    """Return the fields of `config.dataset` that choose a dataset of the table."""
    entry = DATASETS[name]
    return {"name": name, "crop_padding": entry.crop_padding, "flip": entry.flip}


def base_config() -> ConfigDict:
    """Training as published for the attention networks of Table 1; no model yet.

    A row's file sets `model` to one of the blocks below and changes what differs.
    Lengths are in epochs, steps or images: the unit is in the name. `MEANINGS` says
    what the fields mean.
    """
    return ConfigDict(
        {
            "seed": 42,
            "model": {},
            "init_from": "",
            "dataset": {
                **_dataset("cifar10"),
                "data_dir": "",
                "validation_fraction": 0.0,
                "placement": "auto",
            },
            "batch_size": 100,
            "micro_batch_size": 0,
            "num_epochs": 300,
            "label_smoothing": 0.0,
            "matmul_precision": "float32",
            "optimizer": optimizer("sgd"),
            "schedule": {
                "name": "cosine",
                "warmup_epochs": 15.0,
                "drop_epochs": (80, 150, 250),
                "drop_factor": 10.0,
            },
            "eval_every_epochs": 1,
            "eval_batch_size": 100,
            "evaluate_in_training_mode": False,
            "steps_per_dispatch": 1,
            "log_every_steps": 10,
            "log_heads_every_epochs": 0,
            "checkpoint_every_steps": 500,
            "checkpoints_to_keep": 2,
            "snapshot_every_epochs": 50,
        }
    )


def optimizer(name: str) -> ConfigDict:
    """Return `config.optimizer` of a name in `optim.OPTIMIZERS`, with its defaults."""
    excluded = ("centers", "spreads")
    fields = OPTIMIZERS[name].fields
    return ConfigDict({"name": name, **fields, "decay_exclude": excluded})


def with_options(
    config: ConfigDict, options: str, own: Mapping[str, Mapping[str, Any]] | None = None
) -> ConfigDict:
    """Return `config` under the comma-separated options of `--config=FILE.py:options`.

    An option is a dataset of the table `data.DATASETS`, which comes with its
    augmentation; an optimizer (its defaults, but what does not decay remains, and the
    one that the config has remains as it is); or one of the row's `own`, which maps its
    name to the fields that it changes. `short` is a run of three epochs, to try it.
    """
    datasets = {name: {"dataset": _dataset(name)} for name in DATASETS}
    known: dict[str, Mapping[str, Any]] = {**datasets, **(own or {})}
    for option in filter(None, options.split(",")):
        if option in known:
            config.update(known[option])
        elif option == "short":
            continue
        elif option not in OPTIMIZERS:
            raise UserError(
                f"{option!r} is not an option of this config; "
                f"choose from {', '.join([*known, *OPTIMIZERS, 'short'])}."
            )
        elif option != config.optimizer.name:
            excluded = config.optimizer.decay_exclude
            config.optimizer = optimizer(option)
            config.optimizer.decay_exclude = excluded
    if "short" in options.split(","):
        _shorten(config)
    return config


def _shorten(config: ConfigDict) -> None:
    """Set lengths of three epochs, with a schedule of the same kind."""
    warmup = 2.0 if config.schedule.name == "cosine_report" else 0.15
    config.update(num_epochs=3, eval_every_epochs=1, snapshot_every_epochs=1)
    config.schedule.update(warmup_epochs=warmup, drop_epochs=(1, 2))


def report_training(config: ConfigDict) -> None:
    """Set in `config` what the report's own code adds to its Table 4.

    Nesterov's momentum, decay of every parameter, its cosine, an evaluation every ten
    epochs.
    """
    config.optimizer.update(nesterov=True, decay_exclude=())
    config.schedule.name = "cosine_report"
    config.eval_every_epochs = 10


def san_training(config: ConfigDict) -> None:
    """Set in `config` how SANs are trained: label smoothing, flips but no crops."""
    config.label_smoothing = 0.1
    config.dataset.crop_padding = 0
    config.optimizer.decay_exclude = ()
    config.eval_every_epochs = 10
