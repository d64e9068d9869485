"""The pixel of the pictures against a convolution and the layers' mixing."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention.layer import probs_of_rows
from attn_cnn_jax.models.scores import isotropic_axis_scores, mix
from attn_cnn_jax.theory import pictures

ROOT = Path(__file__).parents[2]
QUERY = (3, 2)


def command(*flags):
    return subprocess.run(
        [sys.executable, "-m", "attn_cnn_jax.theory", "pictures", *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


def test_the_convolution_is_that_of_lax():
    image = pictures.digit(11)
    pixel = pictures.convolved_pixel(image, QUERY)
    kernel = pictures.filter_kernel().reshape(3, 3, 1, 3).astype(np.float32)
    axes = ("NHWC", "HWIO", "NHWC")
    convolved = jax.lax.conv_general_dilated(
        jnp.asarray(image, jnp.float32)[None, ..., None],
        kernel,
        (1, 1),
        "SAME",
        dimension_numbers=axes,
    )
    np.testing.assert_allclose(pixel.output, convolved[0][QUERY], atol=1e-6)
    assert np.abs(pixel.output).min() > 0.05  # all three filters have something to say


def test_attention_is_that_of_the_layers_and_tends_to_the_convolution():
    image = pictures.digit(11)
    pixel = pictures.attended_pixel(image, QUERY, 1.5)
    centers, spreads = jnp.array(pictures.SHIFTS, jnp.float32), jnp.full(9, 1.5)
    probs = probs_of_rows(isotropic_axis_scores(centers, spreads, (8, 8)), 0, 8)
    kernel = jnp.asarray(pictures.filter_kernel()[:, None], jnp.float32)
    mixed = mix(jnp.asarray(image, jnp.float32)[None, ..., None], probs, kernel)
    np.testing.assert_allclose(pixel.output, mixed[0][QUERY], atol=1e-6)
    np.testing.assert_allclose(pixel.weights, probs[0][QUERY], atol=1e-6)
    convolved = pictures.convolved_pixel(image, QUERY).output
    errors = [
        np.abs(pictures.attended_pixel(image, QUERY, s).output - convolved).max()
        for s in (1.5, 3.0, 6.0)
    ]
    assert errors[0] > 0.02 and errors[1] < errors[0] / 4 and errors[2] < 1e-6


def test_the_command_writes_the_pictures_and_says_what_they_are(tmp_path):
    result = command(f"--output={tmp_path}", "--spread=6")
    assert result.returncode == 0, result.stderr
    *paths, convolved, attended, difference = result.stdout.splitlines()
    names = ("convolution_of_a_pixel", "attention_of_a_pixel")
    kinds = ("png", "pdf", "txt")
    wanted = [str(tmp_path / f"{n}.{kind}") for n in names for kind in kinds]
    assert paths == wanted and all(Path(path).stat().st_size for path in paths)
    output = pictures.convolved_pixel(pictures.digit(11), QUERY).output
    numbers = zip(pictures.FILTERS, output, strict=True)
    assert convolved == "convolution: " + ", ".join(f"{n} {v:.4f}" for n, v in numbers)
    assert attended.split(":")[1] == convolved.split(":")[1]
    assert 0 <= float(difference.split(": ")[1]) < 1e-5


def test_a_wrong_flag_is_told_in_a_line():
    result = command("--output=x", "--query=3")
    assert result.returncode == 2
    assert result.stderr == "error: --query=3; give row,column, such as 3,4.\n"


def test_what_no_picture_shows_is_refused():
    image = pictures.digit(359)
    for index in (-1, 360):
        with pytest.raises(
            UserError, match=f"--image={index}; the digits are 0 to 359"
        ):
            pictures.digit(index)
    for query in [(0, 3), (3, 7)]:
        with pytest.raises(UserError, match="rows 1 to 6 and columns 1 to 6"):
            pictures.convolved_pixel(image, query)
    for spread in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(UserError, match="--spread=.*; take a number above 0"):
            pictures.attended_pixel(image, QUERY, spread)
