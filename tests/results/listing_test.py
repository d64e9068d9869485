"""The list of configs: its numbers are those of the tables and of the runs."""

import re

from attn_cnn_jax import config as config_lib
from attn_cnn_jax.results import listing
from attn_cnn_jax.results.runs import read_run


def test_each_config_has_a_line_with_what_is_known(make_run):
    runs = [
        read_run(make_run("a", "vit", {100: 0.84}, seed=1)),
        read_run(make_run("b", "vit", {90: 0.85, 100: 0.2}, seed=2)),
        read_run(make_run("c", "vit", {30: 0.99}, seed=3)),  # it is not complete
    ]
    found = {line[0]: line[1:] for line in listing.lines(runs)}
    assert found.keys() == {path.stem for path in config_lib.folder().glob("*.py")}
    assert found["vit"][:4] == ("37,394,506", "", "84.3", "84.5 (n = 2)")
    assert found["quadratic_isotropic"][:4] == ("12,086,844", "93.8", "94.3", "")
    assert found["laptop"][1:4] == ("", "", "")
    assert all(line[-1] for line in found.values())


def test_the_readme_lists_the_rows_with_their_parameters():
    readme = (config_lib.folder().parent / "README.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `(\w+)\.py` \| ([\d,]+) \|", readme, re.MULTILINE))
    found = {line[0]: line[1] for line in listing.lines([])}
    assert listed == {
        name: count
        for name, count in found.items()
        if name not in ("laptop", "quickstart")
    }


def test_columns_stand_below_each_other():
    text = listing.as_text(
        [("a", "1,000", "", "9.5", "", "A"), ("long", "1", "", "", "", "B")]
    )
    assert text.splitlines() == [
        "config  parameters  paper  report  yours",
        "a            1,000            9.5         A",
        "long             1                        B",
    ]
