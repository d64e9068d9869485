"""The command `analyze`: what it writes for a run of each kind, and what it refuses."""

import json
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from attn_cnn_jax import config as config_lib
from attn_cnn_jax import train
from attn_cnn_jax.analysis import figures
from attn_cnn_jax.analysis.images import choose_images
from attn_cnn_jax.analysis.runs import Run
from attn_cnn_jax.analysis.subject import Subject

ROOT = pathlib.Path(__file__).parent.parent


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
    made: dict[str, pathlib.Path] = {}

    def make(kind):
        if kind not in made:
            config = config_lib.base_config()
            if kind in MODELS:
                config.model = MODELS[kind]()
            else:
                config.model = config_lib.self_attention(kind)
                config.model.update(width=16, num_layers=2, num_heads=4, mlp_dim=16)
            config.dataset.update(name="digits_8x8", crop_padding=1, flip=False)
            config.update(num_epochs=1, batch_size=200, snapshot_every_epochs=1)
            config.schedule.warmup_epochs = 0.0
            config.optimizer.learning_rate = 0.01
            made[kind] = tmp_path_factory.mktemp(kind) / f"{kind}_seed42"
            train.train(config, made[kind])
        return made[kind]

    return make


def analyze(*arguments):
    """The finished process of the command."""
    command = [sys.executable, "-m", "attn_cnn_jax.analyze", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


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
    drawn = {path.stem for path in folder.glob("*.png")}
    assert drawn == FILES["quadratic_isotropic"]
    assert drawn == {path.stem for path in folder.glob("*.pdf")}
    table = json.loads((folder / "heads.json").read_text())
    assert len(table["heads"]) == 8
    assert "viewer.html (" in done.stdout and "2 checkpoints" in done.stdout
    assert "largest kernel covered" in done.stdout


@pytest.mark.parametrize("kind", FILES)
def test_every_family_has_its_figures(runs, kind):
    run = Run(runs(kind))
    shown = choose_images(run.dataset, ["3"])
    subject = Subject(run, shown, choose_images(run.dataset, ["0-9"]))
    named = set(figures.available(run)) - {"curves", "viewer"}
    drawn = {
        file: figure
        for name in figures.FIGURES
        if name in named
        for file, figure in figures.draw(name, subject)
    }
    assert set(drawn) == FILES[kind] - {"curves"}
    assert "viewer" in figures.available(run)
    for figure in drawn.values():
        texts = " ".join(text.get_text() for text in figure.findobj(match=_is_text))
        assert run.name in texts


def _is_text(artist):
    return hasattr(artist, "get_text")


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
    "tables": (["--tables", "--workdirs=/nowhere/*"], "no folder matches"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_drawn_is_one_line_and_status_2(runs, case):
    arguments, message = REFUSED[case]
    if arguments and not arguments[0].startswith(("--workdir", "--tables")):
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


def test_tables_and_curves_of_several_runs(runs, tmp_path):
    folders = [runs("quadratic_isotropic"), runs("learned_wo_content")]
    patterns = [f"--workdirs={folder.parent}/*" for folder in folders]
    done = analyze("--tables", *patterns, f"--output={tmp_path}")
    assert done.returncode == 0, done.stderr
    names = {path.name for path in tmp_path.iterdir()}
    assert {f"table_{n}.{kind}" for n in range(1, 5) for kind in ("md", "csv")} <= names
    assert re.search(r"quadratic_isotropic\\?_seed42", done.stdout)
    done = analyze("--figure=curves", *patterns, f"--output={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "curves.png").exists()
