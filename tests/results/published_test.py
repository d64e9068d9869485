"""Which run is which row, and the published numbers as they were printed."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from attn_cnn_jax.results import published, tables
from attn_cnn_jax.results.tables import to_csv, to_markdown

ROOT = Path(__file__).parents[2]
NO_ROW = {"laptop", "quickstart"}


@pytest.mark.parametrize("name", sorted(p.stem for p in ROOT.glob("configs/*.py")))
def test_every_config_is_its_row_as_published(name, make_run):
    """A config that is not has a field that `published.json` does not know yet."""
    run = tables.read_run(make_run("run", name, {}))
    if name in NO_ROW:
        assert run.row is None
        return
    assert run.row is not None and run.row.name == name
    assert run.row.differences(run.fields) == ()


def test_both_schedules_of_resnet18_are_published(make_run):
    run = tables.read_run(make_run("run", "resnet18:cosine", {}))
    assert run.row.differences(run.fields) == ()


@pytest.mark.parametrize(
    "fields",
    [
        {"dataset__name": "cifar100"},
        {"dataset__name": "digits"},
        {"model__num_heads": 8},
        {"model__width": 200},
        {"model__num_layers": 4},
        {"model__mlp_dim": 400},
        {"model__patch_size": 4},
    ],
)
def test_another_network_or_other_data_is_no_row(fields, make_run):
    assert tables.read_run(
        make_run("run", "quadratic_isotropic", {}, **fields)
    ).row is (None)


def test_another_attention_is_no_row(make_run):
    workdir = make_run(
        "run", "learned_w_content", {}, model__attention__name="learned_query_position"
    )
    assert tables.read_run(workdir).row is None


@pytest.mark.parametrize(
    "fields",
    [
        {"seed": 7},
        {"dataset__data_dir": "elsewhere"},
        {"dataset__placement": "host"},
        {"log_every_steps": 1},
        {"eval_every_epochs": 10},
    ],
)
def test_what_changes_no_number_changes_no_row(fields, make_run):
    a = tables.read_run(make_run("a", "quadratic_isotropic", {}))
    b = tables.read_run(make_run("b", "quadratic_isotropic", {}, **fields))
    assert a.identity == b.identity and b.row.differences(b.fields) == ()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"batch_size": 50}, "batch_size 50 instead of 100"),
        ({"num_epochs": 60}, "num_epochs 60 instead of 300"),
        ({"optimizer__learning_rate": 0.01}, "learning_rate 0.01 instead of 0.1"),
        ({"optimizer__momentum": 0.8}, "optimizer.momentum 0.8 instead of 0.9"),
        ({"optimizer__weight_decay": 0.0}, "weight_decay 0.0 instead of 0.0001"),
        ({"schedule__name": "multistep"}, "schedule.name multistep instead of cosine"),
        ({"schedule__warmup_epochs": 1.0}, "warmup_epochs 1.0 instead of 15"),
        ({"dataset__flip": False}, "dataset.flip False instead of True"),
        ({"dataset__validation_fraction": 0.1}, "validation_fraction 0.1 instead"),
        ({"model__dropout_rate": 0.0}, "model.dropout_rate 0.0 instead of 0.1"),
        ({"model__compute_dtype": "bfloat16"}, "compute_dtype bfloat16 instead of"),
        ({"model__attention__center_std": 1.0}, "center_std 1.0 instead of 2.0"),
    ],
)
def test_another_protocol_is_told(fields, told, make_run, values, notes_of):
    run = tables.read_run(make_run("run", "quadratic_isotropic", {300: 0.9}, **fields))
    table = tables.table(1, [run])
    [status] = values(table, "quadratic_isotropic", "status")
    assert told in notes_of(table, status)
    assert "instead of" in notes_of(table, status)


def test_a_field_of_the_model_that_nobody_published_is_told(make_run):
    workdir = make_run("run", "resnet18", {})
    config = json.loads((workdir / "config.json").read_text())
    config["model"]["kernel_size"] = 7
    (workdir / "config.json").write_text(json.dumps(config))
    with pytest.warns(UserWarning, match="cannot be counted.*kernel_size"):
        run = tables.read_run(workdir)
    assert run.row.differences(run.fields) == (
        "model.kernel_size 7, of which nothing was published",
    )


def test_sharing_weights_tells_rows_apart_and_its_absence_means_no(make_run):
    fields = tables.read_run(make_run("run", "quadratic_isotropic", {})).fields
    shared = {**fields, "model.share_weights": True}
    assert published.find_row(shared).name == "quadratic_isotropic_ha"
    plain = {**fields, "model.share_weights": False}
    assert published.find_row(plain).name == "quadratic_isotropic"
    assert published.canonical(plain) == published.canonical(fields)


@pytest.mark.parametrize(
    ("name", "fields", "row", "told"),
    [
        ("vit", {"share_weights": True}, "vit_ha", []),
        ("vit_standard_ha", {"share_weights": False}, "vit_standard", []),
        ("vit_ha", {"class_token": "learned"}, "vit_ha", ["class_token learned"]),
        (
            "vit",
            {"normalized_residual": False},
            "vit",
            ["normalized_residual False instead of True"],
        ),
        (
            "san_pairwise_ha",
            {"pre_activation": True, "num_sweeps": 2},
            "san_pairwise_ha",
            ["num_sweeps 2 instead of 1", "pre_activation True instead of False"],
        ),
        (
            "learned_w_content_ha",
            {"attention__transposed": True},
            "learned_w_content_ha",
            ["transposed True instead of False"],
        ),
        ("san_patchwise", {"num_blocks": (3, 2, 3, 5)}, None, []),
        ("san_patchwise", {"attention": "pairwise"}, "san_pairwise", []),
        ("san_patchwise_ha", {"kernel_size": 7}, None, []),
        ("vit", {"stem_width": 0}, None, []),
    ],
)
def test_rows_of_table_3(name, fields, row, told, make_run):
    """Sizes and sharing make the row; a published accident put right is told."""
    fields = {f"model__{field}": value for field, value in fields.items()}
    run = tables.read_run(make_run("run", name, {}, **fields))
    assert (run.row and run.row.name) == row
    if run.row is not None:
        found = run.row.differences(run.fields)
        assert len(found) == len(told)
        assert all(text in line for text, line in zip(told, found, strict=True))


@pytest.mark.parametrize(
    ("name", "fields", "told"),
    [
        ("vit", {"optimizer__nesterov": False}, "nesterov False instead of True"),
        ("san_patchwise", {"label_smoothing": 0.0}, "label_smoothing 0.0 instead"),
        ("san_patchwise_ha", {"dataset__crop_padding": 4}, "crop_padding 4 instead"),
        ("learned_w_content_ha", {"optimizer__decay_exclude": ("scale",)}, "scale"),
    ],
)
def test_another_training_than_the_reports_is_told(name, fields, told, make_run):
    run = tables.read_run(make_run("run", name, {}, **fields))
    (line,) = run.row.differences(run.fields)
    assert told in line


def test_no_run_can_be_two_rows():
    rows = list(published.rows().values())
    for row in rows:
        fields = {"dataset.name": "cifar10", **row.model}
        assert [other.name for other in rows if other.matches(fields)] == [row.name]
        assert row.protocols


# As the report prints them: Tables 1, 2, 3 and 4.
TABLE_1 = """
ResNet18	0.938	0.946	11.2M
Quadratic embedding (isotropic)	0.938	0.943	12.1M
Quadratic embedding (non-isotropic)	0.934	0.939	12.1M
Learned embedding w/o content	0.918	0.904	12.3M
Learned embedding w/ content	0.871	0.864	29.5M
"""
TABLE_2 = """
Quadratic embedding	0.931
Learned embedding w/o content	0.912
Learned embedding w/ content	0.856
"""
TABLE_3 = """
Learned embedding w/ content	0.871	29.5M	5.374	0.910	4.75M	4.703
SAN Pairwise (subtraction)	0.818	3.74M	16.586	0.853	0.35M	12.913
SAN Patchwise (subtraction)	0.857	3.74M	9.773	0.912	0.36M	7.419
Vision Transformer	0.843	37.4M	7.094	0.877	6.53M	6.302
"""
TABLE_4 = """
ResNet18	300	100	SGD	0.1	Cosine	10
Quadratic emb.	300	100	SGD	0.1	Cosine	15
Learned emb. w/o content	300	100	SGD	0.1	Cosine	15
Learned emb. w/ content (SA/HA)	300	100	SGD	0.1	Cosine	15
SAN Pairwise (SA)	300	256	SGD	0.1	Multistep	100, 200, 250
SAN Patchwise (SA)	300	256	SGD	0.1	Multistep	100, 200, 250
Vision Transformer (SA)	100	32	SGD	0.01	Cosine	5
SAN Pairwise (HA)	300	40	SGD	0.1	Cosine	10
SAN Patchwise (HA)	300	100	SGD	0.1	Cosine	10
Vision Transformer (HA)	100	32	SGD	0.01	Cosine	5
"""
FLOPS = {"resnet18": "1.1", "quadratic_isotropic": "6.2"}
FLOPS |= {"learned_wo_content": "6.2", "learned_w_content": "15"}


def printed(text: str) -> list[list[str]]:
    return [line.split("\t") for line in text.strip().splitlines()]


@pytest.fixture
def lines_by_label(parse_markdown):
    """`lines_by_label(number)`: a table's cells by label and heading, without marks."""

    def read(number):
        (header, *lines), _ = parse_markdown(to_markdown(tables.table(number, [])))
        clean = [[re.sub(r" \[\d+\]", "", cell) for cell in line] for line in lines]
        return {line[0]: dict(zip(header, line, strict=True)) for line in clean}

    return read


