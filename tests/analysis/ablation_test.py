"""Heads switched off: against whole forward passes, and what is computed for it."""

import collections
import csv
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from attn_cnn_jax import data, models
from attn_cnn_jax.analysis import ablation as ablation_lib
from attn_cnn_jax.analysis.ablation import ablate, write_csv, write_json
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.run import Run

NUM_IMAGES = 50
FAMILIES = [
    "quadratic_isotropic",
    "learned_w_content_report",
    "multi_head",
    "shared learned_w_content",
    "vit",
    "shared vit",
]


def fit_classifier(config, variables):
    """Least squares on the images that are scored, so that heads matter.

    Small singular values are cut: weights of 1e4 would leave ties to float32.
    """
    model, dataset = models.build(config.model, 10), data.load(config.dataset)
    images = data.normalize(dataset.test.images, dataset.mean, dataset.std)

    @jax.jit
    def features(variables, images):
        x, keys = model.apply(variables, images, train=False, method="embed"), None
        for layer in range(config.model.num_layers):
            x, keys = model.apply(
                variables, x, keys, layer, train=False, method="layer"
            )
        return x.mean(axis=tuple(range(1, x.ndim - 1)))

    seen = np.asarray(features(variables, images))
    inputs = np.concatenate([seen, np.ones((len(seen), 1))], axis=1)
    fit = np.linalg.lstsq(inputs, np.eye(10)[dataset.test.labels], rcond=1e-3)[0]
    classifier = variables["params"]["classifier"]
    classifier.update(kernel=fit[:-1].astype("f4"), bias=fit[-1].astype("f4"))


FIELDS = {
    "quadratic_isotropic": {"num_layers": 3, "num_heads": (3, 0, 2)},
    "learned_w_content_report": {"attention.project_values": True},
}


@pytest.fixture
def written(make_run):
    """`written(family)`: a `Run` of random variables whose heads matter."""

    def write(family):
        return make_run(family, fit_classifier, **FIELDS.get(family, {}))

    return write


def silenced(config, variables, layer, head):
    """The head's part of what follows the heads is zero, where it has one."""
    variables = jax.tree.map(np.array, variables)
    name = "block" if config.share_weights else f"block_{layer}"
    block = variables["params"][name]
    if config.name == "vit":
        block["attention"]["output"]["kernel"][head] = 0
    elif config.attention.name == "multi_head":
        size = config.width // config.num_heads
        block["attention_dense"]["kernel"][head * size : (head + 1) * size] = 0
    else:
        block["attention"]["value_kernel"][head] = 0
    return variables


def brute_force(run):
    """`right(layer, head)`, answers of whole passes; without a head of the whole.

    Of shared weights the block is applied pass by pass, once with the other values.
    """
    model, config, dataset = run.model, run.config.model, run.dataset
    rows = np.arange(NUM_IMAGES, dtype=np.int32)
    images = data.normalize(dataset.test.images[rows], dataset.mean, dataset.std)
    rng, indices = jax.random.key(run.config.seed), jnp.asarray(rows)
    draws = models.evaluation_draws(model, rng, indices, 1)

    @jax.jit
    def whole(other, images):
        return model.apply(other, images, train=False, **draws)

    @jax.jit
    def by_passes(variables, others, images):
        x = model.apply(variables, images, train=False, method="embed", **draws)
        block = model.block("b") if config.name == "vit" else model._block("b", 0)
        keys = None
        for chosen in others:
            params = {"params": chosen["params"]["block"]}
            x, keys = block.clone(name=None).apply(params, x, keys, train=False)
        return model.apply(variables, x, method="classify")

    def right(layer=None, head=None):
        if layer is None:
            logits = whole(run.variables, images)
        else:
            other = silenced(config, run.variables, layer, head)
            others = [run.variables] * config.num_layers
            others[layer] = other
            shared = config.share_weights
            logits = (
                by_passes(run.variables, others, images)
                if shared
                else whole(other, images)
            )
        return np.asarray(logits.argmax(-1) == dataset.test.labels[rows])

    return right


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_that_is_off_is_a_network_without_it(family, written):
    run = written(family)
    result = ablate(run, NUM_IMAGES, batch_size=20)  # the last batch is not full
    numbers = result.layers, [len(a) for a in result.accuracies]
    if family == "quadratic_isotropic":
        assert numbers == (("layer 1", "layer 2", "layer 3"), [3, 0, 2])
    else:
        assert numbers == (("layer 1", "layer 2"), [run.config.model.num_heads] * 2)
    right = brute_force(run)
    whole = right()
    assert (result.accuracy, result.num_images) == (whole.mean(), NUM_IMAGES)
    for layer, accuracies in enumerate(result.accuracies):
        for head, accuracy in enumerate(accuracies):
            off = right(layer, head)
            assert accuracy == off.mean(), (layer, head)
            changes = off.astype(float) - whole
            error = changes.std(ddof=1) / math.sqrt(NUM_IMAGES)
            found = result.standard_errors[layer][head]
            assert found == pytest.approx(error, abs=1e-12)
    assert len({result.accuracy, *sum(result.accuracies, ())}) > 2  # heads matter


