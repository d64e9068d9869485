"""Which run is which row, and the published numbers as they were printed."""

import json
import re
import runpy
import tomllib
from pathlib import Path

import pytest
from ml_collections import ConfigDict

from attn_cnn_jax import config as config_lib
from attn_cnn_jax.config import files
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.results import published, tables
from attn_cnn_jax.results.runs import read_run
from attn_cnn_jax.results.table_text import to_csv, to_markdown

ROOT = Path(__file__).parents[2]
NO_ROW = {"laptop", "quickstart"}
ROWS = {row.config_name: row for row in published.rows()}
LINES = [
    pytest.param(number, line, id=f"{number} {line['row']}")
    for number in "123"
    for line in published.load()["tables"][number]["lines"]
]


def names_in_table_4():
    lines = published.load()["tables"]["4"]["lines"]
    return [name for line in lines for name in line["configs"]]


@pytest.mark.parametrize("name", sorted(p.stem for p in ROOT.glob("configs/*.py")))
def test_every_config_is_its_row_as_published(name, make_run):
    run = read_run(make_run("run", name, {}))
    assert (run.row and run.row.config_name) == (None if name in NO_ROW else name)
    assert run.differences == ()


@pytest.mark.parametrize("name", [name for name in ROWS if ":" in name])
def test_every_published_way_of_training_a_row_is_the_row(name, make_run):
    run = read_run(make_run("run", name, {}))
    assert (run.row.name, run.row.config_name) == (name.partition(":")[0], name)
    assert run.differences == ()


def test_a_label_is_that_of_the_first_table():
    """The line of Table 3 says of which pair it is."""
    assert ROWS["learned_w_content"].label == "Learned embedding w/ content"
    assert ROWS["vit_ha"].label == "Vision Transformer (HA)"


def test_every_line_has_a_config_that_exists():
    """Each published number has a config, and Table 4 names every one of them."""
    names = names_in_table_4()
    for name in names:
        published.load_config(name)
    lines = [line for parameter in LINES for line in parameter.values[1:]]
    in_tables = {line["row"] for line in lines}
    in_tables |= {name for x in lines for name in x.get("measured_with", {}).values()}
    assert in_tables <= set(names) and len(set(names)) == len(names)
    assert {name.partition(":")[0] for name in names} == {x["row"] for x in lines}
    there = {path.stem for path in config_lib.folder().glob("*.py")}
    assert there - NO_ROW == {name.partition(":")[0] for name in names}


@pytest.mark.parametrize(("number", "line"), LINES)
def test_every_number_of_the_report_stands_beside_its_network(number, line):
    """Or a footnote names the config that it was measured with, which has a line."""
    other = line.get("measured_with", {}).get("report")
    if other is not None:
        lines = published.load()["tables"][number]["lines"]
        [own] = [x for x in lines if x["row"] == other.partition(":")[0]]
        assert own["report"] == line["report"]
    elif "report" in line and line["row"] in ROWS:
        model = ROWS[line["row"]].config.model
        papers = model.name == "self_attention" and model.attention_dense
        assert not papers or "report" in line.get("sources", {})


@pytest.mark.parametrize(
    ("number", "row", "config"),
    [
        (1, "resnet18", "resnet18:report"),
        (1, "quadratic_isotropic", "quadratic_isotropic_report:batch32"),
        (1, "quadratic_nonisotropic", "quadratic_nonisotropic_report"),
        (1, "learned_wo_content", "learned_wo_content_report"),
        (1, "learned_w_content", "learned_w_content_report"),
        (2, "quadratic_isotropic_16heads", "quadratic_isotropic_report_16heads"),
        (2, "learned_wo_content_16heads", "learned_wo_content_report_16heads"),
        (2, "learned_w_content_16heads", "learned_w_content_report_16heads"),
    ],
)
def test_a_number_of_another_network_has_a_footnote(
    number, row, config, values, notes_of
):
    table = tables.table(number, [])
    [cell] = values(table, row, "report: accuracy")
    assert f"here config {config}, not config {row}." in notes_of(table, cell)


FIELDS = {**config_lib.flatten(ROWS["quadratic_isotropic"].config), "later.field": None}
COUNTING = sorted(FIELDS.keys() - config_lib.RESUMABLE - {"seed"})


