"""The page and the notebook of the theorem run as they are printed."""

import json
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def code_of_page() -> list[str]:
    text = (DOCS / "theorem.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def code_of_notebook() -> list[str]:
    notebook = json.loads((DOCS / "theorem.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return ["".join(cell["source"]) for cell in cells]


@pytest.mark.parametrize("code", [code_of_page, code_of_notebook])
def test_the_code_runs(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    parts, names = code(), {}
    assert len(parts) >= 2
    for part in parts:
        exec(compile(part, code.__name__, "exec"), names)


def test_figures_and_pages_that_are_named_are_there():
    text = (DOCS / "theorem.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#]+?)\)", text)
    assert targets
    for target in targets:
        assert target.startswith("http") or (DOCS / target).is_file(), target
