"""The schema: what it accepts, and how it names what it does not."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from ml_collections import ConfigDict

from attn_cnn_jax import config as config_lib
from attn_cnn_jax import models
from attn_cnn_jax.config import (
    base_config,
    changes,
    check,
    read_file,
    resnet,
    san,
    san_hierarchical,
    self_attention,
    vit,
)
from attn_cnn_jax.config.record import flatten
from attn_cnn_jax.data import DATASETS
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention import ATTENTIONS
from attn_cnn_jax.optim import OPTIMIZERS

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "configs").glob("*.py"))


def row(path: Path, options: str = "") -> ConfigDict:
    """The config of a file in configs/."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config(options)


def put(config: ConfigDict, field: str, value: Any) -> None:
    """Set a dotted field, of whatever type."""
    *blocks, last = field.split(".")
    for block in blocks:
        config = config[block]
    with config.ignore_type():
        config[last] = value


def model_block(name: str) -> ConfigDict:
    """`config.model` of an attention or a model, of a SAN as "san:patchwise"."""
    name, _, attention = name.partition(":")
    if name in ATTENTIONS:
        return self_attention(name)
    if name.startswith("resnet"):
        return resnet(name)
    if name == "san_hierarchical":
        return san_hierarchical(attention or "pairwise")
    if name.startswith("san"):
        return san(attention or "pairwise", name)
    return vit({"vit": "report", "vit_standard": "standard"}[name])


def full(name: str = "quadratic_isotropic") -> ConfigDict:
    config = base_config()
    config.model = model_block(name)
    return config


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_row_passes_and_survives_json(path):
    config = row(path)
    check(config)
    again = config_lib.from_dict(json.loads(config_lib.to_json(config)))
    assert again == config.copy_and_resolve_references()
    assert type(again.schedule.drop_epochs) is tuple
    check(again)
    assert config_lib.differences(config, again) == []


SANS = ("san", "san_hierarchical", *config_lib.IMAGENET_SANS)
MODEL_BLOCKS = [
    *ATTENTIONS,
    *config_lib.RESNETS,
    *(f"{name}:{kind}" for name in SANS for kind in ("pairwise", "patchwise")),
    "vit",
    "vit_standard",
]


@pytest.mark.parametrize("name", MODEL_BLOCKS)
def test_every_model_block_passes(name):
    config = full(name)
    if name == "multi_head":
        config.model.num_heads = 8  # of width 400
    check(config)
    assert models.build(config.model, 10) is not None


