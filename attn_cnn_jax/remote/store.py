"""Objects under one prefix of a bucket; all that is asked of a store."""

import contextlib
import functools
import importlib
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attn_cnn_jax.errors import UserError

PACKAGES = {"s3": "s3fs", "gs": "gcsfs"}  # what fsspec needs for a scheme


class StoreError(UserError):
    """A store that cannot be reached or refuses; its message names it and says why."""


def scheme(text: str) -> str:
    """Return what stands before `://`; nothing where the text is a local path."""
    before, separator, _ = text.partition("://")
    return before if separator else ""


def check(url: str) -> None:
    """Raise a `UserError` unless a URL names a folder in a bucket."""
    kind, path = scheme(url), url.rstrip("/").partition("://")[2]
    if kind not in PACKAGES:
        raise UserError(f"{url}: a folder is local or begins with s3:// or gs://.")
    if "/" not in path or not _is_relative(path):
        raise UserError(f"{url}: name a bucket and a folder, {kind}://BUCKET/RUN.")


class Store:
    """The objects under a URL such as s3://bucket/runs/demo, by their relative names.

    An object appears whole or not at all; none can be appended to.
    """

    def __init__(self, url: str) -> None:
        check(url)
        self.url = url.rstrip("/")
        self.name = self.url.rpartition("/")[2]
        kind, self._root = scheme(url), self.url.partition("://")[2]
        self._system = _system(kind, url)

    def sizes(self) -> dict[str, int]:
        """Return the size of every object in bytes, by its name."""
        with self._explained():
            found = self._system.find(self._root, detail=True)
        start = f"{self._root}/"
        return {
            key.removeprefix(start): int(entry["size"])
            for key, entry in found.items()
            # A key may be any text, and is to name a file of ours.
            if key.startswith(start) and _is_relative(key.removeprefix(start))
        }

    def read(self, name: str) -> bytes | None:
        """Return the content of an object; None where there is none."""
        with self._explained(), contextlib.suppress(FileNotFoundError):
            return self._system.cat_file(self._key(name))

    def write(self, name: str, content: bytes, *, anew: bool = False) -> bool:
        """Write an object whole; with `anew` only where there is none.

        Returns whether it was written.
        """
        mode: dict[str, Any] = {"mode": "create"} if anew else {}
        try:
            with self._explained():
                self._system.pipe_file(self._key(name), content, **mode)
        except StoreError:  # which a store may also say of one that is there
            if not anew or self.read(name) is None:
                raise
            return False
        return True

    def upload(self, files: Mapping[str, pathlib.Path]) -> None:
        """Write objects from files that do not change; several at a time."""
        if files:
            with self._explained():
                self._system.put(
                    [os.fspath(path) for path in files.values()],
                    [self._key(name) for name in files],
                )

    def download(self, files: Mapping[str, tuple[pathlib.Path, int]]) -> None:
        """Write files from objects, which have to be of the sizes given."""
        if not files:
            return
        for path, _ in files.values():
            path.parent.mkdir(parents=True, exist_ok=True)
        with self._explained(), contextlib.suppress(FileNotFoundError):
            self._system.get(
                [self._key(name) for name in files],
                [os.fspath(path) for path, _ in files.values()],
            )
        for name, (path, size) in files.items():
            if not path.is_file() or path.stat().st_size != size:
                raise StoreError(
                    f"{self.url}/{name} changed while it was read, as in a run that is "
                    "being trained; try again."
                )

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects, which need not be there."""
        for name in names:
            with self._explained(), contextlib.suppress(FileNotFoundError):
                self._system.rm_file(self._key(name))

    def _key(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except StoreError:
            raise
        except FileNotFoundError:
            if not self._bucket_exists():
                bucket = self._root.partition("/")[0]
                raise StoreError(f"{self.url}: there is no bucket {bucket}.") from None
            raise
        except Exception as error:  # of half a dozen libraries below
            reason = " ".join(str(error).split()) or type(error).__name__
            raise StoreError(f"{self.url} cannot be reached: {reason[:300]}") from error

    def _bucket_exists(self) -> bool:
        try:
            return bool(self._system.exists(self._root.partition("/")[0]))
        except Exception:
            return True


def matches(pattern: str) -> list[str]:
    """Return the URLs of the folders that a glob in a store names, sorted."""
    kind = scheme(pattern)
    system = _system(kind, pattern)
    try:
        found = system.glob(pattern.rstrip("/"), detail=True)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise StoreError(f"{pattern} cannot be reached: {reason[:300]}") from error
    folders = [key for key, entry in found.items() if entry["type"] == "directory"]
    return [f"{kind}://{key.rstrip('/')}" for key in sorted(folders)]


@functools.cache
def _system(kind: str, url: str) -> Any:
    try:
        import fsspec

        importlib.import_module(PACKAGES[kind])
    except ImportError as error:
        raise UserError(
            f"{url} needs a package: pip install {PACKAGES[kind]}"
        ) from error
    options: dict[str, Any] = {}
    if kind == "s3":  # whose own 5 tries are enough; else a hanging store holds 400 s
        options["config_kwargs"] = {"retries": {"max_attempts": 1}}
    return fsspec.filesystem(kind, use_listings_cache=False, **options)


def _is_relative(name: str) -> bool:
    """Tell if a name stays below the folder that it is put in."""
    parts = name.split("/")
    return not any(part in ("", ".", "..") or "\0" in part for part in parts)
