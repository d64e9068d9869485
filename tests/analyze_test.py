"""The command `analyze`: what it writes for a run of each kind, and what it refuses."""

import json
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from attn_cnn_jax import config as config_lib
from attn_cnn_jax import train
from attn_cnn_jax.analysis import figures, parameters
from attn_cnn_jax.analysis.images import choose_images
from attn_cnn_jax.analysis.subject import Subject
from attn_cnn_jax.run import Run

ROOT = pathlib.Path(__file__).parent.parent
AXES = ("row", "col")


def small_san():
    config = config_lib.san_hierarchical("patchwise")
    config.update(width=32, num_passes=2)
    return config


def small_vit():
    config = config_lib.vit()
    config.update(stem_width=4, width=8, num_layers=2, num_heads=2, head_dim=8)
    config.mlp_dim = 8
    return config


def small_resnet():
    config = config_lib.resnet("resnet10")
    config.width = 2
    return config


MODELS = {"san": small_san, "vit": small_vit, "resnet": small_resnet}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """`runs(kind)`: the workdir of a run of one epoch on the 8 x 8 digits."""
    made: dict[tuple, pathlib.Path] = {}

    def make(kind, num_heads=4):
        key = kind, num_heads
        if key not in made:
            config = config_lib.base_config()
            if kind in MODELS:
                config.model = MODELS[kind]()
            else:
                config.model = config_lib.self_attention(kind)
                config.model.update(width=16, num_layers=2, mlp_dim=16)
                config.model.num_heads = num_heads
            config.dataset.update(name="digits_8x8", crop_padding=1, flip=False)
            config.update(num_epochs=1, batch_size=200, snapshot_every_epochs=1)
            config.schedule.warmup_epochs = 0.0
            config.optimizer.learning_rate = 0.01
            made[key] = tmp_path_factory.mktemp(kind) / f"{kind}_seed42"
            train.train(config, made[key])
        return made[key]

    return make


def analyze(*arguments):
    """The finished process of the command."""
    command = [sys.executable, "-m", "attn_cnn_jax.analyze", *map(str, arguments)]
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
            error = str(analyze.main())
        except UserError as refused:
            error = str(refused)
    done.append((error, said.getvalue()))
