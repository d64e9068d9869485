"""The command `analyze`: what it writes for a run of each kind, and what it refuses."""

import functools
import json
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from viewer_page import description

from attn_cnn_jax import checkpoint, train
from attn_cnn_jax import config as config_lib

ROOT = pathlib.Path(__file__).parent.parent


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """`runs(kind)`: the workdir of a run of one epoch on the 8 x 8 digits."""
    made: dict[str, pathlib.Path] = {}

    def make(kind):
        if kind not in made:
            config = config_lib.base_config()
            if kind == "resnet10":
                config.model = config_lib.resnet(kind)
                config.model.width = 2
            else:
                config.model = config_lib.self_attention(kind)
                config.model.update(width=16, num_layers=2, mlp_dim=16, num_heads=4)
            config.dataset.update(name="digits_8x8", crop_padding=1, flip=False)
            config.update(num_epochs=1, batch_size=200, snapshot_every_epochs=1)
            config.schedule.warmup_epochs = 0.0
            config.optimizer.learning_rate = 0.01
            made[kind] = tmp_path_factory.mktemp(kind) / f"{kind}_seed42"
            train.train(config, made[kind])
        return made[kind]

    return make


def analyze(*arguments, command="analyze"):
    """The finished process of the command."""
    command = [sys.executable, "-m", f"attn_cnn_jax.{command}", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


MANY = """
import contextlib, io, json, sys
from absl import flags
from attn_cnn_jax import analyze
from attn_cnn_jax.errors import UserError
done = []
for arguments in json.loads(sys.argv[1]):
    for name in flags.FLAGS:
        flags.FLAGS[name].unparse()
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            flags.FLAGS(["analyze", *arguments])
            analyze.main()
            error = None
        except UserError as refused:
            error = str(refused)
    done.append((error, said.getvalue()))
print(json.dumps(done))
"""


def analyze_each(*argument_lists):
    """(refusal or None, what was said) of each call, all in one process."""
    lists = json.dumps([[str(a) for a in arguments] for arguments in argument_lists])
    command = [sys.executable, "-c", MANY, lists]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_without_a_figure_all_that_the_run_shows_is_drawn(runs):
    workdir = runs("quadratic_isotropic")
    done = analyze(f"--workdir={workdir}", "--reorder")
    assert done.returncode == 0, done.stderr
    folder = workdir / "analysis"
    files = {path.stem for path in folder.glob("*.png")}
    centers = {"centers", "centers_end", "centers_layer_1"}
    assert files == centers | {
        *("query", "average", "heads", "curves"),
        *("closest_convolution", "convolution_epochs"),
    }
    for kind in ("pdf", "txt"):
        assert files == {path.stem for path in folder.glob(f"*.{kind}")}
    table = json.loads((folder / "heads.json").read_text())
    assert len(table["heads"]) == 8
    layers = json.loads((folder / "layers.json").read_text())
    assert [(one["layer"], one["kernel_size"]) for one in layers] == [
        (f"layer {number}", size) for number in (1, 2) for size in (1, 3)
    ]
    assert len((folder / "convolution_epochs.csv").read_text().splitlines()) == 5
    said = done.stdout.splitlines()
    assert said[0].startswith(f"Written to {folder}: curves, centers, ")
    assert re.search(r"checkpoint of step \d+ \(epoch 1\):", done.stdout)
    assert (
        len([line for line in said if line.startswith("layer ")]) == 3
    )  # one is title
    last = said[-1]
    assert "viewer.html (" in last and "2 checkpoints" in last


def test_an_image_of_the_users_own_is_resized_with_a_note(runs, tmp_path):
    path = tmp_path / "mine.png"
    Image.fromarray(np.zeros((40, 60, 3), np.uint8)).save(path)
    workdir = runs("learned_w_content")
    done = analyze(
        f"--workdir={workdir}",
        "--figure=average",
        f"--images={path}",
        "--average=received",
        f"--output={tmp_path / 'out'}",
    )
    assert done.returncode == 0, done.stderr
    assert "mine.png, 60 x 40 pixels, was cut" in done.stdout
    assert (tmp_path / "out/average_mine.pdf").exists()


REFUSED = {
    "no run": (["--workdir=/nowhere"], "is not the workdir of a run"),
    "nothing": ([], "--workdir=RUN is missing"),
    "figure": (["--figure=maps"], "there is no figure 'maps'"),
    "not its figure": (
        ["--figure=taps"],
        "has no figure 'taps'; it can show centers, centers_end, centers_layer, query, "
        "average, heads, closest_convolution, convolution_epochs, curves, viewer, "
        "ablation.",
    ),
    "width": (["--figure=curves", "--width=2"], "3 to 20 inches wide, not 2"),
    "format": (["--figure=curves", "--format=exe"], "png, pdf, svg, not as 'exe'"),
    "query": (["--figure=query", "--query=9,9"], "from 0,0 to 3,3"),
    "image": (["--figure=query", "--images=400"], "count from 0 to 359"),
    "layer": (
        ["--figure=centers_layer", "--layer=3"],
        "--layer=3: the layers are 1 to 2",
    ),
    "checkpoint": (["--checkpoint=7000"], "has no checkpoint 7000"),
    "count": (["--figure=heads", "--num_images=0"], "--num_images=0"),
    "kernels": (
        ["--figure=closest_convolution", "--kernels=3,4"],
        "kernel sizes are odd, from 1 on, not 3, 4.",
    ),
    "no kernels": (
        ["--figure=closest_convolution", "--kernels=x"],
        "--kernels=x; take",
    ),
    "cap": (["--figure=viewer", "--viewer_max_mb=0.001"], "--viewer_max_mb"),
    "no runs": (["--workdirs=/nowhere/*", "--figure=curves"], "no folder matches"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_drawn_is_one_line_and_status_2(runs, case):
    arguments, message = REFUSED[case]
    if arguments and not arguments[0].startswith("--workdir"):
        arguments = [f"--workdir={runs('quadratic_isotropic')}", *arguments]
    done = analyze(*arguments)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1 and message in done.stderr


def test_curves_of_several_runs(runs, tmp_path):
    folders = [runs("quadratic_isotropic"), runs("learned_w_content")]
    patterns = [f"--workdirs={folder.parent}/*" for folder in folders]
    done = analyze("--figure=curves", *patterns, f"--output={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "curves.png").exists()


@pytest.mark.parametrize(
    "old, new",
    [
        ("--prune --output=runs/Y --heads=1:2 --checkpoint=best", "attn_cnn_jax.prune"),
        ("--heads=1:1 --figure=heads", "attn_cnn_jax.prune"),
        (
            "--tables --workdirs=/nowhere/* --output=x",
            "attn_cnn_jax.results --workdirs",
        ),
        ("--tables --figure=nothing", "attn_cnn_jax.results --workdirs="),
    ],
)
def test_old_flags_name_the_new_command(old, new):
    done = analyze("--workdir=runs/X", *old.split())
    assert done.returncode == 2 and not done.stdout
    assert len(done.stderr.splitlines()) == 1
    assert f"is a command of its own now: python -m {new}" in done.stderr


CONTRADICTIONS = {
    "there is no figure 'foo'": ["--figure=heads,foo"],
    "drop them": ["--figure=heads", "--workdirs=/tmp"],
    "and not for query_mean": ["--figure=query_mean", "--by_key"],
    "--by_key is for --figure=query": ["--by_key"],
    "--viewer_max_mb=nan; take": ["--figure=viewer", "--viewer_max_mb=nan"],
    "--viewer_max_mb=inf; take": ["--figure=viewer", "--viewer_max_mb=inf"],
    "--viewer_max_mb=1e+304; take": ["--figure=viewer", "--viewer_max_mb=1e304"],
    "has no checkpoint ²; choose": ["--figure=query", "--checkpoint=²"],
    "has no checkpoint 999999": ["--figure=query", f"--checkpoint={'9' * 5000}"],
}


def test_flags_that_make_no_sense_are_refused_at_once(runs):
    workdir = f"--workdir={runs('quadratic_isotropic')}"
    cases = [[workdir, *arguments] for arguments in CONTRADICTIONS.values()]
    for message, (error, said) in zip(
        CONTRADICTIONS, analyze_each(*cases), strict=True
    ):
        assert message in error and "\n" not in error
        assert said == ""


def test_curves_need_no_checkpoint_and_no_evaluation(runs, tmp_path):
    """A run as it is before its first checkpoint, which is before its evaluation."""
    run, new = runs("quadratic_isotropic"), tmp_path / "new"
    new.mkdir()
    shutil.copy(run / "config.json", new)
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    lines = [line for line in lines if json.loads(line)["split"] == "train"]
    (new / "metrics.jsonl").write_text("".join(lines))
    out = tmp_path / "out"
    curves, both, all_of_it = analyze_each(
        [f"--workdir={new}", "--figure=curves", f"--output={out}"],
        [f"--workdir={new}", "--figure=heads,curves"],
        [f"--workdir={new}"],
    )
    assert curves[0] is None and (out / "curves.png").exists()
    for error, said in (both, all_of_it):
        assert "holds no checkpoint" in error
        assert "curves.png" in said or f"{new}/analysis: curves" in said


def test_what_cannot_be_drawn_does_not_stop_the_others(runs, tmp_path):
    """A workdir without metrics, as `prune` writes it, and a figure that fails."""
    workdir = tmp_path / "pruned"
    shutil.copytree(
        runs("learned_w_content"),
        workdir,
        ignore=shutil.ignore_patterns("metrics.jsonl", "analysis"),
    )
    (status, said), (error, _), (alone, _) = analyze_each(
        [f"--workdir={workdir}", "--threshold=2", "--num_images=5"],
        [f"--workdir={workdir}", "--figure=heads", "--threshold=2"],
        [f"--workdir={workdir}", "--figure=curves"],
    )
    assert status is None
    assert "curves: not drawn: none of these runs has scores" in said
    assert "heads: not drawn: the threshold of a mass is 2.0" in said
    drawn = {path.name for path in (workdir / "analysis").iterdir()}
    assert drawn >= {"query_test_00000.png", "average_test_00000.png", "viewer.html"}
    assert error.startswith("the threshold") and "none of these runs" in alone


def test_the_viewer_shows_another_run_beside(runs, tmp_path):
    """Runs that the globs name twice are shown once, and the run itself not beside."""
    workdir, other = runs("quadratic_isotropic"), runs("learned_w_content")
    flags = [f"--workdir={workdir}", f"--output={tmp_path}", "--figure=viewer"]
    globs = [f"--workdirs={folder.parent}/*" for folder in (other, workdir, other)]
    wrong = [*globs, f"--workdirs={runs('resnet10')}"]
    [(error, said), (refusal, _)] = analyze_each([*flags, *globs], [*flags, *wrong])
    assert error is None and "3 checkpoints up to epoch 1)" in said
    page = description((tmp_path / "viewer.html").read_text("ascii", "ignore"))
    assert [one["run"] for one in page["checkpoints"]] == [
        "learned_w_content_seed42",
        *["quadratic_isotropic_seed42"] * 2,
    ]
    assert all(one["accuracy"] for one in page["checkpoints"][::2])
    assert "resnet10_seed42 cannot be shown beside quadratic_isotropic" in refusal


def test_the_viewer_needs_no_scores(runs, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(runs("learned_w_content"), workdir)
    (workdir / "metrics.jsonl").write_text("no scores\n")
    done = analyze(f"--workdir={workdir}", "--figure=viewer")
    assert done.returncode == 0 and "viewer.html (" in done.stdout
    assert "warning: no test accuracy is told: " in done.stderr


def test_nothing_drawn_is_a_failure(runs, tmp_path):
    workdir = tmp_path / "run"
    ignored = shutil.ignore_patterns("metrics.jsonl")
    shutil.copytree(runs("resnet10"), workdir, ignore=ignored)
    [(error, said)] = analyze_each([f"--workdir={workdir}"])
    assert error == f"nothing of {workdir} could be drawn; see why above."
    assert "curves: not drawn" in said


def test_flags_reach_the_figures(runs, tmp_path):
    """Pictures that a flag changes differ from those without it; numbers are told."""
    workdir = f"--workdir={runs('learned_w_content')}"
    flags = {
        "query": [
            "--query=1,3",
            "--by_key",
            "--reorder",
            "--images=7",
            "--checkpoint=0",
            "--common_scale",
            "--title=off",
            "--width=5",
            "--dpi=100",
            "--font=serif",
        ],
        "average": ["--average=received"],
        "heads": ["--threshold=0.06"],
    }
    cases = [(figure, flag) for figure in flags for flag in ["", *flags[figure]]]
    calls = [
        [
            workdir,
            f"--figure={figure}",
            "--num_images=7",
            f"--output={tmp_path / str(i)}",
        ]
        + [flag] * bool(flag)
        for i, (figure, flag) in enumerate(cases)
    ]
    assert [error for error, _ in analyze_each(*calls)] == [None] * len(cases)
    drawn = [
        (figure, path.read_bytes())
        for i, (figure, _) in enumerate(cases)
        for path in (tmp_path / str(i)).glob(f"{figure}*.png")
    ]
    assert len(set(drawn)) == len(cases)
    table = json.loads((tmp_path / str(len(cases) - 1) / "heads.json").read_text())
    assert (table["threshold"], table["num_images"]) == (0.06, 7)


def test_the_ablation_tells_its_standard_errors(runs, tmp_path):
    [(status, said)] = analyze_each(
        [
            f"--workdir={runs('quadratic_isotropic')}",
            "--figure=ablation",
            "--num_images=40",
            f"--output={tmp_path}",
        ]
    )
    assert status is None
    numbers = json.loads((tmp_path / "ablation.json").read_text())
    assert f"standard error {numbers['standard_error']:.4f} (n = 40 images)" in said
    largest = max(sum(numbers["standard_errors"], []))
    assert f"of a head's change at most {largest:.4f}" in said


def test_prune_is_a_command(runs, tmp_path):
    """Its numbers are tested beside `pruning`; here the flags arrive."""
    workdir, new = runs("quadratic_isotropic"), tmp_path / "pruned"
    flags = [f"--workdir={workdir}", f"--output={new}"]
    done = analyze(*flags, "--heads=2:1,1:3", "--checkpoint=0", command="prune")
    assert done.returncode == 0, done.stderr
    assert "2 heads removed, layer:head 1:3 (as named), 2:1 (as named)" in done.stdout
    pruned, old = checkpoint.load(new), checkpoint.load(workdir, 0)
    assert pruned.config.model.num_heads == 3
    first = "params", "block_0", "attention", "centers"
    left, before = (
        functools.reduce(dict.get, first, c.variables) for c in (pruned, old)
    )
    np.testing.assert_array_equal(left, before[[0, 1, 3]])
    for wrong, message in [
        (flags[:1], "--output=NEW_RUN"),
        ([*flags[:1], f"--output={tmp_path / 'new'}", "--checkpoint=³"], "point ³;"),
        (flags, "already holds a run"),
    ]:
        done = analyze(*wrong, "--heads=1:1", command="prune")
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
        assert message in done.stderr
