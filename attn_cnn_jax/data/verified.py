"""The record that a prepared dataset was verified: the sha256 of each of its files."""

import dataclasses
import hashlib
import json
import os
import pathlib
from typing import Any

from attn_cnn_jax.errors import UserError, first_line, one_line

FILE = "verified.json"  # beside the records
_MAX_BYTES = 2**24


@dataclasses.dataclass(frozen=True)
class Verification:
    """The digests of verified files by name; `partial` if records are left out."""

    files: dict[str, str]
    partial: bool = False


def sign(folder: pathlib.Path, *, partial: bool) -> None:
    """Record the digests of the files in `folder`, which were just read through."""
    content = {"files": digests(folder), "partial": partial}
    new = folder / f".{FILE}.new"
    with new.open("w", encoding="utf-8") as file:
        file.write(json.dumps(content, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())  # never a name without its content
    new.replace(folder / FILE)


def check(folder: pathlib.Path) -> Verification | None:
    """Return the verification of `folder` whose files are as then; None without one.

    All is hashed each time (0.2 s for CIFAR-10), so that nothing has to be remembered.
    Raises a `UserError` that names the first file that is another, missing or new.
    """
    signed = _read(folder / FILE)
    if signed is None:
        return None
    found = digests(folder)
    for name in sorted(signed.files.keys() | found.keys()):
        if signed.files.get(name) != found.get(name):
            fault = "is missing" if name not in found else "is another"
            if name not in signed.files:
                fault = "was not there"
            raise UserError(
                f"{folder} is not as it was verified: {one_line(name)} {fault}. Remove "
                "it and prepare it again with python -m attn_cnn_jax.prepare_data."
            )
    return signed


def read_json(path: pathlib.Path, max_bytes: int) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises an `OSError`, a `ValueError` or (of deep nesting) a `RecursionError`.
    """
    with path.open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"it has more than {max_bytes:,} bytes")
    content = json.loads(data)
    if not isinstance(content, dict):
        raise ValueError("it holds no JSON object")
    return content


def _read(path: pathlib.Path) -> Verification | None:
    if not path.exists():
        return None
    try:
        content = read_json(path, _MAX_BYTES)
        if "files" not in content:  # as the first versions wrote it
            content = {"files": content}
        partial = content.get("partial") is True
        files = dict(content["files"])
        if not all(isinstance(digest, str) for digest in files.values()):
            raise ValueError("a digest is no text")
    except (OSError, RecursionError, TypeError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read ({first_line(error)}). Remove it and verify the "
            "data again with python -m attn_cnn_jax.prepare_data."
        ) from error
    return Verification(files, partial)


def digests(folder: pathlib.Path) -> dict[str, str]:
    """Return the sha256 of each regular file in `folder` that is not hidden."""
    return {
        path.name: digest(path)
        for path in sorted(folder.iterdir())
        if path.name != FILE and not path.name.startswith(".") and path.is_file()
    }


def digest(path: pathlib.Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
