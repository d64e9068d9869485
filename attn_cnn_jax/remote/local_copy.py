"""A folder on this machine with what a workdir in a store holds, and the way back."""

import contextlib
import fcntl
import os
import pathlib
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterable
from typing import Any

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.remote import lease
from attn_cnn_jax.remote.store import Store

_KINDS = ("snapshots", "checkpoints")  # at equal steps in this order
_MARK = "commit_success.txt"  # the last file of a checkpoint, for Orbax on gs:// too
_SAVED = "run.lock"  # says if anything was saved: never before it is in the store
_PASSING = re.compile(r"\.new$|\.orbax-checkpoint-tmp|unfinished")
_PREFIX = "attn_cnn_jax_copy_"
_LOCK = "lock"


class LocalCopy:
    """A local copy of a workdir in a store.

    The files on top are there from the start. A checkpoint that is complete in the
    store (its mark is there) is an empty folder until `fetch` fills it. In a copy to
    train in those to resume from are filled, and what is removed from the copy is
    removed from the store.
    """

    def __init__(
        self, url: str, *, training: bool = False, token: str | None = None
    ) -> None:
        """Fill a folder that is new, or use the one that a peer made with the token."""
        self.store = Store(url)
        self.token, self.training = token or secrets.token_hex(8), training
        self._folder = _base() / f"{_PREFIX}{self.token}"
        self.path = self._folder / self.store.name
        self._in_store: dict[str, dict[str, int]] = {}  # sizes, by checkpoint
        # What checkpoints and other files were when the store had the same.
        self._as_known: dict[str, tuple[int, int] | None] = {}
        self.is_kept = False
        self.is_shared = token is not None and self._folder.exists()
        if self.is_shared:
            _refuse_others(self._folder)
            return
        self._lock = _make(self._folder)
        try:
            self.path.mkdir()
            self._pull()
        except BaseException:
            self.close()
            raise

    def _pull(self) -> None:
        names, incomplete = {}, []
        sizes = self.store.sizes()
        for name, size in sizes.items():
            checkpoint = _checkpoint_of(name)
            if checkpoint is None:
                if "/" not in name and name != lease.NAME:
                    names[name] = (self.path / name, size)
            elif f"{checkpoint}/{_MARK}" in sizes:
                inside = name.removeprefix(f"{checkpoint}/")
                self._in_store.setdefault(checkpoint, {})[inside] = size
            else:
                incomplete.append(name)
        self.store.download(names)
        self._as_known.update((name, _identity(self.path / name)) for name in names)
        for checkpoint in self._in_store:
            folder = self.path / checkpoint
            folder.mkdir(parents=True)
            self._as_known[checkpoint] = _identity(folder)
        if self.training:
            # What a killed process left is in nobody's way but costs space.
            self.store.remove(incomplete)
            for checkpoint in self._in_store:
                if checkpoint.startswith("checkpoints/"):
                    self.fetch(self.path / checkpoint)

    def fetch(self, path: pathlib.Path, part: str = "") -> None:
        """Fill the folder of a checkpoint; with `part` its top and that folder alone.

        Does nothing where it is filled, or is of this process's own making.
        """
        checkpoint = path.relative_to(self.path).as_posix()
        sizes = self._in_store.get(checkpoint)
        if sizes is None or self._as_known.get(checkpoint) != _identity(path):
            return
        self.store.download(
            {
                f"{checkpoint}/{name}": (path / name, size)
                for name, size in sizes.items()
                if not (path / name).exists()
                and (not part or "/" not in name or name.startswith(f"{part}/"))
            }
        )
        self._as_known[checkpoint] = _identity(path)

    def has_new_checkpoint(self) -> bool:
        """Tell if a checkpoint is complete here that the store does not have."""
        return any(
            self._as_known.get(checkpoint) != _identity(self.path / checkpoint)
            for checkpoint in self._checkpoints()
        )

    def push(self) -> None:
        """Write what is new or changed to the store.

        What was written before a checkpoint is in the store before it: first the other
        files, then the checkpoints by step, each with its mark at the end. Then those
        are removed that are here no more: the old ones stay until the new are whole.
        """
        saved = self._changed(_SAVED)  # before the checkpoints that it may speak of
        checkpoints = self._checkpoints()  # before the files that tell of their steps
        files = self._files()
        for name in files - {_SAVED}:
            self._write(name, self._changed(name))
        for checkpoint in checkpoints:
            identity = _identity(self.path / checkpoint)
            if self._as_known.get(checkpoint) != identity and self._send(checkpoint):
                self._as_known[checkpoint] = identity
        self._write(_SAVED, saved)
        if self.training:
            there = self._as_known.keys() | self._in_store.keys()  # some in part
            for name in there - set(checkpoints) - files:
                self._remove(name)

    def _changed(self, name: str) -> tuple[Any, bytes] | None:
        """Return identity and content of a file, if the store has not the same."""
        identity = _identity(self.path / name)
        if self._as_known.get(name) != identity:
            with contextlib.suppress(FileNotFoundError):
                return identity, (self.path / name).read_bytes()
        return None

    def _write(self, name: str, changed: tuple[Any, bytes] | None) -> None:
        if changed is not None:
            self.store.write(name, changed[1])
            self._as_known[name] = changed[0]

    def _send(self, checkpoint: str) -> bool:
        """Write a checkpoint; returns False if it is being removed from here."""
        folder = self.path / checkpoint
        self._remove(checkpoint)
        files = {name: folder / name for name in _files_under(folder)}
        self._in_store[checkpoint] = dict.fromkeys(files, 0)  # to be removed with
        try:
            sizes = {name: path.stat().st_size for name, path in files.items()}
            mark = (folder / _MARK).read_bytes()
            files.pop(_MARK)
            self.store.upload({f"{checkpoint}/{n}": path for n, path in files.items()})
            whole = _is_as_completed(folder)
        except FileNotFoundError:
            whole = False
        if not whole:
            self._remove(checkpoint)
            return False
        self.store.write(f"{checkpoint}/{_MARK}", mark)
        self._in_store[checkpoint] = sizes
        return True

    def _remove(self, name: str) -> None:
        """Remove a file, or a checkpoint: its mark first, so that none is in part."""
        inside = self._in_store.get(name)
        if inside is not None:
            self.store.remove(f"{name}/{part}" for part in (_MARK, *inside))
            del self._in_store[name]
        elif name in self._as_known:
            self.store.remove([name])
        self._as_known.pop(name, None)

    def _checkpoints(self) -> list[str]:
        """Return the complete checkpoints here as KIND/STEP, oldest first."""
        found = [
            (int(path.name), kind)
            for kind in reversed(_KINDS)  # a snapshot is complete before the next is
            for path in (self.path / kind).glob("*")
            if re.fullmatch("[0-9]{1,18}", path.name)
        ]
        found.sort(key=lambda one: (one[0], _KINDS.index(one[1])))
        return [f"{kind}/{step}" for step, kind in found]

    def _files(self) -> set[str]:
        """Return the names of all files but those of checkpoints, and passing ones."""
        return {
            name
            for name in _files_under(self.path)
            if _checkpoint_of(name) is None and not _PASSING.search(name)
        }

    def keep(self) -> None:
        """Let the folder stay when the process ends."""
        self.is_kept = True
        (self._folder / _LOCK).unlink(missing_ok=True)  # else it looks left behind

    def close(self) -> None:
        """Remove the folder, unless it is kept or a peer's."""
        if self.is_shared:
            return
        if not self.is_kept:
            shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._lock)


