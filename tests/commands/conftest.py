"""Commands as a user gives them, in processes that one server forks."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings

ROOT = Path(__file__).parent.parent.parent
TINY = [
    f"--config={ROOT}/configs/quickstart.py",
    "--config.batch_size=1437",
    "--config.eval_every_epochs=1",
    "--config.model.patch_size=2",
    "--config.model.width=16",
    "--config.model.mlp_dim=16",
    "--config.model.num_layers=1",
    "--config.num_epochs=2",
    "--config.schedule.warmup_epochs=0",
    "--config.snapshot_every_epochs=1",
]
COMMANDS = [
    *(
        f"attn_cnn_jax.{name}"
        for name in "main analyze prune bench results sweep interop".split()
    ),
    *(f"attn_cnn_jax.theory {name}" for name in "convert error fit pictures".split()),
    "attn_cnn_jax.prepare_data",
    "benchmarks.compare",
    "benchmarks.compiled",
]


OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
DEFAULT_FOLDERS = {"runs", "tables", "curves", "theorem", "__pycache__"}


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a command came to; `status` is None where it did not end in time."""

    command: list[str]
    status: int | None
    out: str
    err: str

    def told_in_a_line(self) -> str:
        """The last line of stderr, of a command that went well or said why not."""
        assert self.status in (0, 2), self
        for text in (self.out, self.err):
            assert not OBEYED.search(text) and "Traceback" not in text, self
        *warnings, last = ["", *self.err.splitlines()]
        if self.status == 0:
            warnings.append(last)
        assert all(line.startswith("warning: ") for line in warnings if line), self
        assert self.status == 0 or last.startswith("error: "), self
        assert len(self.err) < 10_000, self
        return last

    def refused(self, message: str) -> None:
        """Assert that the command ended with status 2 and such a line."""
        assert re.search(message, self.told_in_a_line()), self
        assert self.status == 2, self


class Shell:
    """Gives commands in `folder`, which `clean()` empties, as a user with a home."""

    def __init__(self, box: Path) -> None:
        self.box, self.folder = box, box / "here"
        self.commands, self.tiny = COMMANDS, TINY
        for path in (box / "home", box / "tmp", self.folder):
            path.mkdir()
        ours = {"HOME": str(box / "home"), "TMPDIR": str(box / "tmp")}
        ours |= {"PYTHONPATH": str(ROOT), "XLA_FLAGS": ""}  # one device
        self._server = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "server.py")],
            env={**os.environ, **ours},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *command: str, seconds: float = 120) -> Answer:
        """Run `python -m` with these words; the first may be "module command"."""
        words = [*command[0].split(), *command[1:]]
        request = {"command": words, "folder": str(self.folder), "seconds": seconds}
        assert self._server.stdin and self._server.stdout
        print(json.dumps(request), file=self._server.stdin, flush=True)
        return Answer(words, **json.loads(self._server.stdout.readline()))

    def clean(self, *, run: bool = False) -> None:
        """Empty the folder but for a `file`, and a trained `run` where that is asked.

        The run is trained once.
        """
        trained = self.box / "run"
        if run and not trained.exists():
            answer = self("attn_cnn_jax.main", *TINY, f"--workdir={trained}")
            assert answer.status == 0, answer
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        (self.folder / "file").write_text("not a folder")
        if run:
            shutil.copytree(trained, self.folder / "run")

    def check(self, *command: str) -> None:
        """Hold a command to its promises: a line, and no file where none was named."""
        before = self._everything()
        note(repr(command))
        self(*command).told_in_a_line()
        for path in self._everything() - before:
            first = path.split("/")[0]
            named = any(_named_by(word).split("/")[0] == first for word in command[1:])
            assert named or first in DEFAULT_FOLDERS, path
            assert not first.startswith(("gs:", "s3:")), path

    def _everything(self) -> set[str]:
        """The files and folders in the folder, and what lies beside it as ../NAME."""
        return {
            *(str(path.relative_to(self.folder)) for path in self.folder.rglob("*")),
            *(f"../{path.name}" for path in self.box.iterdir()),
        }

    def every(self, cases: Any, check: Callable[[Any], None], number: int) -> None:
        """Check as many cases; the few of `make test` are the same every time."""

        @settings(
            max_examples=number,
            derandomize=number <= 50,
            deadline=None,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        )
        @given(cases)
        def each(case: Any) -> None:
            check(case)

        each()

    def close(self) -> None:
        self._server.communicate()


def _named_by(word: str) -> str:
    return os.path.normpath(word.partition("=")[2] or word)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    shell = Shell(tmp_path_factory.mktemp("commands"))
    yield shell
    shell.close()


@pytest.fixture
def shell(server) -> Shell:
    """A shell in a folder that holds nothing but a file called `file`."""
    server.clean()
    return server


def pytest_generate_tests(metafunc) -> None:
    if "command" in metafunc.fixturenames:
        metafunc.parametrize("command", COMMANDS)
