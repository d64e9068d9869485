"""Evaluation counts each image once, whatever the size of its batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_cnn_jax import checkpoint, data, models, parallel
from attn_cnn_jax.config import self_attention
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.evaluate import evaluate, evaluate_run, make_eval_step


@pytest.fixture(scope="module")
def digits() -> data.Dataset:
    return data._load_digits(enlarge=False)


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
        make_eval_step(model, digits, mesh, 0),
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
    step = make_eval_step(model, digits, mesh, 0)
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


def test_variables_of_other_classes_are_refused_by_name(tiny_config, tmp_path):
    config = tiny_config()
    model = models.build(config.model, 3)
    variables = models.initial_variables(model, jax.random.key(0), (8, 8, 1))
    checkpoint.write_variables(tmp_path, config, jax.device_get(variables))
    with pytest.raises(UserError, match=r"classifier/bias has shape \(3,\), not \(10,"):
        evaluate_run(tmp_path)