def test_layers_below_a_head_are_computed_once(written):
    """Each call of a block counted, without compilation; 3, 0 and 2 heads."""
    calls = collections.Counter()

    def count(layer, args, kwargs, context):
        if context.method_name == "__call__" and len(context.module.path) == 1:
            calls[context.module.name] += 1
        return layer(*args, **kwargs)

    run = written("quadratic_isotropic")
    with jax.disable_jit(), nn.intercept_methods(count):
        ablate(run, 4, batch_size=2)
    batches = 2
    assert {name: number / batches for name, number in calls.items()} == {
        "embedding": 1,
        "block_0": 1 + 3,
        "block_1": 1 + 3,
        "block_2": 1 + 3 + 2,
        "classifier": 1 + 3 + 2,
    }


def test_the_whole_network_scores_as_it_is_evaluated(written):
    workdir = written("vit").workdir
    result = ablate(workdir, 10_000)
    evaluated = Run(workdir).evaluate()
    assert result.num_images == evaluated["images"] == 360
    assert result.accuracy == pytest.approx(evaluated["accuracy"], abs=1e-6)


def test_the_files_hold_the_numbers(tmp_path, written):
    result = ablate(written("quadratic_isotropic"), 30)
    write_csv(result, tmp_path / "heads.csv")
    with (tmp_path / "heads.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(line["layer"], line["head"]) for line in lines] == [
        ("", ""),
        ("layer 1", "1"),
        ("layer 1", "2"),
        ("layer 1", "3"),
        ("layer 3", "1"),
        ("layer 3", "2"),
    ]
    assert float(lines[0]["accuracy"]) == result.accuracy
    error = math.sqrt(result.accuracy * (1 - result.accuracy) / 30)
    assert float(lines[0]["standard_error"]) == pytest.approx(error) and error > 0
    assert lines[0]["change"] == ""  # of the whole network there is none
    accuracies = [float(line["accuracy"]) for line in lines[1:]]
    assert accuracies == [*sum(result.accuracies, ())]
    errors = [float(line["standard_error"]) for line in lines[1:]]
    assert errors == [*sum(result.standard_errors, ())]
    for line, accuracy in zip(lines[1:], accuracies, strict=True):
        assert float(line["change"]) == accuracy - result.accuracy
        assert (line["num_images"], line["run"]) == ("30", result.run)
    write_json(result, tmp_path / "heads.json")
    fields = json.loads((tmp_path / "heads.json").read_text())
    assert fields["accuracies"] == [list(layer) for layer in result.accuracies]
    assert fields["standard_error"] == pytest.approx(error)
    assert fields["num_images"] == 30 and fields["layers"][2] == "layer 3"


def test_the_standard_error_is_of_the_changes():
    """By hand: four images, changes 1, -1, 0, 0 have variance 2 / 3."""
    off = np.array([True, False, True, False])
    whole = np.array([False, True, True, False])
    error = ablation_lib._standard_error(off, whole)
    assert error == pytest.approx(math.sqrt(2 / 3 / 4))
    assert ablation_lib._standard_error(whole, whole) == 0
    assert ablation_lib._standard_error(off[:1], whole[:1]) == 0


@pytest.mark.parametrize("family", ["resnet", "san"])
def test_networks_without_such_heads_are_told(family, make_run):
    with pytest.raises(UserError, match=f"is a {family}.*: only heads of self_atten"):
        ablate(make_run(family))


@pytest.mark.parametrize("wrong", [{"num_images": 0}, {"batch_size": 0}])
def test_no_images_are_refused(wrong, written):
    with pytest.raises(UserError, match="1 image or more"):
        ablate(written("quadratic_isotropic"), **wrong)