def test_table_1_is_as_printed(lines_by_label):
    lines = lines_by_label(1)
    keys = ("paper: accuracy", "report: accuracy", "published: parameters")
    found = [[label, *(line[key] for key in keys)] for label, line in lines.items()]
    assert found == printed(TABLE_1)
    flops = {line["config"]: line["paper: FLOPs"] for line in lines.values()}
    expected = {name: f"{value} G" for name, value in FLOPS.items()}
    assert flops == {**expected, "quadratic_nonisotropic": "-"}


def test_table_2_is_as_printed(lines_by_label):
    lines = lines_by_label(2)
    for label, accuracy in printed(TABLE_2):
        assert lines[label]["report: accuracy"] == accuracy


def test_table_3_is_as_printed(lines_by_label):
    lines = lines_by_label(3)
    keys = ("report: accuracy", "published: parameters", "report: latency, ms")
    for label, *numbers in printed(TABLE_3):
        for kind, expected in (("SA", numbers[:3]), ("HA", numbers[3:])):
            assert [lines[f"{label} ({kind})"][key] for key in keys] == expected


def test_table_4_is_as_printed():
    table = tables.table(4, [])
    found = [
        [cell.value for cell in row]
        for row in table.rows
        if row[1].value == "report, Table 4"
    ]
    expected = printed(TABLE_4)
    assert len(found) == len(expected)
    for ours, line in zip(found, expected, strict=True):
        label, epochs, batch, _, rate, schedule, last = line
        assert ours == [label, "report, Table 4", None, int(epochs), int(batch)] + [
            float(rate),
            schedule.lower(),
            0.9,
            0.0001,
            last,
        ]


def test_every_published_number_has_a_source():
    content = published.load()["tables"]
    for number in "123":
        for line in content[number]["lines"]:
            numbers = line.keys() - {"row", "label", "sources"}
            assert numbers <= content[number]["columns"].keys()
            assert line["row"] in published.rows()
            assert line.get("sources", {}).keys() <= numbers
    assert all(content["4"][key] for key in ("source", "common"))
    assert "3740000" in to_csv(tables.table(3, []))


def test_what_confounds_a_table_stands_beside_it(parse_markdown):
    text = " ".join(parse_markdown(to_markdown(tables.table(3, [])))[1])
    for note in ("own is .864", "28.48M", "LayerNorm", "another network", "one seed"):
        assert note in text


def test_the_data_file_is_packaged():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    data = project["tool"]["setuptools"]["package-data"]
    assert "published.json" in data["attn_cnn_jax.results"]
