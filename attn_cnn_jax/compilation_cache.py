"""The compiled programs that the commands keep from one start to the next."""

import contextlib
import hashlib
import os
import pathlib
import platform
import stat
import warnings
from typing import Any

import jax

_MOST_BYTES = 5 * 2**30


def enable() -> None:
    """Let JAX keep the programs whose compilation takes a second, in `folder()`.

    What the user has set for JAX's own cache holds. As compiled programs are executed,
    a folder that others can write to is refused, with a warning.
    """
    options: Any = jax.config
    chosen = options.jax_compilation_cache_dir is not None
    if chosen or not options.jax_enable_compilation_cache:
        return
    try:
        path = folder()
        _make_private(path.parent)
        path.mkdir(exist_ok=True)
        _remove_oldest(path.parent, _MOST_BYTES)
    except OSError as error:
        warnings.warn(f"compiled programs are not kept: {error}.", stacklevel=2)
        return
    options.update("jax_compilation_cache_dir", str(path))


def folder() -> pathlib.Path:
    """Return $XDG_CACHE_HOME/attn_cnn_jax/xla_<kind of processor>.

    On a CPU a program may need instructions that another does not have, and machines
    may share a home.
    """
    base = pathlib.Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():  # as its specification wants
        base = pathlib.Path(os.path.expanduser("~/.cache"))
    if not base.is_absolute():
        raise OSError("there is no home; set XDG_CACHE_HOME")
    kind = hashlib.sha256(_processor().encode()).hexdigest()[:16]
    return base / "attn_cnn_jax" / f"xla_{kind}"


def _processor() -> str:
    """Return what tells kinds of processors with other instructions apart."""
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    first = text.partition("\n\n")[0].splitlines()
    fields = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU ")
    return "\n".join(line for line in first if line.startswith(fields))


def _make_private(path: pathlib.Path) -> None:
    """Make a folder for this user alone, or refuse one that is not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    owners = {path.lstat().st_uid, path.stat().st_uid}  # of a link, and where it leads
    if owners != {os.geteuid()}:
        raise OSError(f"{path} belongs to another user")
    if path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OSError(f"{path} can be written by other users; chmod 700 it")


def _remove_oldest(path: pathlib.Path, most_bytes: int) -> None:
    """Remove the files under `path` that were not read for longest, beyond a size."""
    found = []
    for file in filter(pathlib.Path.is_file, path.rglob("*")):
        with contextlib.suppress(FileNotFoundError):  # another process removed it
            found.append((file, file.stat()))
    found.sort(key=lambda entry: max(entry[1].st_atime, entry[1].st_mtime))
    size = sum(status.st_size for _, status in found)
    for file, status in found:
        if size <= most_bytes:
            break
        file.unlink(missing_ok=True)
        size -= status.st_size