def another(value):
    """A value that is not this one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return (*value, "more") if isinstance(value, tuple) else f"{value}x"


@pytest.mark.parametrize("field", COUNTING)
def test_a_run_differs_from_its_row_in_every_field(field):
    """One that no row knows is such a field too."""
    row = ROWS["quadratic_isotropic"]
    config = ConfigDict(row.config.to_dict())
    config.later = {}
    block, *parents, key = config, *field.split(".")
    for parent in parents:
        block = block[parent]
    with block.unlocked():
        block[key] = another(FIELDS[field])
    [text] = row.differences(config)
    assert text.startswith(f"{field} ") and " instead of " in text


def test_a_long_value_is_cut(make_run):
    run = read_run(make_run("run", "quadratic_isotropic", {}, init_from="x" * 200))
    assert run.differences == (f"init_from {'x' * 97}... instead of empty",)


@pytest.mark.parametrize(
    "fields",
    [
        {"seed": 7},
        {"dataset__data_dir": "elsewhere"},
        {"dataset__placement": "host"},
        {"log_every_steps": 1},
        {"eval_every_epochs": 10},
        {"eval_batch_size": 50},
    ],
)
def test_what_changes_no_number_changes_no_row(fields, make_run):
    a = read_run(make_run("a", "quadratic_isotropic", {}))
    b = read_run(make_run("b", "quadratic_isotropic", {}, **fields))
    assert a.identity == b.identity and b.differences == ()


def test_the_batch_counts_where_images_are_scored_with_it(make_run):
    a = read_run(make_run("a", "san_pairwise_ha", {}))
    b = read_run(make_run("b", "san_pairwise_ha", {}, eval_batch_size=50))
    assert a.identity != b.identity
    assert b.differences == ("eval_batch_size 50 instead of 100",)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"init_from": "runs/other"}, "init_from runs/other instead of empty"),
        ({"evaluate_in_training_mode": True}, "training_mode True instead of False"),
        ({"batch_size": 50}, "batch_size 50 instead of 100"),
        ({"optimizer__learning_rate": 0.01}, "learning_rate 0.01 instead of 0.1"),
        ({"optimizer__decay_exclude": ()}, "exclude empty instead of centers, spreads"),
        ({"schedule__name": "cosine_report"}, "cosine_report instead of cosine"),
        ({"dataset__validation_fraction": 0.1}, "validation_fraction 0.1 instead"),
        ({"model__compute_dtype": "bfloat16"}, "compute_dtype bfloat16 instead of"),
        ({"model__attention__center_std": 1.0}, "center_std 1.0 instead of 2.0"),
    ],
)
def test_another_protocol_is_told(fields, told, make_run, values, notes_of):
    run = read_run(make_run("run", "quadratic_isotropic", {300: 0.9}, **fields))
    table = tables.table(1, [run])
    [status] = values(table, "quadratic_isotropic", "status")
    assert status.value == "other protocol"
    assert told in notes_of(table, status)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("quadratic_isotropic", {"dataset__name": "cifar100"}),
        ("quadratic_isotropic", {"dataset__name": "digits"}),
        ("quadratic_isotropic", {"model__num_heads": 8}),
        ("quadratic_isotropic", {"model__width": 200}),
        ("quadratic_isotropic", {"model__num_layers": 4}),
        ("quadratic_isotropic", {"model__mlp_dim": 400}),
        ("quadratic_isotropic", {"model__patch_size": 4}),
        ("learned_w_content", {"model__attention__name": "learned_query_position"}),
        ("san_patchwise", {"model__num_blocks": (3, 2, 3, 5)}),
        ("san_patchwise_ha", {"model__kernel_size": 7}),
        ("vit", {"model__stem_width": 0}),
        ("vit_ha", {"model__class_token": "learned"}),
    ],
)
def test_another_network_or_other_data_is_no_row(name, fields, make_run):
    run = read_run(make_run("run", name, {}, **fields))
    assert run.row is None and run.differences == ()


def test_a_network_that_cannot_be_built_is_no_row(make_run):
    workdir = make_run("run", "resnet18", {})
    config = json.loads((workdir / "config.json").read_text())
    config["model"]["kernel_size"] = 7
    (workdir / "config.json").write_text(json.dumps(config))
    with pytest.warns(UserWarning, match="cannot be counted.*kernel_size"):
        assert read_run(workdir).row is None


@pytest.mark.parametrize(
    ("name", "fields", "row", "told"),
    [
        ("quadratic_isotropic", {"share_weights": True}, "quadratic_isotropic_ha", []),
        ("vit", {"share_weights": True}, "vit_ha", []),
        ("vit_standard_ha", {"share_weights": False}, "vit_standard", []),
        ("san_patchwise", {"attention": "pairwise"}, "san_pairwise", []),
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
    ],
)
def test_a_network_makes_the_row(name, fields, row, told, make_run):
    """A published accident put right is told."""
    fields = {f"model__{field}": value for field, value in fields.items()}
    run = read_run(make_run("run", name, {}, **fields))
    assert run.row.name == row
    assert len(run.differences) == len(told)
    assert all(b in a for a, b in zip(run.differences, told, strict=True))


def test_of_several_ways_of_training_the_nearest_counts(make_run):
    drops = make_run("a", "resnet18", {}, batch_size=50)
    cosine = make_run("b", "resnet18:cosine", {}, batch_size=50)
    for workdir, name in ((drops, "resnet18"), (cosine, "resnet18:cosine")):
        run = read_run(workdir)
        assert run.row.config_name == name
        assert run.differences == ("batch_size 50 instead of 100",)


def test_a_run_recorded_before_a_field_existed_is_its_row(make_run):
    workdir = make_run("run", "quadratic_isotropic", {})
    new = read_run(workdir).identity
    config = json.loads((workdir / "config.json").read_text())
    for field in ("init_from", "label_smoothing", "evaluate_in_training_mode"):
        del config[field]
    del config["optimizer"]["nesterov"], config["model"]["share_weights"]
    (workdir / "config.json").write_text(json.dumps(config))
    old = read_run(workdir)
    assert old.row.name == "quadratic_isotropic" and old.differences == ()
    assert old.identity == new


# Fields in which a config follows the report's code and not its Table 4.
BY_THE_CODE = {"quadratic_isotropic_report:batch32": {"batch_size"}}


@pytest.mark.parametrize("name", ROWS)
def test_every_config_trains_as_table_4_says(name):
    content = published.load()["tables"]["4"]
    [line] = [line for line in content["lines"] if name in line["configs"]]
    said = {**content["common"], **line}
    fields = config_lib.flatten(ROWS[name].config)
    skipped = {"label", "configs", "source"} | BY_THE_CODE.get(name, set())
    for field in said.keys() - skipped:
        value, ours = said[field], fields[field]
        if field == "schedule.name":
            ours = ours.partition("_")[0]  # all cosines are "cosine" there
        assert ours == (tuple(value) if isinstance(value, list) else value), field


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
REPORTS = ", the report's layer"  # at the end of a label: a line of ours


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
    found = [
        [label, *(line[key] for key in keys)]
        for label, line in lines.items()
        if not label.endswith(REPORTS)
    ]
    assert found == printed(TABLE_1)
    flops = {line["config"]: line["paper: FLOPs"] for line in lines.values()}
    for config, shown in flops.items():
        assert shown == (f"{FLOPS[config]} G" if config in FLOPS else "-")
    assert FLOPS.keys() < flops.keys()


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
            about = {"row", "label", "sources", "measured_with"}
            numbers = line.keys() - about
            assert numbers <= content[number]["columns"].keys()
            for key in ("sources", "measured_with"):
                assert line.get(key, {}).keys() <= numbers
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


def test_configs_are_packaged(monkeypatch):
    setuptools = pytest.importorskip("setuptools", reason="the build has its own")
    said = {}
    monkeypatch.setattr(setuptools, "setup", lambda **fields: said.update(fields))
    monkeypatch.chdir(ROOT)
    runpy.run_path("setup.py")
    assert said["package_dir"] == {"attn_cnn_jax.configs": "configs"}
    inits = ROOT.glob("attn_cnn_jax/**/__init__.py")
    ours = {".".join(path.parent.relative_to(ROOT).parts) for path in inits}
    assert set(said["packages"]) == {*ours, "attn_cnn_jax.configs"}


def test_configs_are_found_in_the_package_or_beside_it(monkeypatch, tmp_path):
    assert config_lib.folder() == ROOT / "configs"
    package = tmp_path / "site-packages/attn_cnn_jax"
    monkeypatch.setattr(files, "__file__", str(package / "config/files.py"))
    (package / "configs").mkdir(parents=True)
    assert config_lib.folder() == package / "configs"
    with pytest.raises(UserError, match=r"no config file .*resnet18\.py"):
        published.load_config("resnet18:cosine")
