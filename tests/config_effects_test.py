"""Each field of the schema changes what is computed, drawn, kept or written."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from attn_cnn_jax import config as config_lib
from attn_cnn_jax import data, evaluate, models, optim, parallel, records, train
from attn_cnn_jax.config import (
    base_config,
    check,
    resnet,
    san,
    san_hierarchical,
    self_attention,
    vit,
)
from attn_cnn_jax.config.record import flatten
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention import ATTENTIONS
from attn_cnn_jax.timetable import Timetable

BLOCKS = ("self_attention", "resnet", "san", "san_hierarchical", "vit")
TINY: dict[str, dict[str, Any]] = {
    "self_attention": {"width": 4, "num_layers": 1, "num_heads": 2, "mlp_dim": 4},
    "resnet": {"width": 2},
    "san": {"widths": (32,), "num_blocks": (1,), "kernel_sizes": (3,)},
    "san_hierarchical": {"width": 32, "num_passes": 2, "num_blocks": 1},
    "vit": {
        **{"stem_width": 2, "width": 4, "num_layers": 2, "num_heads": 2},
        **{"head_dim": 4, "mlp_dim": 4},
    },
}


def model_block(block: str, attention: str) -> ConfigDict:
    """`config.model` of a block, as small as it gets."""
    if block == "self_attention":
        model = self_attention(attention)
    elif block == "resnet":
        model = resnet("resnet18")
    else:
        model = {"san": san, "san_hierarchical": san_hierarchical}.get(block, vit)(
            "report" if block == "vit" else "pairwise"
        )
    model.update(TINY[block])
    return model


def small(
    block: str = "self_attention",
    *,
    attention: str = "quadratic_isotropic",
    schedule: str = "cosine",
) -> ConfigDict:
    """A config whose every part is there: three epochs of three steps."""
    config = base_config()
    config.model = model_block(block, attention)
    config.dataset.update(name="digits_8x8", crop_padding=1, flip=True)
    config.update(batch_size=400, num_epochs=3, eval_batch_size=360)
    config.update(log_every_steps=3, checkpoints_to_keep=5, snapshot_every_epochs=0)
    config.schedule.update(name=schedule, warmup_epochs=1.0, drop_epochs=(1, 2))
    return config


def put(config: ConfigDict, field: str, value: Any) -> None:
    """Set a dotted field, of whatever type."""
    *blocks, last = field.split(".")
    for block in blocks:
        config = config[block]
    with config.ignore_type():
        config[last] = value


def parts_of(config: ConfigDict) -> tuple:
    """What a step is made of: config, model, optimizer and dataset."""
    dataset = data.load(config.dataset)
    model = models.build(config.model, dataset.num_classes)
    schedule = Timetable(config, len(dataset.train)).schedule
    return config, model, optim.make_optimizer(config.optimizer, schedule), dataset


def drawn(config: ConfigDict) -> Callable[[], Any]:
    """The function that draws the initial state."""
    return functools.partial(train.initial_state, *parts_of(config))


def program(config: ConfigDict, workdir: Path) -> str:
    """The text of the compiled training step."""
    mesh = parallel.make_mesh(jax.devices()[:1])
    parts = parts_of(config)
    step = train.make_train_step(*parts, mesh)
    feed = parallel.Feed(parts[-1].train, mesh, config.dataset.placement)
    rows = data.epoch_rows(config.seed, 0, feed.num_images, config.batch_size)
    state = jax.eval_shape(drawn(config))
    return jax.jit(step).lower(state, feed(rows[0])).as_text()


def evaluation(config: ConfigDict, workdir: Path) -> str:
    """The text of the compiled evaluation step."""
    mesh = parallel.make_mesh(jax.devices()[:1])
    _, model, _, dataset = parts_of(config)
    step: Any = evaluate.make_eval_step(config, model, dataset, mesh)
    rows = np.arange(config.eval_batch_size, dtype=np.int32)
    source = parallel.Feed(dataset.test, mesh, config.dataset.placement)(rows)
    variables = jax.eval_shape(drawn(config)).variables
    return step.lower(variables, source, rows, rows.astype(np.float32)).as_text()


def start(config: ConfigDict, workdir: Path) -> str:
    """The text of the program that draws the initial state."""
    return jax.jit(drawn(config)).lower().as_text()


def shapes(config: ConfigDict, workdir: Path) -> str:
    """The shapes of the initial state."""
    return str(jax.eval_shape(drawn(config)))


def order(config: ConfigDict, workdir: Path) -> list:
    """The rows of the first epoch's batches."""
    count = len(data.load(config.dataset).train)
    return data.epoch_rows(config.seed, 0, count, config.batch_size).tolist()


