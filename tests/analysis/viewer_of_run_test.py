"""The viewer of a run that goes on: written again for what was saved meanwhile."""

import shutil

import numpy as np
import pytest
from viewer_page import description

from attn_cnn_jax.analysis.figure_request import FigureRequest
from attn_cnn_jax.analysis.images import choose_images
from attn_cnn_jax.analysis.viewer import of_run
from attn_cnn_jax.checkpoint.folder import save_variables
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.run import Run

NUM_STEPS = 2 * 14  # two epochs of 1,437 digits


@pytest.fixture
def trained(make_run, monkeypatch):
    """`trained(folder/step, ...)`: a run that saves one of these at each rest."""

    def train(*saves: str) -> Run:
        run = make_run("learned_wo_content")
        run.config.update(num_epochs=2, batch_size=100)
        left = list(saves)

        def rest(seconds):
            assert left, "it rests though all was saved"
            kind, _, step = left.pop(0).partition("/")
            if kind:
                path = run.workdir / kind / step
                save_variables(path, run.config, int(step), run.variables)

        monkeypatch.setattr(of_run.time, "sleep", rest)
        return run

    return train


def test_each_save_is_seen_once_until_all_epochs_are_trained(trained):
    run = trained("", "snapshots/3", "", "checkpoints/5", f"checkpoints/{NUM_STEPS}")
    seen = list(of_run.newest(run))
    assert [one.step for one in seen] == [0, 3, 5, NUM_STEPS]
    assert seen[-1].epoch == run.config.num_epochs
    assert all(one.capture is run.capture for one in seen)


def test_the_page_grows_with_the_run(trained, tmp_path):
    run = trained("snapshots/4", "snapshots/6")
    shown = choose_images(run.dataset, ["0-1"])
    lines, pages, path = [], [], tmp_path / "viewer.html"
    for newest in of_run.newest(run):
        request = FigureRequest(newest, shown, sample=shown)
        line = of_run.write_viewer_of_run(
            request,
            path,
            accuracies=lambda workdir: {4: 0.25},
            snapshots=True,
            max_bytes=10**7,
        )
        lines.append(line)
        pages.append(description(path.read_text("ascii", "ignore")))
        if len(pages) == 3:
            break
    steps = [[one["step"] for one in page["checkpoints"]] for page in pages]
    assert steps == [[0], [4], [4, 6]]
    assert [one["accuracy"] for one in pages[2]["checkpoints"]] == [0.25, None]
    assert "2 images, 1 checkpoint up to epoch 0)" in lines[0]
    assert "2 checkpoints" in lines[2]
    guesses = pages[2]["checkpoints"][1]["guesses"]
    assert np.shape(guesses) == (2, 3, 2)
    assert pages[2]["classes"] == list(run.dataset.class_names)


def test_a_line_says_what_was_left_out(trained, tmp_path):
    run = trained("snapshots/4", "snapshots/6")
    shown = choose_images(run.dataset, ["0-1"])
    for _ in zip(range(3), of_run.newest(run), strict=False):
        pass
    request = FigureRequest(run.at("last"), shown, sample=shown)
    path = tmp_path / "viewer.html"

    def write(max_bytes):
        return of_run.write_viewer_of_run(
            request,
            path,
            accuracies=lambda workdir: {},
            snapshots=True,
            max_bytes=max_bytes,
        )

    write(10**7)
    line = write(path.stat().st_size - 1)
    assert "the page shows 1 of 2 checkpoints (epoch 0." in line
    assert line.endswith("more of the others, or raise it.")


def test_other_runs_come_first_and_are_of_the_same_kind(trained, tmp_path):
    run = trained("snapshots/4")
    for _ in zip(range(2), of_run.newest(run), strict=False):
        pass
    run = run.at("last")
    shutil.copytree(run.workdir, tmp_path / "other")
    other = Run(tmp_path / "other", 0)
    shown = choose_images(run.dataset, ["0"])
    request = FigureRequest(run, shown, sample=shown)
    path, scores = tmp_path / "viewer.html", {run.workdir: {4: 0.5}}
    scores[other.workdir] = {0: 0.25}

    def write():
        return of_run.write_viewer_of_run(
            request,
            path,
            accuracies=scores.get,
            snapshots=True,
            max_bytes=10**7,
            others=[other],
        )

    write()
    said = description(path.read_text("ascii", "ignore"))
    entries = [(e["run"], e["step"], e["accuracy"]) for e in said["checkpoints"]]
    assert entries == [("other", 0, 0.25), ("tiny_seed3", 4, 0.5)]
    assert said["about"].startswith("other: self_attention, learned_wo_content; tiny")
    other.layers = other.layers[:1]
    with pytest.raises(UserError, match="other cannot be shown beside tiny_seed3"):
        write()