# Values that are not of the field's type, or not in its range, by block: that of
# training, and those of the models.
HUGE, NOT_FINITE = 10**30, (float("inf"), float("nan"))
WRONG: dict[str, dict[str, list[Any]]] = {
    "training": {
        "seed": ["42", 1.5, -1, 2**32, None],
        "init_from": [None, 3],
        "dataset.name": [3, None],
        "dataset.crop_padding": [4.5, -1, True, 1024],
        "dataset.flip": [1, "yes"],
        "dataset.data_dir": [None, 3],
        "dataset.validation_fraction": ["0.1", -0.1, 1.0, float("nan")],
        "dataset.placement": ["gpu", 0],
        "batch_size": [0, -5, 10.0, "100", True, HUGE],
        "num_epochs": [0, 1.5, 2**24, 10**41],
        "label_smoothing": [1.0, -0.1, "0.1", float("nan"), True],
        "optimizer.name": ["adam", 3, None],
        "optimizer.learning_rate": [0.0, -1.0, *NOT_FINITE, 1e39, "0.1"],
        "optimizer.momentum": [1.0, -0.1, "0.9"],
        "optimizer.nesterov": [1, "yes", None],
        "optimizer.weight_decay": [-1e-4, *NOT_FINITE, 1e39, "0"],
        "optimizer.decay_exclude": ["centers", (3,), None],
        "schedule.name": ["linear", 3],
        "schedule.warmup_epochs": [-1.0, 300.0, "15"],
        "schedule.drop_epochs": [80, (150, 80), (80, 80), (0,), (1.5,), "80"],
        "schedule.drop_factor": [0.0, -10.0, "10", float("nan")],
        "eval_every_epochs": [-1, 1.0, HUGE],
        "eval_batch_size": [0, "100", 10**12],
        "evaluate_in_training_mode": [1, "yes", None],
        "steps_per_dispatch": [0, 2.5, HUGE],
        "micro_batch_size": [-1, 33, 2.5, True],
        "matmul_precision": ["bfloat16", None, 32],
        "log_every_steps": [0, 2.5, HUGE],
        "log_heads_every_epochs": [-1, 1.0, HUGE],
        "checkpoint_every_steps": [-1, "500", HUGE],
        "checkpoints_to_keep": [0, 1.0, HUGE],
        "snapshot_every_epochs": [-1, 50.0, HUGE],
    },
    "self_attention": {
        "name": ["vit22", 3],
        "patch_size": [0, 2.0, HUGE],
        "width": [0, "400", 10**12],
        "num_layers": [0, 6.5, 20_000, 10**9],
        "num_heads": [0, 9.0, HUGE, (9, 9, 9, 9, 9, HUGE)],
        "mlp_dim": [-1, "512", 10**19],
        "activation": ["tanh", 1],
        "dropout_rate": [1.0, -0.1, "0.1", float("nan")],
        "norm_epsilon": [0.0, -1e-5, "1e-5", HUGE],
        "attention_dense": [1, "no"],
        "query_chunk": [-1, 1.5, True],
        "remat": [0, "yes"],
        "share_weights": [0, "yes"],
        "compute_dtype": ["float16", 32],
        "attention.name": ["local", 3],
        "attention.dropout_rate": [1.0, -0.5, None],
        "attention.center_std": [-1.0, "2", *NOT_FINITE, HUGE],
        "attention.spread_std": [-0.01, "0", *NOT_FINITE, HUGE],
        "attention.max_position": [0, 16.0, 10**18],
        "attention.position_dim": [0, "400", HUGE],
        "attention.project_values": [1, None],
        "attention.transposed": [0, "True"],
    },
    "resnet": {
        "name": ["resnet19", None],
        "width": [0, 64.0, HUGE],
        "initialization": ["google", None],
        "compute_dtype": ["float8", 32],
    },
    "san": {
        "name": ["san20", 10],
        "attention": ["both", 3],
        "widths": [
            *((), 64, (64, 100, 512, 1024), (64.0, 256, 512, 1024), (0,) * 4),
            (64, 256, 512, 2**30),
        ],
        "num_blocks": [
            *((), 2, (2, 1, 2), (2, 1, 2, 4, 1), (2, 0, 2, 4), "2124"),
            *((10**6, 1, 1, 1), (500, 300, 200, 1)),
        ],
        "kernel_sizes": [
            *((3, 3, 3), (3, 3, 3, 4), (1, 3, 3, 3), (3, 13, 3, 3), (3, 3, 3, True)),
            3,
        ],
        "projection_bias": [1, "yes"],
        "compute_dtype": ["half", None],
    },
    "san_hierarchical": {
        "name": ["san_hierarchical2", None],
        "attention": ["learned", None],
        "width": [0, 100, "256", (256,), 2**30],
        "num_passes": [0, 4.0, 501, 10**6],
        "num_blocks": [0, (2,), HUGE],
        "num_sweeps": [0, True, HUGE],
        "kernel_size": [1, 4, 13, 3.0],
        "projection_bias": [0, None],
        "pre_activation": [1, "yes"],
        "compute_dtype": ["float", 16],
    },
    "vit": {
        "name": ["vit_base", 16],
        "stem_width": [-1, 64.0, HUGE],
        "patch_size": [0, "2", HUGE],
        "width": [0, 400.0, 10**12],
        "num_layers": [0, None, 20_000],
        "num_heads": [0, 9.0, HUGE],
        "head_dim": [0, "400", HUGE],
        "mlp_dim": [-512, 512.5, 10**19],
        "activation": ["softmax", 1],
        "class_token": ["noise", False],
        "normalized_residual": [1, "yes"],
        "projection_bias": [0, None],
        "final_norm": [1, "no"],
        "readout": ["max", 0],
        "remat": [1, None],
        "share_weights": [1, None],
        "initialization": ["flax", 3],
        "dropout_rate": [1.0, -0.1, float("nan")],
        "attention_dropout_rate": [1.0, "0.1"],
        "norm_epsilon": [0.0, float("inf"), "1e-6"],
        "compute_dtype": ["float16", 32],
    },
}


def setting(block: str, field: str) -> ConfigDict:
    """A config in which the field of the block is there and counts."""
    if block not in ("training", "self_attention"):
        return full("resnet18" if block == "resnet" else block)
    last = field.rsplit(".", 1)[-1]
    having = [name for name in ATTENTIONS if last in ATTENTIONS[name].fields]
    config = full("quadratic_isotropic" if not having else having[0])
    if field.startswith("schedule.drop"):
        config.schedule.name = "multistep"
    return config