def rates(config: ConfigDict, workdir: Path) -> list[float]:
    """The learning rate of every update."""
    due = Timetable(config, len(data.load(config.dataset).train))
    return [due.learning_rate(step + 1) for step in range(due.num_steps)]


def splits(config: ConfigDict, workdir: Path) -> list[int]:
    """How many images train, test and validation have."""
    dataset = data.load(config.dataset)
    return [len(s) for s in (dataset.train, dataset.test, dataset.validation or ())]


def blocks(config: ConfigDict, workdir: Path) -> list[int]:
    """How many batches each dispatch of the first epoch has."""
    due, step, counts = Timetable(config, len(data.load(config.dataset).train)), 0, []
    while step < due.steps_per_epoch:
        counts.append(len(due.next_rows(step)))
        step += counts[-1]
    return counts


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
        return str(train._origin(config, jax.eval_shape(drawn(config))))
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
        "lines": [(line["step"], line["split"]) for line in records.read(workdir)],
        "checkpoints": kept,
        "snapshots": sorted(p.name for p in snapshots.iterdir())
        if snapshots.exists()
        else [],
        "batches": batches,
    }


_compiled: dict[str, Callable] = {}  # steps of the runs

# Field of a block: another value, where it shows, and the config it shows in.
LEARNED = {"attention": "learned_wo_content"}
REPORT = {"attention": "learned_w_content_report"}
MULTISTEP = {"schedule": "multistep"}
EFFECTS: dict[str, dict[str, tuple[Any, Callable, dict[str, str]]]] = {
    "training": {
        "seed": (43, program, {}),
        "init_from": ("elsewhere", origin, {}),
        "dataset.name": ("digits", program, {}),
        "dataset.crop_padding": (2, program, {}),
        "dataset.flip": (False, program, {}),
        "dataset.data_dir": ("elsewhere", where, {}),
        "dataset.validation_fraction": (0.25, splits, {}),
        "dataset.placement": ("host", placement, {}),
        "batch_size": (300, order, {}),
        "micro_batch_size": (200, program, {}),
        "matmul_precision": ("tf32", program, {}),
        "num_epochs": (4, rates, {}),
        "label_smoothing": (0.1, program, {}),
        "optimizer.name": ("adamw", program, {}),
        "optimizer.learning_rate": (0.2, rates, {}),
        "optimizer.momentum": (0.8, program, {}),
        "optimizer.nesterov": (True, program, {}),
        "optimizer.weight_decay": (1e-3, program, {}),
        "optimizer.decay_exclude": (("centers",), program, {}),
        "schedule.name": ("cosine_epochwise", rates, {}),
        "schedule.warmup_epochs": (2.0, rates, {}),
        "schedule.drop_epochs": ((2,), rates, MULTISTEP),
        "schedule.drop_factor": (5.0, rates, MULTISTEP),
        "eval_every_epochs": (2, run, {}),
        "eval_batch_size": (90, run, {}),
        "evaluate_in_training_mode": (True, evaluation, {}),
        "steps_per_dispatch": (2, blocks, {}),
        "log_every_steps": (2, run, {}),
        "log_heads_every_epochs": (2, run, {}),
        "checkpoint_every_steps": (2, run, {}),
        "checkpoints_to_keep": (1, run, {}),
        "snapshot_every_epochs": (1, run, {}),
    },
    "self_attention": {
        "patch_size": (4, shapes, {}),
        "width": (8, shapes, {}),
        "num_layers": (2, shapes, {}),
        "num_heads": (3, shapes, {}),
        "mlp_dim": (8, shapes, {}),
        "activation": ("relu", program, {}),
        "dropout_rate": (0.2, program, {}),
        "norm_epsilon": (1e-6, program, {}),
        "attention_dense": (False, shapes, {}),
        "share_weights": (True, shapes, {}),
        "query_chunk": (1, program, {}),
        "remat": (True, program, {}),
        "compute_dtype": ("bfloat16", program, {}),
        "attention.name": ("quadratic_nonisotropic", shapes, {}),
        "attention.dropout_rate": (0.2, program, {}),
        "attention.center_std": (1.0, start, {}),
        "attention.spread_std": (0.1, start, {}),
        "attention.max_position": (8, shapes, LEARNED),
        "attention.position_dim": (8, shapes, LEARNED),
        "attention.project_values": (True, shapes, REPORT),
        "attention.transposed": (True, program, REPORT),
    },
    "resnet": {
        "name": ("resnet10", shapes, {}),
        "width": (4, shapes, {}),
        "initialization": ("kaiming", start, {}),
        "compute_dtype": ("bfloat16", program, {}),
    },
    "san": {
        "attention": ("patchwise", shapes, {}),
        "widths": ((64,), shapes, {}),
        "num_blocks": ((2,), shapes, {}),
        "kernel_sizes": ((5,), program, {}),
        "projection_bias": (False, shapes, {}),
        "compute_dtype": ("bfloat16", program, {}),
    },
    "san_hierarchical": {
        "attention": ("patchwise", shapes, {}),
        "width": (64, shapes, {}),
        "num_passes": (3, shapes, {}),
        "num_blocks": (2, shapes, {}),
        "num_sweeps": (2, program, {}),
        "kernel_size": (5, program, {}),
        "projection_bias": (True, shapes, {}),
        "pre_activation": (True, program, {}),
        "compute_dtype": ("bfloat16", program, {}),
    },
    "vit": {
        "stem_width": (4, shapes, {}),
        "patch_size": (4, shapes, {}),
        "width": (8, shapes, {}),
        "num_layers": (3, shapes, {}),
        "num_heads": (3, shapes, {}),
        "head_dim": (2, shapes, {}),
        "mlp_dim": (8, shapes, {}),
        "activation": ("gelu_tanh", program, {}),
        "class_token": ("learned", shapes, {}),
        "normalized_residual": (False, program, {}),
        "projection_bias": (True, shapes, {}),
        "final_norm": (True, shapes, {}),
        "readout": ("token", program, {}),
        "share_weights": (True, shapes, {}),
        "remat": (True, program, {}),
        "initialization": ("google", start, {}),
        "dropout_rate": (0.2, program, {}),
        "attention_dropout_rate": (0.2, program, {}),
        "norm_epsilon": (1e-6, program, {}),
        "compute_dtype": ("bfloat16", program, {}),
    },
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

    def compile_blocks(*arguments):
        if "train" not in _compiled:
            _compiled["train"] = original_train(*arguments)
        return _compiled["train"]

    def make_eval_step(*arguments):
        if "eval" not in _compiled:
            _compiled["eval"] = original_eval(*arguments)

        def step(variables, source, rows, weights):
            batches.append(len(weights))
            return _compiled["eval"](variables, source, rows, weights)

        return step

    if "start" not in _compiled:
        state = jax.device_get(jax.jit(drawn(small()))())
        _compiled["start"] = lambda *parts: jax.tree.map(jnp.asarray, state)
    original_train = parallel.compile_blocks
    original_eval = evaluate.make_eval_step
    patch.setattr(train, "initial_state", _compiled["start"])
    patch.setattr(parallel, "compile_blocks", compile_blocks)
    patch.setattr(evaluate, "make_eval_step", make_eval_step)


def test_every_field_has_its_row():
    """`name` is a field like the others where one block has several names."""
    assert set(EFFECTS["training"]) == set(flatten(base_config()))
    fields = {block: set() for block in BLOCKS}
    for attention in ATTENTIONS:
        for block in BLOCKS:
            fields[block] |= set(flatten(model_block(block, attention)))
    for block in BLOCKS:
        assert set(EFFECTS[block]) | {"name"} == fields[block]


@pytest.mark.parametrize(
    "block, field", [(block, field) for block in EFFECTS for field in EFFECTS[block]]
)
def test_a_field_has_an_effect(block, field, observed):
    value, how, setup = EFFECTS[block][field]
    network = {} if block == "training" else {"block": block}
    config, changed = small(**network, **setup), small(**network, **setup)
    field = field if block == "training" else f"model.{field}"
    assert flatten(config)[field] != value
    if field == "optimizer.name":  # comes with fields: optim_test.py sees to them
        changed.optimizer = config_lib.optimizer(value)
    else:
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
    end = [(9, "train"), (9, "test"), (9, "goodput")]
    assert result["lines"] == [*evaluations, *end]
    assert result["batches"] == [360] * 3 and result["snapshots"] == []
    assert result["checkpoints"] == [3, 6, 9]
    fewer = small()
    fewer.checkpoints_to_keep = 1
    kept = observed(run, fewer)["checkpoints"]
    assert kept[-1] == 9 and len(kept) <= 2  # the newest, and the best
