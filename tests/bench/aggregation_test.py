"""SAN's aggregation and the form that it is held against: alike, and both measured."""

import jax
import jax.numpy as jnp
import numpy as np

from attn_cnn_jax.bench import aggregation
from attn_cnn_jax.models import san

SMALL = {"batch_size": 2, "size": 8, "channels": 6, "planes": 2, "kernel_size": 3}


def test_both_forms_are_the_same_function():
    keys = jax.random.split(jax.random.key(0), 3)
    values = jax.random.normal(keys[0], (2, 5, 6, 6))
    weights = jax.random.normal(keys[1], (2, 5, 6, 9, 2))
    cotangent = jax.random.normal(keys[2], values.shape)
    results = [
        aggregation._gradients(form)(values, weights, cotangent)
        for form in (san.aggregate, aggregation.copied_out)
    ]
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), *results
    )
    loss, (by_values, by_weights) = results[1]
    assert loss.shape == ()
    assert (by_values.shape, by_weights.shape) == (values.shape, weights.shape)


def test_channel_c_is_weighed_by_plane_c_mod_g():
    weights = jnp.zeros((1, 3, 3, 9, 2)).at[0, :, :, 4, 1].set(1.0)  # the centre
    values = jnp.arange(1.0, 55.0).reshape(1, 3, 3, 6)
    weighed = aggregation.copied_out(values, weights)
    np.testing.assert_array_equal(weighed[..., 1::2], values[..., 1::2])
    assert not weighed[..., ::2].any()


def test_the_comparison_says_memory_and_time_of_both():
    record = aggregation.compare(**SMALL, steps=3, seconds=0.0)
    assert {key: record[key] for key in SMALL} == SMALL
    for measured, ratio in (("temp_bytes", "temp_ratio"), ("seconds", "seconds_ratio")):
        own, other = (record[measured][name] for name in ("aggregate", "copied_out"))
        assert other > 0 and record[ratio] == own / other
    neighbourhoods = 2 * 8 * 8 * 9 * 6 * 4
    assert record["temp_bytes"]["copied_out"] >= neighbourhoods
    text = aggregation.as_text(record)
    assert f"{record['temp_ratio']:.3f}" in text and "batch 2" in text
    assert "cpu" in text and "float32" in text
