"""The numbers as files and as text: what was computed is what is written."""

import csv
import json

import numpy as np
import pytest

from attn_cnn_jax.analysis.heads import as_text, head_statistics, write_csv, write_json

GRID = (6, 7)


@pytest.fixture
def table(heads):
    layer = np.stack([heads.dirac((0, -1), GRID), heads.uniform(GRID)])[None]
    return head_statistics(heads.maps(layer, layer[:, ::-1]), threshold=0.6)


@pytest.fixture
def with_class(heads):
    mass = np.full((1, 1, *GRID), 0.25, np.float32)
    patches = 0.75 * heads.dirac((2, 0), GRID)[None, None]
    return head_statistics(heads.maps(patches, class_mass=[mass]))


def test_csv_has_a_line_for_each_head(table, with_class, tmp_path):
    write_csv(table, tmp_path / "heads.csv")
    with (tmp_path / "heads.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(line["layer"], line["head"]) for line in lines] == [
        ("layer 1", "1"),
        ("layer 1", "2"),
        ("layer 2", "1"),
        ("layer 2", "2"),
    ]
    assert lines[3]["covers"] == "True" and lines[2]["covers"] == "False"
    assert (lines[3]["best_row"], lines[3]["best_column"]) == ("0", "-1")
    assert float(lines[3]["expected_column"]) == -1
    assert float(lines[0]["entropy"]) == 0
    assert float(lines[1]["entropy"]) == table.heads[1].entropy > 3
    for line in lines:
        assert line["run"] == "by_hand_seed1" and line["step"] == "20"
        assert line["num_images"] == "1" and line["threshold"] == "0.6"
        assert line["radius"] == "2" and line["class_mass"] == ""
        assert (line["grid_height"], line["grid_width"]) == ("6", "7")
        assert line["weights"] == "probabilities"
    write_csv(with_class, tmp_path / "heads.csv")
    with (tmp_path / "heads.csv").open(newline="") as file:
        (line,) = csv.DictReader(file)
    assert float(line["class_mass"]) == 0.25


def test_json_has_the_layers_too(table, tmp_path):
    write_json(table, tmp_path / "heads.json")
    content = json.loads((tmp_path / "heads.json").read_text())
    assert content["run"] == "by_hand_seed1" and content["threshold"] == 0.6
    assert content["layers"][1]["covered"] == [[0, -1]]
    assert content["layers"][1]["kernel_size"] == 0
    assert content["heads"][0]["best_offset"] == [0, -1]
    assert content["heads"][1]["entropy"] == table.heads[1].entropy


def test_text_says_what_was_computed_from_what(table, with_class, heads):
    text = as_text(table)
    assert "by_hand_seed1, step 20 (epoch 2.5), 1 image." in text
    assert "from a mass of 0.6" in text and "shares" not in text
    (line,) = [x for x in text.splitlines() if x.startswith("layer 2     2")]
    assert "(+0.00, -1.00)" in line and "yes" in line and "1.000" in line
    assert "class token" not in text
    assert "class token" in as_text(with_class) and "0.250" in as_text(with_class)
    assert "1 x 1" not in text and text.count("none") == 2
    assert max(map(len, text.splitlines())) <= 100


def test_text_says_that_weights_became_shares(heads):
    weights = np.ones((1, 6, 6, 9, 2), np.float32)
    taps = heads.maps(weights, weights[:, :2, :2], kind="taps", softmaxed=False)
    text = as_text(head_statistics(taps))
    assert "these are shares |w| / sum |w|" in text
    assert "Too small a grid for these numbers: layer 2." in text
