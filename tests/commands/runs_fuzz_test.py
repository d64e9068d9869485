"""Hostile files of a run: a command goes well or says why not in a line.

The same cases in every `make test`; others, and more, in `make soak`.
"""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import note
from hypothesis import strategies as st

NUMBERS = [20, pytest.param(300, marks=pytest.mark.soak)]

VALUES: list[Any] = [
    *(None, True, False, 0, -1, 7, 10**30, 10**400, 0.5, -0.5, 1e300),
    *(float("nan"), float("inf"), "", "x", "\ud800", "\x1b[2J\n", "x" * 5000),
    *([], [[]], {}, {"name": {"name": []}}, {"items": 1}, {"a.b": 2}, [None, {}]),
]
JUNK = ["", "null", "3", "[]", '"x"', "NaN", "9" * 5000, "\x1b[2J", '{"model":[]}']
JUNK += ["[" * 30_000, '{"a":' * 30_000 + "1" + "}" * 30_000, '{"a":' * 300 + "1"]
JUNK += ['{"step":' + "[" * 900 + "]" * 900 + "}", '{"step":1,"step":"\\ud800"}']
NAMES = ["²", "٣", "007", "-1", "1e3", "9" * 9, "9" * 30, "1 ", "a\nb", "\x1b[2J", "3"]
NAMES += ["\udc80", "x" * 99, "5.orbax-checkpoint-tmp-7", "_3", "0x1", "1", "2", "best"]

BENCH = {
    "device_kind": "cpu",
    "compute_dtype": "float32",
    "date": "2020-01-01",
    "flops": 7,
    "flops_paper": 7,
    "latency_ms": {"mean": 1.0, "calls": 3},
}


def replaced(draw, text: str) -> str:
    """The JSON text with one of its values replaced, removed, or there twice."""
    root = {"": json.loads(text)}
    places: list[tuple[Any, Any]] = []

    def walk(holder: Any) -> None:
        for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
            places.append((holder, key))
            if isinstance(holder[key], dict | list):
                walk(holder[key])

    walk(root)
    holder, key = draw(st.sampled_from(places))
    kind = draw(st.sampled_from(["replaced"] * 4 + ["removed", "twice"]))
    before, holder[key] = holder[key], draw(st.sampled_from(VALUES))
    if kind == "removed" and key != "":
        del holder[key]
    changed = json.dumps(root[""])
    if kind == "twice" and holder is root[""] and isinstance(key, str):
        return changed[:-1] + f", {json.dumps(key)}: {json.dumps(before)}}}"
    return changed


def replaced_in_a_line(draw, text: str) -> str:
    lines = text.splitlines()
    number = draw(st.integers(0, len(lines) - 1))
    lines[number] = replaced(draw, lines[number])
    return "\n".join(lines)


def forged(draw, text: str) -> str:
    """The record of a checkpoint with another content and the digest of that."""
    content = json.dumps(json.loads(replaced(draw, json.loads(text)["content"])))
    digest = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
    return json.dumps({"content": content, "digest": digest})


# File of a run: how its JSON is changed, and the commands below that read it.
FILES: dict[str, tuple[Callable[..., str], str]] = {
    "config.json": (
        replaced,
        "results evaluate curves prune convert bench compare continue begin",
    ),
    "metrics.jsonl": (replaced_in_a_line, "results curves continue"),
    "environment.jsonl": (replaced_in_a_line, "continue"),
    "bench.jsonl": (replaced_in_a_line, "results"),
    "checkpoints/2/record/data.json": (forged, "evaluate best prune continue begin"),
    "checkpoints/2/_CHECKPOINT_METADATA": (replaced, "evaluate prune continue"),
}


def commands(server) -> dict[str, list[str]]:
    main, bench = ["attn_cnn_jax.main", *server.tiny], "attn_cnn_jax.bench"
    evaluate = ["attn_cnn_jax.main", "--mode=evaluate", "--workdir=run"]
    too_large = ["--workdir=run", "--batch_sizes=99999"]  # nothing is measured
    return {
        "results": ["attn_cnn_jax.results", "--workdirs=run"],
        "curves": ["attn_cnn_jax.analyze", "--workdir=run", "--figure=curves"],
        "evaluate": evaluate,
        "best": [*evaluate, "--checkpoint=best"],
        "prune": ["attn_cnn_jax.prune", "--workdir=run", "--output=out"],
        "convert": ["attn_cnn_jax.theory convert", "--workdir=run", "--output=out"],
        "bench": [bench, *too_large],
        "compare": [bench, *server.tiny, *too_large],
        "continue": [*main, "--workdir=run"],
        "begin": [*main, "--init_from=run", "--workdir=file/run"],
    }


@st.composite
def damaged_files(draw) -> tuple[str, Callable[[Path], None]]:
    """A command, and what damages a file that it reads."""
    name = draw(st.sampled_from(["config.json", *FILES]))
    change, readers = FILES[name]
    kind = draw(st.sampled_from(["JSON"] * 6 + ["junk", "cut", "folder", "loop"]))
    junk, place = draw(st.sampled_from(JUNK)), draw(st.floats(0, 1))
    data = draw(st.data())

    def damage(run: Path) -> None:
        path = run / name
        if name == "bench.jsonl":
            path.write_text(json.dumps(BENCH) + "\n")
        text = path.read_text()
        path.unlink()
        if kind == "folder":
            path.mkdir()
        elif kind == "loop":
            path.symlink_to(path)
        elif kind == "junk":
            path.write_text(junk)
        elif kind == "cut":
            at = int(place * len(text))
            path.write_bytes(text[:at].encode() + b"\xff\0" + text[at + 1 :].encode())
        else:
            path.write_text(change(data.draw, text))
        note(f"{path}: {path.read_bytes()[:2000] if path.is_file() else kind}")

    return draw(st.sampled_from(readers.split())), damage


@st.composite
def odd_checkpoints(draw) -> tuple[str, Callable[[Path], None]]:
    """A command, and what adds odd names to the checkpoints that it finds."""
    texts = st.text(st.characters(exclude_characters="\0/", codec="utf-8"), max_size=9)
    names = st.one_of(st.sampled_from(NAMES), texts.map(lambda text: f"_{text}"))
    chosen = draw(st.lists(names, min_size=1, max_size=3))
    folder = draw(st.sampled_from(["checkpoints", "snapshots"]))
    kind = draw(st.sampled_from(["folder", "file", "copy", "loop"]))

    def damage(run: Path) -> None:
        for name in chosen:
            path = run / folder / name
            note(f"{path!r}: {kind}")
            if path.is_dir():
                shutil.rmtree(path)
            if kind == "copy":
                shutil.copytree(run / "snapshots" / "0", path)
            elif kind == "folder":
                path.mkdir()
            elif kind == "file":
                path.write_text("1")
            elif not path.is_symlink():
                path.symlink_to(path)

    return draw(st.sampled_from("evaluate best prune continue begin".split())), damage


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("damages", [damaged_files, odd_checkpoints])
def test_every_run(server, number, damages):
    def check(case: tuple[str, Callable[[Path], None]]) -> None:
        command, damage = case
        server.clean(run=True)
        damage(server.folder / "run")
        server.check(*commands(server)[command])

    server.every(damages(), check, number)
