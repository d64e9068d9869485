"""The files of a copy by name, in a folder or a tar archive, never extracted."""

import dataclasses
import gzip
import io
import lzma
import pathlib
import tarfile
from collections.abc import Callable, Collection, Iterator

from attn_cnn_jax.errors import UserError, first_line

MAX_FILE = 256 * 2**20  # bytes; the largest official file has 155 MB
MAX_ARCHIVE = 512 * 2**20  # bytes, decompressed; the official ones have 185 MB


@dataclasses.dataclass(frozen=True)
class Files:
    """Files that are read by their basename; messages say `where` they are."""

    where: str
    readers: dict[str, Callable[[], bytes]]

    def read(self, name: str) -> bytes:
        """Return the bytes of a file; raise `UserError` if missing or too large."""
        if name not in self.readers:
            raise UserError(
                f"{self.where} is incomplete: {name} is missing. Copy or download the "
                "data set again."
            )
        return self.readers[name]()


def of_folder(folder: pathlib.Path) -> Files:
    """Return the regular files that lie directly in a folder."""
    readers = {
        path.name: lambda path=path: read_file(path)
        for path in sorted(folder.iterdir())
        if path.is_file()
    }
    return Files(str(folder), readers)


def read_file(path: pathlib.Path) -> bytes:
    """Return the bytes of a file; raise `UserError` at more than `MAX_FILE` bytes."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE + 1)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    if len(data) > MAX_FILE:
        raise UserError(f"{path} is too large to be a file of CIFAR.")
    return data


def of_archive(path: pathlib.Path, wanted: Collection[str]) -> Files:
    """Read the wanted files of a tar archive (plain, gzip or xz) into memory.

    Members are known by their basename alone and nothing is written to disk, so that
    no path in the archive matters; links, devices and files with holes are passed over.
    """
    found: dict[str, Callable[[], bytes]] = {}
    try:
        with _decompressed(path) as file, tarfile.open(fileobj=file, mode="r|") as tar:
            for member in tar:
                name = member.name.rpartition("/")[2]
                if name not in wanted or not member.isreg() or member.issparse():
                    continue
                if name in found:
                    raise UserError(f"{path} holds two files named {name}.")
                if member.size > MAX_FILE:
                    raise UserError(f"{name} in {path} is too large to be of CIFAR.")
                content = tar.extractfile(member)
                assert content is not None  # a regular file always has content
                data = content.read()
                if len(data) != member.size:
                    raise EOFError(f"{name} is cut short")
                found[name] = lambda data=data: data
            while file.read(2**20):
                pass  # to the end, where gzip and xz keep their checksums
    except UserError:
        raise
    except Exception as error:  # tarfile and gzip raise whatever they like
        raise UserError(
            f"{path} is truncated or no tar archive ({first_line(error)}). Download it "
            "again."
        ) from error
    return Files(str(path), found)


def _decompressed(path: pathlib.Path) -> "_Bounded":
    with path.open("rb") as file:
        start = file.read(6)
    if start.startswith(b"\x1f\x8b"):
        return _Bounded(gzip.open(path), path)
    if start.startswith(b"\xfd7zXZ\x00"):
        return _Bounded(lzma.open(path), path)
    return _Bounded(path.open("rb"), path)


class _Bounded(io.RawIOBase):
    """A reader that refuses to go on past `MAX_ARCHIVE` bytes (a compression bomb)."""

    def __init__(self, file, path: pathlib.Path):
        self._file, self._path, self._left = file, path, MAX_ARCHIVE

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(min(size, self._left + 1) if size >= 0 else 2**20)
        self._left -= len(data)
        if self._left < 0:
            raise UserError(f"{self._path} unpacks to more than any archive of CIFAR.")
        return data

    def close(self) -> None:
        self._file.close()
        super().close()


def folders(root: pathlib.Path, depth: int) -> Iterator[list[pathlib.Path]]:
    """Yield the folders of each level: [root], the folders in it, those in them.

    Hidden folders and what was left incomplete are passed over, and a level is cut at
    1,000 folders: a home directory is no data set.
    """
    level = [root]
    for _ in range(depth + 1):
        yield level
        level = [child for folder in level for child in _children(folder)][:1000]


def _children(folder: pathlib.Path) -> list[pathlib.Path]:
    try:
        return [
            path
            for path in sorted(folder.iterdir())
            if path.is_dir()
            and not path.name.startswith(".")
            and "incomplete" not in path.name
        ]
    except OSError:  # not ours to read, then it is not the copy either
        return []