def checkpoints_in(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return (kind, step) of the checkpoints whose mark is among the names."""
    pattern = f"({'|'.join(_KINDS)})/([0-9]{{1,18}})/{re.escape(_MARK)}"
    found = (re.fullmatch(pattern, name) for name in names)
    return [(one[1], one[2]) for one in found if one]


def _checkpoint_of(name: str) -> str | None:
    """Return the checkpoint that a file belongs to, as KIND/STEP."""
    found = re.match(f"(({'|'.join(_KINDS)})/[0-9]{{1,18}})/", name)
    return found and found[1]


def _is_as_completed(folder: pathlib.Path) -> bool:
    """Tell if nothing was removed from a checkpoint since its mark was written.

    The old ones are, by another thread; a list of files taken meanwhile lacks some.
    """
    completed = (folder / _MARK).stat().st_mtime_ns
    folders = [pathlib.Path(path) for path, _, _ in os.walk(folder)]
    return all(path.stat().st_mtime_ns <= completed for path in folders)


def _files_under(folder: pathlib.Path) -> list[str]:
    """Return the relative names of all files; folders may vanish meanwhile."""
    return [
        (pathlib.Path(path) / name).relative_to(folder).as_posix()
        for path, _, names in os.walk(folder)
        for name in names
    ]


def _identity(path: pathlib.Path) -> tuple[int, int] | None:
    """Return what another file of this name, or another content, would differ in."""
    try:
        status = path.stat()
    except FileNotFoundError:  # removed while a thread looks
        return None
    return (status.st_ino, status.st_mtime_ns)


def _base() -> pathlib.Path:
    return pathlib.Path(tempfile.gettempdir())


def _make(folder: pathlib.Path) -> int:
    """Make a folder of this user alone; return its lock, open and held.

    The folders of processes that were killed are removed: nobody locks them.
    """
    for left in _base().glob(f"{_PREFIX}*/{_LOCK}"):
        try:
            if left.lstat().st_uid == os.geteuid():
                os.close(_locked(left.parent))
                shutil.rmtree(left.parent, ignore_errors=True)
        except OSError:  # its process lives, or another has just removed it
            continue
    made = pathlib.Path(tempfile.mkdtemp(prefix=f"new_{_PREFIX}", dir=_base()))
    lock = _locked(made)  # before it has a name that others look for
    made.rename(folder)
    return lock


def _refuse_others(folder: pathlib.Path) -> None:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise UserError(f"{folder} is not a folder of this user.")


def _locked(folder: pathlib.Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    file = os.open(folder / _LOCK, flags, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise
    return file
