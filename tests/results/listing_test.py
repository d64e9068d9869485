"""The list of configs: its numbers are those of the tables and of the runs."""

import types

from attn_cnn_jax import config as config_lib
from attn_cnn_jax.results import listing, published
from attn_cnn_jax.results.runs import Score


def complete(row_name: str, accuracy: float, finished: bool = True):
    row = next(row for row in published.rows() if row.name == row_name)
    return types.SimpleNamespace(
        row=row, finished=finished, best=Score(1, accuracy), final=None
    )


def test_each_config_has_a_line_with_what_is_known():
    runs = [complete("vit", 0.84), complete("vit", 0.85), complete("vit", 0.1, False)]
    found = {line[0]: line[1:] for line in listing.lines(runs)}
    assert found.keys() == {path.stem for path in config_lib.folder().glob("*.py")}
    assert found["vit"][:4] == ("37,394,506", "", "84.3", "84.5 (n = 2)")
    assert found["quadratic_isotropic"][:4] == ("12,086,844", "93.8", "94.3", "")
    assert found["laptop"][1:4] == ("", "", "")
    assert all(line[-1] for line in found.values())


def test_columns_stand_below_each_other():
    text = listing.as_text([("a", "1,000", "", "9.5", "", "A"), ("long", *"1    B")])
    assert text.splitlines() == [
        "config  parameters  paper  report  yours",
        "a            1,000            9.5         A",
        "long             1                        B",
    ]
