"""The records of a run: `metrics.jsonl`, one object a line, and TensorBoard's events.

Each line ends with a digest of itself and of the line before ("chain"), and a
checkpoint knows the lines that were there when it was saved. So whoever reads them
notices what was altered, broken or removed.
"""

import hashlib
import json
import os
import pathlib
import warnings
from collections.abc import Mapping
from typing import Any

from attn_cnn_jax.growing_file import GrowingFile
from attn_cnn_jax.tensorboard import Events

# Splits of records that score nothing: offsets that heads cover, seconds of a run.
HEADS, GOODPUT = "heads", "goodput"


def read(workdir: str | os.PathLike) -> list[dict[str, Any]]:
    """Return the records of a run's `metrics.jsonl`, without their digests.

    Warnings say which lines are broken, were changed, or had others before them.
    """
    found, complaints = inspect(workdir)
    for complaint in complaints:
        warnings.warn(complaint, stacklevel=2)
    return [
        {name: value for name, value in record.items() if name != "chain"}
        for record in found
    ]


def inspect(workdir: str | os.PathLike) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the records of a run's `metrics.jsonl`, and what is wrong with them."""
    path = pathlib.Path(workdir) / "metrics.jsonl"
    text = path.read_text(encoding="utf-8", errors="replace")
    complete, _, rest = text.rpartition("\n")
    found, broken, changed, chain = [], [], [], ""
    for number, line in enumerate(complete.split("\n") if complete else [], 1):
        record = _parsed(line)
        if record is None:
            broken.append(number)
            continue
        found.append(record)
        # The first versions wrote no digests.
        if (chain or "chain" in record) and record.get("chain") != _link(chain, record):
            changed.append(number)
        chain = str(record.get("chain", chain))
    last = _parsed(rest)  # of a writer that was stopped, or is about to go on
    if last is not None:
        found.append(last)
    kinds = ((broken, "broken"), (changed, "not as written, or had other lines before"))
    complaints = [f"{path}: {_named(n)} {what}." for n, what in kinds if n]
    return found, complaints


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(record, dict) and type(record.get("step")) is int
    return record if whole else None


def _named(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"line {numbers[0]} is"
    first = ", ".join(str(number) for number in numbers[:3])
    more = f" and {len(numbers) - 3} more" if len(numbers) > 3 else ""
    return f"lines {first}{more} are"


def _link(chain: str, record: Mapping[str, Any]) -> str:
    """Return the digest of a record behind the line whose digest is `chain`."""
    content = {name: value for name, value in record.items() if name != "chain"}
    text = chain + json.dumps(content)
    raw = text.encode(errors="surrogatepass")  # what no run wrote is no text, maybe
    return hashlib.blake2b(raw, digest_size=8).hexdigest()


class Records:
    """Writes the records of a run that is being trained; also a context manager.

    Opened at the step that a run continues from, with the `mark` that its checkpoint
    has: later records are dropped, so that each step stands there once, and a warning
    says what is missing of those before. A write that fails (a full disk) is tried
    again with the next and never ends a training. With `enabled=False` nothing is
    written.
    """

    def __init__(
        self,
        workdir: pathlib.Path,
        step: int,
        mark: Mapping[str, Any] | None = None,
        *,
        enabled: bool,
    ) -> None:
        self._enabled = enabled
        self._lines, self._chain = 0, ""
        self._file: GrowingFile | None = None
        self._events: Events | None = None
        if enabled:
            self._continue(workdir / "metrics.jsonl", step, mark)
            self._file = GrowingFile(workdir / "metrics.jsonl")
            self._events = Events(workdir / "tensorboard", step + 1)

    def __enter__(self) -> "Records":
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def _continue(
        self, path: pathlib.Path, step: int, mark: Mapping[str, Any] | None
    ) -> None:
        """Drop what a metrics file says of steps after `step`, and broken lines."""
        found, complaints = inspect(path.parent) if path.exists() else ([], [])
        for complaint in complaints:
            warnings.warn(complaint, stacklevel=4)
        kept = [record for record in found if record["step"] <= step]
        if kept:
            self._chain = str(kept[-1].get("chain", ""))
        self._lines = len(kept)
        if mark is not None and len(kept) < mark["lines"]:
            warnings.warn(
                f"{path} has {len(kept)} of the {mark['lines']} lines up to step "
                f"{step}.",
                stacklevel=4,
            )
        elif mark and mark["lines"]:
            chain = str(kept[mark["lines"] - 1].get("chain", ""))
            if chain != mark["chain"]:
                warnings.warn(
                    f"{path}: the lines up to step {step} are not as written.",
                    stacklevel=4,
                )
        if found:
            rewritten = path.with_suffix(".jsonl.new")
            with rewritten.open("w", encoding="utf-8") as file:
                file.writelines(json.dumps(record) + "\n" for record in kept)
                file.flush()
                os.fsync(file.fileno())
            rewritten.replace(path)

    def mark(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of the lines so far: number, last digest."""
        return {"lines": self._lines, "chain": self._chain}

    def write(self, step: int, split: str, values: Mapping[str, int | float]) -> None:
        """Write a line {"step", "split", values...} and the same as scalars."""
        if self._file is None or self._events is None:
            return
        record = {"step": step, "split": split, **values}
        self._chain = _link(self._chain, record)
        self._lines += 1
        line = json.dumps({**record, "chain": self._chain})
        self._file.write(f"{line}\n".encode())
        self._events.write(step, split, values)

    def sync(self) -> None:
        """Bring all that was written to the disk, where a kill cannot reach it."""
        if self._file is not None and self._events is not None:
            self._file.sync()
            self._events.sync()

    def close(self) -> None:
        """Close the files; a warning says what could not be written."""
        if self._file is not None and self._events is not None:
            self._file.close()
            self._events.close()
