"""What README and docs say holds: examples run, numbers are the rows', links lead."""

import pathlib
import re

import pytest

from attn_cnn_jax import checkpoint, train
from attn_cnn_jax.analysis import figures

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_notebook_example_runs(tiny_config, tmp_path, monkeypatch):
    config = tiny_config(num_epochs=1)
    config.schedule.warmup_epochs = 0.0
    train.train(config, tmp_path / "runs/demo")
    page = (ROOT / "docs/runs.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(example, names)
    assert names["run"].step == checkpoint.steps(tmp_path / "runs/demo")[-1]
    assert names["logits"].shape == (8, 10)
    assert names["probs"].shape == (1, 4, 4, 4, 4, 4)


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page):
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text):
        file = page.parent / target if target else page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.M)
            assert anchor in {_anchor(heading) for heading in headings}, anchor


def test_each_page_is_linked_from_the_readme():
    linked = set(re.findall(r"\]\(docs/(\w+\.md)", README))
    assert linked == {page.name for page in PAGES[1:]}
    assert len(README.splitlines()) <= 150


def _anchor(heading: str) -> str:
    """As GitHub makes it."""
    plain = re.sub(r"[^\w\- ]", "", heading.lower())
    return plain.replace(" ", "-")


def test_the_notebook_page_of_the_analysis_runs(tiny_config, tmp_path, monkeypatch):
    config = tiny_config(num_epochs=1)
    config.schedule.warmup_epochs = 0.0
    train.train(config, tmp_path / "runs/demo")
    page = (ROOT / "docs/analysis.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(example, names)
    assert names["maps"].probs[0].shape == (1, 4, 4, 4, 4, 4)
    assert set(names["drawn"]) == {"query"} and names["figure"].axes
    assert len(names["table"].heads) == 8
    listed = set(
        re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (.*?) \|", page, re.M)))
    )
    assert listed >= {*figures.FIGURES, "curves", "viewer", "ablation"}