def all_fields() -> dict[str, set[str]]:
    """The fields of every block."""
    fields: dict[str, set[str]] = {"training": {*flatten(base_config())}}
    for name in MODEL_BLOCKS:
        model = model_block(name)
        block = model.name if model.name in WRONG else model.name.rstrip("0123456789")
        fields.setdefault(block, set()).update(flatten(model))
    return fields


def test_every_field_has_wrong_values():
    assert {block: set(fields) for block, fields in WRONG.items()} == all_fields()


@pytest.mark.parametrize(
    "block, field, value",
    [
        (b, f, value)
        for b, fields in WRONG.items()
        for f in fields
        for value in fields[f]
    ],
)
def test_a_wrong_value_names_its_field(block, field, value):
    config = setting(block, field)
    check(config)
    field = field if block == "training" else f"model.{field}"
    put(config, field, value)
    with pytest.raises(UserError) as error:
        check(config)
    assert f"config.{field} is " in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("model", [resnet("resnet18"), san("pairwise"), vit()])
def test_networks_that_normalise_by_the_batch_have_no_micro_batches(model):
    config = base_config()
    config.model, config.micro_batch_size = model, 50
    with pytest.raises(UserError, match="micro_batch_size is 50; it must be 0 for"):
        check(config)
    config.micro_batch_size = config.batch_size
    check(config)


def test_attention_that_is_not_of_pixels_has_no_chunks():
    config = base_config()
    config.model = self_attention("multi_head")
    config.model.update(num_heads=8, query_chunk=1)
    with pytest.raises(
        UserError, match="query_chunk is 1; it must be 0 for multi_head"
    ):
        check(config)


WRONG_OPTIMIZER = {
    "learning_rate": [0.0, float("nan"), "0.1"],
    "weight_decay": [-1e-4, float("inf"), 1e39],
    "momentum": [1.0, -0.1, "0.9"],
    "b1": [1.0, -0.1, None],
    "b2": [1, -0.1, float("nan")],
    "eps": [0.0, -1e-8, 1.0, "1e-8"],
    "nesterov": [1, "yes"],
    "decay_exclude": ["bias", (3,)],
}


def test_every_field_of_an_optimizer_has_wrong_values():
    fields = {*config_lib.optimizer("adamw"), *config_lib.optimizer("muon")}
    assert fields == {"name", *WRONG_OPTIMIZER}


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_wrong_value_of_an_optimizer_names_its_field(name):
    for field in config_lib.optimizer(name):
        for value in WRONG_OPTIMIZER.get(field, ["adam"]):
            config = full()
            config.optimizer = config_lib.optimizer(name)
            check(config)
            put(config, f"optimizer.{field}", value)
            with pytest.raises(UserError, match=f"config.optimizer.{field} is .*must"):
                check(config)


def test_bounds_of_an_optimizer():
    """0 switches a mean, the momentum or the decay off."""
    config = full()
    config.optimizer = config_lib.optimizer("muon")
    config.optimizer.update(momentum=0.0, b1=0.0, b2=0.0, weight_decay=0.0, eps=0.999)
    config.optimizer.learning_rate = 1e37
    check(config)


@pytest.mark.parametrize(
    "name, field, value, wrong",
    [
        ("adamw", "momentum", 0.9, "config.optimizer.momentum is not a field"),
        ("sgd", "b1", 0.9, "config.optimizer.b1 is not a field"),
        ("muon", "b1", None, "config.optimizer.b1 is missing"),
    ],
)
def test_an_optimizer_has_exactly_its_fields(name, field, value, wrong):
    config = full()
    config.optimizer = config_lib.optimizer(name)
    if value is None:
        del config.optimizer[field]
    else:
        put(config, f"optimizer.{field}", value)
    with pytest.raises(UserError) as error:
        check(config)
    assert str(error.value).startswith(wrong)
    assert f"--config=FILE.py:{name} " in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_an_option_replaces_the_optimizer(name):
    """All of it, but what the row keeps from decaying; its own is no change."""
    path = FILES[0].with_name("vit.py")
    config, changed = row(path), row(path, f"digits,{name}")
    wanted = config_lib.optimizer(name)
    wanted.decay_exclude = ()
    assert changed.optimizer == wanted and config.optimizer != wanted
    assert changed.dataset.name == "digits"
    check(changed)
    assert row(path, "sgd") == config
    again = config_lib.from_dict(json.loads(config_lib.to_json(changed)))
    assert again == changed.copy_and_resolve_references()


