"""The schema: what it accepts and names, and that each of its fields has an effect."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from ml_collections import ConfigDict

from attn_cnn_jax import config as config_lib
from attn_cnn_jax import data, evaluate, metrics, models, parallel, train
from attn_cnn_jax import task as task_lib
from attn_cnn_jax.config import base_config, check, resnet, self_attention
from attn_cnn_jax.errors import UserError

FILES = sorted((Path(__file__).parent.parent / "configs").glob("*.py"))
ATTENTIONS = sorted(config_lib.ATTENTION_FIELDS)


def row(path: Path, options: str = "") -> ConfigDict:
    """The config of a file in configs/."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config(options)


def flatten(fields: ConfigDict, prefix: str = "") -> dict[str, Any]:
    flat = {}
    for key, value in fields.items():
        if isinstance(value, ConfigDict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def put(config: ConfigDict, field: str, value: Any) -> None:
    """Set a dotted field, of whatever type."""
    *blocks, last = field.split(".")
    for block in blocks:
        config = config[block]
    with config.ignore_type():
        config[last] = value


def full(model: str = "quadratic_isotropic") -> ConfigDict:
    config = base_config()
    is_resnet = model.startswith("resnet")
    config.model = resnet(model) if is_resnet else self_attention(model)
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


@pytest.mark.parametrize("name", [*ATTENTIONS, *config_lib.RESNETS])
def test_every_model_block_passes(name):
    config = full(name)
    if name == "multi_head":
        config.model.num_heads = 8  # of width 400
    check(config)
    assert models.build(config.model, 10) is not None


# Values that are not of the field's type, or not in its range.
WRONG: dict[str, list[Any]] = {
    "seed": ["42", 1.5, -1, 2**32, None],
    "init_from": [None, 3],
    "dataset.name": [3, None],
    "dataset.crop_padding": [4.5, -1, True],
    "dataset.flip": [1, "yes"],
    "dataset.data_dir": [None, 3],
    "dataset.validation_fraction": ["0.1", -0.1, 1.0, float("nan")],
    "dataset.placement": ["gpu", 0],
    "batch_size": [0, -5, 10.0, "100", True],
    "num_epochs": [0, 1.5],
    "optimizer.learning_rate": [0.0, -1.0, float("inf"), float("nan"), "0.1"],
    "optimizer.momentum": [1.0, -0.1, "0.9"],
    "optimizer.weight_decay": [-1e-4, float("nan"), "0"],
    "optimizer.decay_exclude": ["centers", (3,), None],
    "schedule.name": ["linear", 3],
    "schedule.warmup_epochs": [-1.0, 300.0, "15"],
    "schedule.drop_epochs": [80, (150, 80), (80, 80), (0,), (1.5,), "80"],
    "schedule.drop_factor": [0.0, -10.0, "10", float("nan")],
    "eval_every_epochs": [-1, 1.0],
    "eval_batch_size": [0, "100"],
    "log_every_steps": [0, 2.5],
    "checkpoint_every_steps": [-1, "500"],
    "checkpoints_to_keep": [0, 1.0],
    "snapshot_every_epochs": [-1, 50.0],
    "model.name": ["vit22", 3],
    "model.patch_size": [0, 2.0],
    "model.width": [0, "400"],
    "model.num_layers": [0, 6.5],
    "model.num_heads": [0, 9.0],
    "model.mlp_dim": [-1, "512"],
    "model.activation": ["tanh", 1],
    "model.dropout_rate": [1.0, -0.1, "0.1", float("nan")],
    "model.norm_epsilon": [0.0, -1e-5, "1e-5"],
    "model.compute_dtype": ["float16", 32],
    "model.attention.name": ["local", 3],
    "model.attention.dropout_rate": [1.0, -0.5, None],
    "model.attention.center_std": [-1.0, "2", float("inf")],
    "model.attention.spread_std": [-0.01, "0", float("nan")],
    "model.attention.max_position": [0, 16.0],
    "model.attention.position_dim": [0, "400"],
}


def setting(field: str) -> ConfigDict:
    """A config in which the field is there and counts."""
    learned = field.rsplit(".", 1)[-1] in ("max_position", "position_dim")
    config = full("learned_wo_content" if learned else "quadratic_isotropic")
    if field.startswith("schedule.drop"):
        config.schedule.name = "multistep"
    return config


def all_fields() -> set[str]:
    known = {*flatten(base_config())}
    for name in (*ATTENTIONS, "resnet18"):
        known |= {f"model.{field}" for field in flatten(full(name).model)}
    return known


def test_every_field_has_wrong_values():
    assert set(WRONG) == all_fields()


@pytest.mark.parametrize(
    "field, value", [(field, value) for field in WRONG for value in WRONG[field]]
)
def test_a_wrong_value_names_its_field(field, value):
    config = setting(field)
    check(config)
    put(config, field, value)
    with pytest.raises(UserError) as error:
        check(config)
    assert f"config.{field} is " in str(error.value)
    assert "\n" not in str(error.value)


BLOCKS = ["dataset", "optimizer", "schedule", "model", "model.attention"]


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("value", ["text", None, 3])
def test_a_block_that_is_none_is_named(block, value):
    config = full()
    put(config, block, value)
    with pytest.raises(UserError, match=f"config.{block}"):
        check(config)


@pytest.mark.parametrize("prefix", ["", *(f"{block}." for block in BLOCKS)])
def test_an_unknown_field_is_named(prefix):
    config = full()
    put(config, f"{prefix}learning_rtae", 0.1)
    with pytest.raises(UserError, match=f"config.{prefix}learning_rtae is not a field"):
        check(config)


@pytest.mark.parametrize("field", [*flatten(full()), *BLOCKS])
def test_a_missing_field_is_named(field):
    config = full()
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
    for name in ("learned_w_content", "learned_query_position"):
        config = full(name)
        config.model.width = 401
        with pytest.raises(UserError, match="config.model.width is 401.*even"):
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


def test_options_name_a_dataset():
    (quickstart,) = (path for path in FILES if path.stem == "quickstart")
    assert row(quickstart).dataset.name == "digits_8x8"
    for path in FILES:
        for name in ("cifar10", "cifar100", "digits"):
            config = row(path, name)
            check(config)
            assert config.dataset.name == name
            augmented = config.dataset.crop_padding, config.dataset.flip
            assert augmented == ((0, False) if name == "digits" else (4, True))
            assert config.model == row(path).model
    with pytest.raises(
        UserError, match="'cifar11' is not an option.*cifar10, cifar100"
    ):
        row(quickstart, "cifar11")


def test_resnet18_has_the_schedules_of_paper_and_report():
    (path,) = (path for path in FILES if path.stem == "resnet18")
    assert row(path).schedule.name == "multistep"
    for options in ("cosine", "cosine,digits", "digits,cosine"):
        config = row(path, options)
        check(config)
        assert config.schedule.name == "cosine"
        assert config.schedule.warmup_epochs == 10
        assert config.dataset.name == ("digits" if "digits" in options else "cifar10")


# --- Each field has an effect ---------------------------------------------------------


def small(attention: str = "quadratic_isotropic", schedule: str = "cosine"):
    """A config whose every part is there: three epochs of three steps."""
    config = base_config()
    if attention == "resnet18":
        config.model = resnet("resnet18")
        config.model.width = 2
    else:
        config.model = self_attention(attention)
        config.model.update(width=4, num_layers=1, num_heads=2, mlp_dim=4)
    config.dataset.update(name="digits_8x8", crop_padding=1, flip=True)
    config.update(batch_size=400, num_epochs=3, eval_batch_size=360)
    config.update(log_every_steps=3, checkpoints_to_keep=5, snapshot_every_epochs=0)
    config.schedule.update(name=schedule, warmup_epochs=1.0, drop_epochs=(1, 2))
    return config


def task_of(config: ConfigDict) -> task_lib.Task:
    return task_lib.Task.of(config, data.load(config.dataset))


def program(config: ConfigDict, workdir: Path) -> str:
    """The text of the compiled training step."""
    task = task_of(config)
    mesh = parallel.make_mesh(jax.devices()[:1])
    state = jax.eval_shape(task.initial_state)
    feed = parallel.Feed(task.dataset.train, mesh, config.dataset.placement)
    rows = data.epoch_rows(config.seed, 0, feed.num_images, config.batch_size)
    return task.make_train_step(mesh).lower(state, feed(rows[0])).as_text()


def start(config: ConfigDict, workdir: Path) -> str:
    """The text of the program that draws the initial state."""
    return jax.jit(task_of(config).initial_state).lower().as_text()


def shapes(config: ConfigDict, workdir: Path) -> str:
    """The shapes of the initial state."""
    return str(jax.eval_shape(task_of(config).initial_state))


def order(config: ConfigDict, workdir: Path) -> list:
    """The rows of the first epoch's batches."""
    count = len(data.load(config.dataset).train)
    return data.epoch_rows(config.seed, 0, count, config.batch_size).tolist()


def rates(config: ConfigDict, workdir: Path) -> list[float]:
    """The learning rate of every update."""
    task = task_of(config)
    return [float(task.schedule(k)) for k in range(task.num_steps)]


def splits(config: ConfigDict, workdir: Path) -> list[int]:
    """How many images train, test and validation have."""
    dataset = data.load(config.dataset)
    return [len(s) for s in (dataset.train, dataset.test, dataset.validation or ())]


def placement(config: ConfigDict, workdir: Path) -> bool:
    """Whether the images lie on the device."""
    dataset = data.load(config.dataset)
    mesh = parallel.make_mesh(jax.devices()[:1])
    return parallel.Feed(dataset.test, mesh, config.dataset.placement).on_device


def where(config: ConfigDict, workdir: Path) -> str:
    """Where prepared data are looked for."""
    config.dataset.update(name="cifar10")
    config.dataset.data_dir = str(workdir / (config.dataset.data_dir or "here"))
    with pytest.raises(UserError) as error:
        data.load(config.dataset)
    return str(error.value)


def origin(config: ConfigDict, workdir: Path) -> str:
    """What a new run says of its first variables, which are not there."""
    try:
        return str(train._start(config, jax.eval_shape(task_of(config).initial_state)))
    except UserError as error:
        return str(error)


def run(config: ConfigDict, workdir: Path) -> dict[str, Any]:
    """What a run evaluates, logs and keeps. All runs share their compiled steps."""
    batches: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        shared_steps(patch, batches)
        train.train(config, workdir, mesh=parallel.make_mesh(jax.devices()[:1]))
    kept = sorted(int(path.name) for path in (workdir / "checkpoints").iterdir())
    snapshots = workdir / "snapshots"
    return {
        "lines": [(line["step"], line["split"]) for line in metrics.read(workdir)],
        "checkpoints": kept,
        "snapshots": sorted(p.name for p in snapshots.iterdir())
        if snapshots.exists()
        else [],
        "batches": batches,
    }


_compiled: dict[str, Callable] = {}  # steps of the runs

# Field: another value, where it shows, and the config it shows in.
EFFECTS: dict[str, tuple[Any, Callable, dict[str, str]]] = {
    "seed": (43, program, {}),
    "init_from": ("elsewhere", origin, {}),
    "dataset.name": ("digits", program, {}),
    "dataset.crop_padding": (2, program, {}),
    "dataset.flip": (False, program, {}),
    "dataset.data_dir": ("elsewhere", where, {}),
    "dataset.validation_fraction": (0.25, splits, {}),
    "dataset.placement": ("host", placement, {}),
    "batch_size": (300, order, {}),
    "num_epochs": (4, rates, {}),
    "optimizer.learning_rate": (0.2, rates, {}),
    "optimizer.momentum": (0.8, program, {}),
    "optimizer.weight_decay": (1e-3, program, {}),
    "optimizer.decay_exclude": (("centers",), program, {}),
    "schedule.name": ("cosine_epochwise", rates, {}),
    "schedule.warmup_epochs": (2.0, rates, {}),
    "schedule.drop_epochs": ((2,), rates, {"schedule": "multistep"}),
    "schedule.drop_factor": (5.0, rates, {"schedule": "multistep"}),
    "eval_every_epochs": (2, run, {}),
    "eval_batch_size": (90, run, {}),
    "log_every_steps": (2, run, {}),
    "checkpoint_every_steps": (2, run, {}),
    "checkpoints_to_keep": (1, run, {}),
    "snapshot_every_epochs": (1, run, {}),
    "model.name": ("resnet10", shapes, {"attention": "resnet18"}),
    "model.patch_size": (4, shapes, {}),
    "model.width": (8, shapes, {}),
    "model.num_layers": (2, shapes, {}),
    "model.num_heads": (3, shapes, {}),
    "model.mlp_dim": (8, shapes, {}),
    "model.activation": ("relu", program, {}),
    "model.dropout_rate": (0.2, program, {}),
    "model.norm_epsilon": (1e-6, program, {}),
    "model.compute_dtype": ("bfloat16", program, {}),
    "model.attention.name": ("quadratic_nonisotropic", shapes, {}),
    "model.attention.dropout_rate": (0.2, program, {}),
    "model.attention.center_std": (1.0, start, {}),
    "model.attention.spread_std": (0.1, start, {}),
    "model.attention.max_position": (8, shapes, {"attention": "learned_wo_content"}),
    "model.attention.position_dim": (8, shapes, {"attention": "learned_wo_content"}),
}
SEED_ALSO = (start, order)  # `seed` decides these besides the steps


@pytest.fixture(scope="module")
def observed(tmp_path_factory):
    """`observed(how, config)`, each different question asked once."""
    answers: dict[str, Any] = {}

    def ask(how: Callable, config: ConfigDict) -> Any:
        key = how.__name__ + config_lib.to_json(config)
        if key not in answers:
            workdir = tmp_path_factory.mktemp(how.__name__)
            answers[key] = how(config.copy_and_resolve_references(), workdir)
            if how is where:  # the folder itself differs every time
                answers[key] = answers[key].replace(str(workdir), "")
        return answers[key]

    return ask


def shared_steps(patch: pytest.MonkeyPatch, batches: list[int]) -> None:
    """All runs start alike and train with one compiled step: they differ around it.

    `batches` gets the sizes of the batches that are evaluated.
    """

    def make_train_step(task, mesh):
        if "train" not in _compiled:
            _compiled["train"] = original_train(task, mesh)
        return _compiled["train"]

    def make_eval_step(model, dataset, mesh):
        if "eval" not in _compiled:
            _compiled["eval"] = original_eval(model, dataset, mesh)

        def step(variables, source, weights):
            batches.append(len(weights))
            return _compiled["eval"](variables, source, weights)

        return step

    if "start" not in _compiled:
        task = task_of(small())
        state = jax.device_get(jax.jit(task.initial_state)())
        _compiled["start"] = lambda task: jax.tree.map(jnp.asarray, state)
    original_train = task_lib.Task.make_train_step
    original_eval = evaluate.make_eval_step
    patch.setattr(task_lib.Task, "initial_state", _compiled["start"])
    patch.setattr(task_lib.Task, "make_train_step", make_train_step)
    patch.setattr(train, "make_eval_step", make_eval_step)


def test_every_field_has_its_row():
    assert set(EFFECTS) == all_fields()


@pytest.mark.parametrize("field", EFFECTS)
def test_a_field_has_an_effect(field, observed):
    value, how, setup = EFFECTS[field]
    config, changed = small(**setup), small(**setup)
    assert flatten(config)[field] != value
    put(changed, field, value)
    check(config)
    check(changed)
    assert observed(how, config) != observed(how, changed)


def test_the_same_config_is_the_same_program():
    """Else a program would differ whatever the field."""
    assert program(small(), Path()) == program(small(), Path())


@pytest.mark.parametrize("how", SEED_ALSO)
def test_the_seed_decides_all_that_is_random(how, observed):
    other = small()
    other.seed = 43
    assert observed(how, small()) != observed(how, other)


def test_a_run_does_what_its_intervals_say(observed):
    """The run that the intervals are compared with: nine steps."""
    result = observed(run, small())
    evaluations = [(3, "train"), (3, "test"), (6, "train"), (6, "test")]
    assert result["lines"] == [*evaluations, (9, "train"), (9, "test")]
    assert result["batches"] == [360] * 3 and result["snapshots"] == []
    assert result["checkpoints"] == [3, 6, 9]
    fewer = small()
    fewer.checkpoints_to_keep = 1
    kept = observed(run, fewer)["checkpoints"]
    assert kept[-1] == 9 and len(kept) <= 2  # the newest, and the best
