"""What the viewer says of a run: it is what the run's own network and data say."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_cnn_jax.analysis.images import choose_images
from attn_cnn_jax.analysis.viewer import run_facts


@pytest.fixture
def run(make_run):
    return make_run("learned_w_content")


def test_predictions_are_those_of_the_evaluated_network(run):
    shown = choose_images(run.dataset, ["3", "0-1"])
    facts = run_facts([run], shown, [0.5])
    images, indices = jnp.asarray(shown.images), jnp.array([3, 0, 1])
    variables = jax.device_put(run.variables)
    logits = run.forward(variables, images, indices)
    expected = np.asarray(jax.nn.softmax(logits))
    np.testing.assert_allclose(facts.predictions[0], expected, atol=1e-6)
    for image, probabilities in enumerate(expected):
        guesses = facts.guesses(0, image)
        assert [index for index, _ in guesses] == list(np.argsort(-probabilities)[:3])
        assert guesses[0][1] == pytest.approx(probabilities.max(), abs=1e-5)
    assert facts.labels == tuple(run.dataset.test.labels[[3, 0, 1]])
    assert facts.class_names == run.dataset.class_names
    assert facts.about == "self_attention, learned_w_content on digits_8x8"
    assert facts.accuracies == [0.5] and facts.notes == ()


def test_images_are_predicted_in_batches_of_one_size(run):
    run.config.eval_batch_size = 2
    shown = choose_images(run.dataset, ["0-4"])
    found = run_facts([run], shown, [None]).predictions[0]
    run.config.eval_batch_size = 100
    whole = run_facts([run], shown, [None]).predictions[0]
    assert found.shape == (5, 10)
    np.testing.assert_allclose(found, whole, atol=1e-6)
    assert run.predict._cache_size() == 2  # programs: of two images, and of five


def test_an_image_of_the_users_own_has_no_label(run):
    shown = choose_images(run.dataset, ["0"])
    own = dataclasses.replace(shown, indices=(len(run.dataset.test),))
    assert run_facts([run], own, [None]).labels == (None,)


def test_the_mode_of_evaluation_is_said_where_it_differs(run):
    run.config.evaluate_in_training_mode = True
    shown = choose_images(run.dataset, ["0"])
    (note,) = run_facts([run], shown, [None]).notes
    assert "test accuracy is that of training mode" in note