MODELS = ("quadratic_isotropic", "san", "san10", "san_hierarchical", "vit")
BLOCKS = ["dataset", "optimizer", "schedule", "model", "model.attention"]


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("value", ["text", None, 3])
def test_a_block_that_is_none_is_named(block, value):
    config = full()
    put(config, block, value)
    with pytest.raises(UserError, match=f"config.{block}"):
        check(config)


UNKNOWN = [("quadratic_isotropic", f"{block}.") for block in BLOCKS]
UNKNOWN += [("quadratic_isotropic", ""), *((name, "model.") for name in MODELS)]


@pytest.mark.parametrize("name, prefix", UNKNOWN)
def test_an_unknown_field_is_named(name, prefix):
    config = full(name)
    put(config, f"{prefix}learning_rtae", 0.1)
    with pytest.raises(UserError, match=f"config.{prefix}learning_rtae is not a field"):
        check(config)


MISSING = [("quadratic_isotropic", block) for block in BLOCKS]
MISSING += [("quadratic_isotropic", field) for field in flatten(base_config())]
MISSING += [(name, f) for name in MODELS for f in flatten(model_block(name), "model.")]


@pytest.mark.parametrize("name, field", MISSING)
def test_a_missing_field_is_named(name, field):
    config = full(name)
    *blocks, last = field.split(".")
    owner = config
    for block in blocks:
        owner = owner[block]
    del owner[last]
    with pytest.raises(UserError, match=f"config.{field}"):
        check(config)


def test_a_whole_number_is_a_float():
    config = full()
    put(config, "schedule.warmup_epochs", 10)
    put(config, "optimizer.learning_rate", 1)
    check(config)


def test_heads_divide_the_width_and_halves_are_whole():
    config = full("multi_head")  # 9 heads of width 400
    with pytest.raises(UserError, match="config.model.num_heads is 9.*400"):
        check(config)
    for name in (
        "learned_w_content",
        "learned_w_content_report",
        "learned_query_position",
    ):
        config = full(name)
        config.model.width = 401
        with pytest.raises(UserError, match="config.model.width is 401.*even"):
            check(config)


def test_an_official_san_has_the_sizes_of_its_name():
    config = full("san10")
    put(config, "model.widths", (64, 256, 512, 1024, 2048))
    with pytest.raises(
        UserError, match="config.model.widths is not a field of the model san10"
    ):
        check(config)


@pytest.mark.parametrize("kernel_size", [3, 5, 7, 9, 11])
def test_kernels_are_odd_from_3_to_11(kernel_size):
    config = full("san")
    config.model.kernel_sizes = (3, 3, 3, kernel_size)
    check(config)
    config = full("san_hierarchical")
    config.model.kernel_size = kernel_size
    check(config)
    config.model.kernel_size = kernel_size + 1
    with pytest.raises(UserError, match="config.model.kernel_size.*odd, from 3 to 11"):
        check(config)


def test_stages_have_widths_blocks_and_kernels():
    config = full("san")
    config.model.update(widths=(32, 96), num_blocks=(1, 1), kernel_sizes=(7, 3))
    check(config)
    config.model.widths = (32,)
    with pytest.raises(UserError, match="config.model.num_blocks.*widths .1."):
        check(config)


def test_a_class_token_is_read_where_there_is_one():
    config = full("vit")
    for class_token, readout, passes in (
        ("none", "mean", True),
        ("random", "token", True),
        ("learned", "token", True),
        ("none", "token", False),
    ):
        config.model.update(class_token=class_token, readout=readout)
        if passes:
            check(config)
        else:
            with pytest.raises(UserError, match='config.model.readout.*"none"'):
                check(config)


@pytest.mark.parametrize("warmup", [2, 2.0, 15.0, 299])
def test_the_reports_cosine_warms_up(warmup):
    config = full()
    config.schedule.update(name="cosine_report", warmup_epochs=warmup)
    check(config)


@pytest.mark.parametrize("warmup", [0.0, 1.0, 2.5, 300.0, float("nan")])
def test_the_reports_cosine_warms_up_for_whole_epochs(warmup):
    config = full()
    config.schedule.update(name="cosine_report", warmup_epochs=warmup)
    with pytest.raises(UserError, match="warmup_epochs is .*at least 2 and below 300"):
        check(config)


def test_position_dim_follows_width():
    config = full("learned_wo_content")
    config.model.width = 256
    assert config.model.attention.position_dim == 256
    config.model.attention.position_dim = 100
    assert config.model.width == 256


