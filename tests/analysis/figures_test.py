"""Figures of a run by name, where no trained run is needed to see what they say."""

import types

import matplotlib.text
import numpy as np

from attn_cnn_jax.analysis import figures
from attn_cnn_jax.analysis.heads import head_statistics
from attn_cnn_jax.analysis.subject import Subject


def test_the_heads_picture_names_the_layers_that_it_leaves_out(heads):
    """Windows of 3 x 3 on 8 x 9, and on 2 x 2, where no query is interior."""
    layers = [np.full((1, *grid, 9, 3), 1 / 9, np.float32) for grid in ((8, 9), (2, 2))]
    subject = object.__new__(Subject)  # of these numbers, without a run behind them
    vars(subject).update(
        numbers=head_statistics(heads.maps(*layers, kind="taps")),
        run=types.SimpleNamespace(title="a run", layers=[("layer 1", layers[0])]),
    )
    ((name, figure),) = figures.FIGURES["heads"](subject)
    words = " ".join(t.get_text() for t in figure.findobj(matplotlib.text.Text)).split()
    assert name == "heads"
    assert "grid too small for numbers: layer 2" in " ".join(words)
    assert "0 of 3 planes cover 0 offsets" in " ".join(words)
