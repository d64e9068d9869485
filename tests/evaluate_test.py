"""Evaluation counts each image once, whatever the size of its batches."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_cnn_jax import checkpoint, data, models, parallel
from attn_cnn_jax import config as config_lib
from attn_cnn_jax.config import self_attention, vit
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.evaluate import evaluate, make_eval_step
from attn_cnn_jax.run import Run


@pytest.fixture(scope="module")
def digits() -> data.Dataset:
    return data.DATASETS["digits_8x8"].load("")


def with_seed(seed: int):
    config = config_lib.base_config()
    config.seed = seed
    return config


@pytest.fixture(scope="module")
def model():
    fields = self_attention("quadratic_isotropic")
    fields.update(width=8, num_layers=1, num_heads=2, mlp_dim=8)
    return models.build(fields, 10)


@pytest.fixture(scope="module")
def variables(model):
    draw = jax.jit(lambda rng: models.initial_variables(model, rng, (8, 8, 1)))
    return draw(jax.random.key(1))


@pytest.fixture(scope="module")
def wanted(model, variables, digits) -> dict:
    """Loss and accuracy of all logits at once, in float64 after the network."""
    pixels = digits.test.images / 255 - np.array(digits.mean)
    images = jnp.asarray(pixels / np.array(digits.std), jnp.float32)
    logits = np.asarray(model.apply(variables, images, train=False), np.float64)
    labels = digits.test.labels
    losses = np.log(np.exp(logits).sum(-1)) - logits[np.arange(360), labels]
    predictions = logits.argmax(-1)
    return {
        "loss": losses.mean(),
        "accuracy": (predictions == labels).mean(),
        "predictions": predictions,
    }


BATCHES = [(7, "device"), (7, "host"), (100, "device"), (360, "host"), (1000, "auto")]


@pytest.mark.parametrize("batch_size, placement", BATCHES)
def test_evaluation_is_the_mean_over_all_images(
    model, variables, digits, wanted, batch_size, placement
):
    mesh = parallel.make_mesh()
    result = evaluate(
        make_eval_step(with_seed(0), model, digits, mesh),
        parallel.replicate(variables, mesh),
        parallel.Feed(digits.test, mesh, placement),
        batch_size,
    )
    assert result["images"] == 360
    assert result["accuracy"] == wanted["accuracy"]  # of counts: exact
    assert 0 < result["accuracy"] < 1
    np.testing.assert_allclose(result["loss"], wanted["loss"], rtol=1e-5)


def test_every_image_has_the_same_say(model, variables, digits, wanted):
    """A label that turns wrong costs 1/360: of the first and of the last image."""
    mesh = parallel.make_mesh(jax.devices()[:1])
    step = make_eval_step(with_seed(0), model, digits, mesh)
    on_device = parallel.replicate(variables, mesh)

    def correct(labels: np.ndarray) -> int:
        feed = parallel.Feed(data.Split(digits.test.images, labels), mesh)
        return round(evaluate(step, on_device, feed, 100)["accuracy"] * 360)

    right = wanted["predictions"].astype(np.int32)
    assert correct(right) == 360
    for row in (0, 299, 300, 358, 359):
        labels = right.copy()
        labels[row] = (labels[row] + 1) % 10
        assert correct(labels) == 359


def small_vit(class_token: str):
    """A Vision Transformer without a stem, read from its class token alone."""
    fields = vit()
    fields.update(stem_width=0, width=8, num_layers=1, num_heads=2, head_dim=4)
    fields.update(mlp_dim=8, class_token=class_token, readout="token")
    network = models.build(fields, 10)
    draw = jax.jit(lambda rng: models.initial_variables(network, rng, (8, 8, 1)))
    variables = jax.device_get(draw(jax.random.key(2)))
    embedding = variables["params"]["embedding"]
    embedding["kernel"] = 3 * embedding["kernel"]
    return network, variables


def losses_of_images(network, variables, digits, seed, batch_size, placement, devices):
    """Loss of the test set, and of its images 5 to 7 by themselves."""
    mesh = parallel.make_mesh(jax.devices()[:devices])
    step = make_eval_step(with_seed(seed), network, digits, mesh)
    on_devices = parallel.replicate(variables, mesh)
    feed = parallel.Feed(digits.test, mesh, placement)
    whole = evaluate(step, on_devices, feed, batch_size)
    rows, ones = np.array([5, 6, 7], np.int32), np.ones(3, np.float32)
    few = step(on_devices, feed(rows), rows, ones)
    return whole["loss"], whole["accuracy"], float(np.asarray(few.loss))


def test_a_random_class_token_comes_from_the_seed_and_the_images_index(digits):
    network, variables = small_vit("random")
    losses = functools.partial(losses_of_images, network, variables, digits)
    wanted = losses(0, 100, "device", 1)
    for batch_size, placement, devices in ((7, "host", 8), (360, "device", 8)):
        found = losses(0, batch_size, placement, devices)
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
        assert found[1] == wanted[1]  # of counts: exact
    other = losses(1, 100, "device", 1)
    assert abs(other[0] - wanted[0]) > 1e-4 and abs(other[2] - wanted[2]) > 1e-3


def test_the_same_image_at_another_index_has_another_token(digits):
    """Else all images of a set would share one."""
    network, variables = small_vit("random")
    mesh = parallel.make_mesh(jax.devices()[:1])
    step = make_eval_step(with_seed(0), network, digits, mesh)
    twice = data.Split(digits.test.images[[3, 3]], digits.test.labels[[3, 3]])
    feed = parallel.Feed(twice, mesh)
    one = np.ones(1, np.float32)
    first, second = (
        float(np.asarray(step(variables, feed(row), row, one).loss))
        for row in (np.array([0], np.int32), np.array([1], np.int32))
    )
    assert abs(first - second) > 1e-3


def test_a_learned_class_token_takes_nothing_from_the_seed(digits):
    network, variables = small_vit("learned")
    losses = functools.partial(losses_of_images, network, variables, digits)
    assert losses(0, 100, "device", 1) == losses(1, 100, "device", 1)


def test_without_a_seed_a_model_draws_for_the_first_images():
    """`apply` by itself draws as evaluation with seed 0 does for images 0, 1, ..."""
    network, variables = small_vit("random")
    images = jnp.asarray(np.random.default_rng(0).normal(size=(3, 8, 8, 1)), "float32")
    apply = functools.partial(network.apply, variables, train=False)
    draws = models.evaluation_draws(network, jax.random.key(0), jnp.arange(3), 1)
    assert draws["class_token"].shape == (3, 4)
    assert (0 <= draws["class_token"]).all() and (draws["class_token"] < 1).all()
    np.testing.assert_array_equal(apply(images), apply(images, **draws))
    learned, _ = small_vit("learned")
    assert models.evaluation_draws(learned, jax.random.key(0), jnp.arange(3), 1) == {}


def test_variables_of_other_classes_are_refused_by_name(tiny_config, tmp_path):
    config = tiny_config()
    model = models.build(config.model, 3)
    variables = models.initial_variables(model, jax.random.key(0), (8, 8, 1))
    checkpoint.write_variables(tmp_path, config, jax.device_get(variables))
    with pytest.raises(UserError, match=r"classifier/bias has shape \(3,\), not \(10,"):
        Run(tmp_path).evaluate()


def test_evaluation_in_training_mode_goes_by_the_batch(tmp_path):
    """BatchNorm by each batch of 90; the running statistics do not count."""
    config = config_lib.base_config()
    config.model = config_lib.resnet("resnet10")
    config.model.width = 2
    config.dataset.update(name="digits_8x8")
    config.eval_batch_size = 90
    loaded = data.load(config.dataset)
    model = models.build(config.model, 10)
    variables = models.initial_variables(model, jax.random.key(0), (8, 8, 1))
    variables["batch_stats"] = jax.tree.map(lambda a: a + 3, variables["batch_stats"])
    checkpoint.write_variables(tmp_path / "eval", config, jax.device_get(variables))
    config.evaluate_in_training_mode = True
    checkpoint.write_variables(tmp_path / "train", config, jax.device_get(variables))
    images = data.normalize(loaded.test.images, loaded.mean, loaded.std)
    total = 0.0
    for start in range(0, 360, 90):
        batch = slice(start, start + 90)
        logits, _ = model.apply(
            variables, images[batch], train=True, mutable=["batch_stats"]
        )
        labels = loaded.test.labels[batch]
        log_probs = jax.nn.log_softmax(logits)
        total -= float(np.take_along_axis(log_probs, labels[:, None], 1).sum())
    in_training_mode = Run(tmp_path / "train").evaluate()
    np.testing.assert_allclose(in_training_mode["loss"], total / 360, rtol=1e-5)
    assert abs(Run(tmp_path / "eval").evaluate()["loss"] - total / 360) > 0.01


@pytest.mark.parametrize("content", ['{"seed": 1}', '{"dataset": "cifar10"}'])
def test_a_damaged_config_is_left_to_its_check(content, tmp_path):
    """With a `data_dir` of the user's, too, which has no place in it."""
    (tmp_path / "config.json").write_text(content)
    run = Run(tmp_path, data_dir="/data")
    with pytest.raises(UserError, match="is missing"):
        config_lib.check(run.config)