def test_differences_are_what_changes_the_numbers():
    old = full()
    new = old.copy_and_resolve_references()
    new.optimizer.learning_rate = 0.05
    new.model.attention.center_std = 1.0
    new.dataset.data_dir = "/elsewhere"
    assert config_lib.differences(old, new) == [
        "model.attention.center_std: 2.0 -> 1.0",
        "optimizer.learning_rate: 0.1 -> 0.05",
    ]
    del new.model["mlp_dim"]
    assert "model.mlp_dim: 512 -> absent" in config_lib.differences(old, new)
    other = full("learned_w_content")
    assert "model.attention.max_position: absent -> 16" in config_lib.differences(
        old, other
    )


def test_differences_ignore_what_a_run_may_change():
    old, new = full(), full()
    assert config_lib.RESUMABLE < set(flatten(old))
    for field, value in flatten(old).items():
        if field in config_lib.RESUMABLE:
            put(new, field, f"{value}x" if isinstance(value, str) else value + 1)
    assert config_lib.differences(old, new) == []
    for field in set(flatten(old)) - config_lib.RESUMABLE:
        new = full()
        put(new, field, "another")
        (line,) = config_lib.differences(old, new)
        assert line.startswith(f"{field}: ") and line.endswith(" -> another")


def test_the_batch_of_an_evaluation_in_training_mode_may_not_change():
    old, new = full(), full()
    old.evaluate_in_training_mode = new.evaluate_in_training_mode = True
    new.eval_batch_size = 40
    assert config_lib.differences(old, new) == ["eval_batch_size: 100 -> 40"]


def test_options_name_a_dataset():
    (quickstart,) = (path for path in FILES if path.stem == "quickstart")
    assert row(quickstart).dataset.name == "digits_8x8"
    augmentations = {
        "cifar10": (4, True),
        "cifar100": (4, True),
        "digits": (0, False),
        "digits_8x8": (1, False),
    }
    assert augmentations.keys() == DATASETS.keys()
    for path in FILES:
        for name, (crop_padding, flip) in augmentations.items():
            config = row(path, name)
            check(config)
            assert config.dataset.name == name
            cropped = 0 if path.stem.startswith("san") else crop_padding
            assert config.dataset.crop_padding == cropped
            assert config.dataset.flip == flip
            model = row(path).model
            if path.stem == "quickstart":  # its grid has 8 x 8 pixels of any image
                model.patch_size = DATASETS[name].image_shape[0] // 8
            assert config.model == model
    with pytest.raises(
        UserError, match="'cifar11' is not an option.*cifar10, cifar100"
    ):
        row(quickstart, "cifar11")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_config_has_a_short_run(path):
    """Three epochs of the same schedule, whatever the place of the option."""
    whole, config = row(path, "digits"), row(path, "short,digits")
    check(config)
    assert config.num_epochs == 3
    assert config.schedule.name == whole.schedule.name
    changed = {field.rpartition(".")[2] for field in changes(whole, config)}
    assert changed <= {"num_epochs", "warmup_epochs", "drop_epochs"}


@pytest.mark.parametrize("name", [path.stem for path in FILES])
def test_a_bare_name_is_that_of_a_config(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_file(name) == row(ROOT / "configs" / f"{name}.py")
    (tmp_path / name).write_text("get_config = lambda: 1 / 0")  # a file comes first
    with pytest.raises(UserError, match="ZeroDivisionError"):
        read_file(name)


def test_every_field_has_a_meaning():
    blocks = [resnet(name) for name in config_lib.RESNETS]
    blocks += map(config_lib.resnet_as_attention, config_lib.RESNETS_AS_ATTENTION)
    blocks += [san("pairwise", name) for name in config_lib.IMAGENET_SANS]
    blocks += map(self_attention, ATTENTIONS)
    found = {field for path in FILES for field in flatten(row(path))}
    found |= {field for block in blocks for field in flatten(block, "model.")}
    for name in OPTIMIZERS:
        found |= flatten(config_lib.optimizer(name), "optimizer.").keys()
    assert found == config_lib.MEANINGS.keys()


def test_a_name_that_is_misspelt_is_corrected():
    with pytest.raises(UserError, match="did you mean quadratic_isotropic?"):
        read_file("quadratic_isotropc")


def test_resnet18_has_the_schedules_of_paper_and_report():
    (path,) = (path for path in FILES if path.stem == "resnet18")
    assert row(path).schedule.name == "multistep"
    for options in ("cosine", "cosine,digits", "digits,cosine"):
        config = row(path, options)
        check(config)
        assert config.schedule.name == "cosine"
        assert config.schedule.warmup_epochs == 10
        assert config.dataset.name == ("digits" if "digits" in options else "cifar10")