print(json.dumps(done))
"""


def analyze_each(*argument_lists):
    """(status or refusal, what was said) of each call, all in one process."""
    lists = json.dumps([[str(a) for a in arguments] for arguments in argument_lists])
    command = [sys.executable, "-c", MANY, lists]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


FILES = {
    "quadratic_isotropic": {
        "centers",
        "centers_end",
        "centers_layer_1",
        "query",
        "query_mean",
        "average",
        "heads",
        "curves",
    },
    "learned_wo_content": {
        "query",
        "query_mean",
        "average",
        "positions",
        "heads",
        "curves",
    },
    "learned_w_content": {"query", "query_mean", "average", "heads", "curves"},
    "vit": {"query", "query_mean", "average", "heads", "curves"},
    "san": {"taps", "heads", "curves"},
}


def test_without_a_figure_all_that_the_run_shows_is_drawn(runs):
    workdir = runs("quadratic_isotropic")
    done = analyze(f"--workdir={workdir}", "--reorder")
    assert done.returncode == 0, done.stderr
    folder = workdir / "analysis"
    files = {path.stem for path in folder.glob("*.png")}
    assert files == FILES["quadratic_isotropic"]
    assert files == {path.stem for path in folder.glob("*.pdf")}
    table = json.loads((folder / "heads.json").read_text())
    assert len(table["heads"]) == 8
    assert "viewer.html (" in done.stdout and "2 checkpoints" in done.stdout
    assert "largest kernel covered" in done.stdout


def drawn(run):
    """By file, the text of every figure of a run but its curves and its viewer."""
    shown = choose_images(run.dataset, ["3"])
    subject = Subject(run, shown, choose_images(run.dataset, ["0-9"]))
    names = [name for name in figures.available(run) if name in figures.FIGURES]
    return {
        file: " ".join(text.get_text() for text in figure.findobj(match=_is_text))
        for name in names
        for file, figure in figures.draw(name, subject)
    }


def _is_text(artist):
    return hasattr(artist, "get_text")


@pytest.mark.parametrize("kind", FILES)
def test_every_family_has_its_figures(runs, kind):
    run = Run(runs(kind))
    texts = drawn(run)
    assert set(texts) == FILES[kind] - {"curves"}
    assert "viewer" in figures.available(run)
    model = run.config.model.name
    for file, text in texts.items():
        assert f"{run.name} ({model}" in text
        by_position = kind in ("quadratic_isotropic", "learned_wo_content")
        same = by_position and file in ("query", "average")
        assert ("the same for all images" in text.replace("\n", " ")) == same


@pytest.mark.parametrize("num_heads", [(0, 2), (0, 0)])
@pytest.mark.parametrize("kind", ["quadratic_isotropic", "learned_wo_content"])
def test_layers_without_heads_are_drawn_as_such(runs, kind, num_heads):
    texts = drawn(Run(runs(kind, num_heads)))
    assert set(texts) == FILES[kind] - {"curves"}
    for file in set(texts) - {"heads"}:
        assert "no head" in texts[file].replace("\n", " ")
    assert "0 of 0 heads cover 0 offsets" in texts["heads"]


def test_scores_of_offsets_are_those_that_the_grid_has(runs):
    """Tables reach to 15 pixels; on a grid of 4 x 4 no offset is longer than 3."""
    run = Run(runs("learned_wo_content"))
    tables = parameters.position_scores(run.config.model, run.variables, (4, 4))
    layer = run.variables["params"]["block_1"]["attention"]
    whole = [layer[f"{axis}_embeddings"] @ layer[f"{axis}_keys"] for axis in AXES]
    assert tables["layer 2"].shape == (4, 7, 7) and len(whole[0]) == 31
    for row, column in [(-3, -3), (0, 0), (2, -1), (3, 3)]:
        expected = whole[0][row + 15] + whole[1][column + 15]
        found = tables["layer 2"][:, row + 3, column + 3]
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_hierarchical_sans_figures_say_in_which_mode_they_are(runs):
    run = Run(runs("san"))
    assert "evaluation mode" not in run.title
    run.config.evaluate_in_training_mode = True
    assert run.title.endswith("in evaluation mode (its scores: in training mode)")


def test_the_query_figure_holds_the_sown_probabilities(runs):
    run = Run(runs("learned_w_content"))
    shown = choose_images(run.dataset, ["3", "5"])
    subject = Subject(run, shown, shown, query="1,2")
    drawn = dict(figures.draw("query", subject))
    assert set(drawn) == {"query_1", "query_2"}
    probs = subject.maps.probs[1][1, :, 1, 2]  # second layer and image, all heads
    images = [
        np.asarray(image.get_array())
        for axes in drawn["query_2"].axes
        for image in axes.get_images()
    ]
    for head in probs:
        assert any(
            image.shape == head.shape and np.allclose(image, head) for image in images
        )
    column = Subject(run, shown, shown, query="1,2", by_key=True)
    (_, figure), *_ = figures.draw("query", column)
    who = subject.maps.probs[0][0, 0, :, :, 1, 2]
    images = [i.get_array() for axes in figure.axes for i in axes.get_images()]
    assert any(i.shape == who.shape and np.allclose(i, who) for i in images)


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
    assert (tmp_path / "out/average.pdf").exists()


REFUSED = {
    "no run": (["--workdir=/nowhere"], "is not the workdir of a run"),
    "nothing": ([], "--workdir=RUN is missing"),
    "figure": (["--figure=maps"], "there is no figure 'maps'"),
    "not its figure": (["--figure=taps"], "has no figure 'taps'; it can show"),
    "query": (["--figure=query", "--query=9,9"], "from 0,0 to 3,3"),
    "image": (["--figure=query", "--images=400"], "count from 0 to 359"),
    "layer": (
        ["--figure=centers_layer", "--layer=3"],
        "--layer=3: the layers are 1 to 2",
    ),
    "checkpoint": (["--checkpoint=7000"], "has no checkpoint 7000"),
    "count": (["--figure=heads", "--num_images=0"], "--num_images=0"),
    "cap": (["--figure=viewer", "--viewer_max_mb=0.001"], "--viewer_max_mb"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_drawn_is_one_line_and_status_2(runs, case):
    arguments, message = REFUSED[case]
    if arguments and not arguments[0].startswith("--workdir"):
        arguments = [f"--workdir={runs('quadratic_isotropic')}", *arguments]
    done = analyze(*arguments)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1 and message in done.stderr


def test_a_model_without_attention_says_so(runs):
    run = Run(runs("resnet"))
    assert figures.available(run) == ("curves",)
    done = analyze(f"--workdir={run.workdir}", "--figure=query")
    assert done.returncode == 2
    assert "has no figure 'query'; it can show curves" in done.stderr


def test_curves_of_several_runs(runs, tmp_path):
    folders = [runs("quadratic_isotropic"), runs("learned_wo_content")]
    patterns = [f"--workdirs={folder.parent}/*" for folder in folders]
    done = analyze("--figure=curves", *patterns, f"--output={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "curves.png").exists()


CONTRADICTIONS = {
    "there is no figure 'foo'": ["--figure=heads,foo"],
    "add --prune": ["--figure=heads", "--heads=1:1"],
    "give one of them": ["--tables", "--figure=heads"],
    "drop them": ["--figure=heads", "--workdirs=/tmp"],
    "and not for query_mean": ["--figure=query_mean", "--by_key"],
    "--by_key is for --figure=query": ["--by_key"],
    "--viewer_max_mb=nan; take": ["--figure=viewer", "--viewer_max_mb=nan"],
    "--viewer_max_mb=inf; take": ["--figure=viewer", "--viewer_max_mb=inf"],
    "--viewer_max_mb=1e+304; take": ["--figure=viewer", "--viewer_max_mb=1e304"],
    "has no checkpoint ²; choose": ["--figure=query", "--checkpoint=²"],
    "has no checkpoint 999999": ["--figure=query", f"--checkpoint={'9' * 5000}"],
    "has no checkpoint ³": ["--prune", "--output=/nowhere/x", "--checkpoint=³"],
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
    assert curves[0] == "0" and (out / "curves.png").exists()
    for error, said in (both, all_of_it):
        assert "holds no checkpoint" in error and "curves.png" in said


def test_what_cannot_be_drawn_does_not_stop_the_others(runs, tmp_path):
    """A workdir without metrics, as --prune writes it, and a figure that fails."""
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
    assert status == "0"
    assert "curves: not drawn: none of these runs has scores" in said
    assert "heads: not drawn: the threshold of a mass is 2.0" in said
    drawn = {path.name for path in (workdir / "analysis").iterdir()}
    assert drawn >= {"query.png", "average.png", "viewer.html"}
    assert error.startswith("the threshold") and "none of these runs" in alone


def test_nothing_drawn_is_a_failure(runs, tmp_path):
    workdir = tmp_path / "run"
    ignored = shutil.ignore_patterns("metrics.jsonl")
    shutil.copytree(runs("resnet"), workdir, ignore=ignored)
    [(error, said)] = analyze_each([f"--workdir={workdir}"])
    assert error == f"nothing of {workdir} could be drawn; see why above."
    assert "curves: not drawn" in said


def test_the_ablation_tells_its_standard_errors(runs, tmp_path):
    [(status, said)] = analyze_each(
        [
            f"--workdir={runs('quadratic_isotropic')}",
            "--figure=ablation",
            "--num_images=40",
            f"--output={tmp_path}",
        ]
    )
    assert status == "0"
    numbers = json.loads((tmp_path / "ablation.json").read_text())
    assert f"standard error {numbers['standard_error']:.4f} (n = 40 images)" in said
    largest = max(sum(numbers["standard_errors"], []))
    assert f"of a head's change at most {largest:.4f}" in said
