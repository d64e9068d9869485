"""Fetch the official archive, go on where it broke off, and check its digest."""

import fcntl
import hashlib
import http.client
import os
import pathlib
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import BinaryIO

from tqdm import tqdm

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.prepare_data.verify import builder_class

TRIES = 5  # in a row without a new byte, before giving up
TIMEOUT = 60.0  # seconds without an answer
BLOCK = 2**16  # bytes


def official_archive(dataset: str) -> tuple[str, int, str]:
    """Return URL, size (bytes) and sha256 (hex) of the archive as TFDS records them."""
    [(url, info)] = (builder_class(dataset).url_infos or {}).items()
    return url, int(info.size), info.checksum


def fetch(
    url: str,
    destination: pathlib.Path,
    *,
    size: int,
    sha256: str,
    wait: Callable[[float], object] = time.sleep,
) -> pathlib.Path:
    """Download `url` to `destination`, which appears only with the right digest.

    What has come so far lies in `destination` + `.part`, from which a later call goes
    on. After a failure `wait` is called with the seconds to wait. Raises a `UserError`
    where the server cannot be reached, refuses, or sends another file.
    """
    if not url.startswith(("http://", "https://")):
        raise UserError(f"--url={url} has to begin with http:// or https://.")
    part = destination.with_name(f"{destination.name}.part")
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        if destination.exists():
            if _digest(destination) == sha256:
                return destination
            print(f"{destination} is damaged: it is downloaded again.")
            destination.unlink()
        with part.open("a+b") as file:
            _lock(file, part)
            _fill(url, file, size, wait)
        found = _digest(part)
        if found != sha256:
            part.unlink()
            raise UserError(
                f"{url} is not the official archive: its sha256 is {found}, not "
                f"{sha256}. It was deleted; try again or another --url."
            )
        os.replace(part, destination)
    except OSError as error:
        raise UserError(
            f"{destination} cannot be written: {error}. Make room there or choose "
            "another --data_dir; what has come so far is kept."
        ) from error
    return destination


def _lock(file: BinaryIO, part: pathlib.Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UserError(f"another run is downloading {part}.") from error
    except OSError:
        pass  # a file system without locks; the digest still decides


def _fill(url: str, file: BinaryIO, size: int, wait: Callable[[float], object]) -> None:
    """Bring `file` to `size` bytes, trying again as long as more of it comes."""
    most, failures = _length(file), 0
    with tqdm(
        total=size, desc="download", unit="B", unit_scale=True, disable=None
    ) as bar:
        while _length(file) != size:
            if _length(file) > size:
                file.truncate(0)
            reason = _attempt(url, file, size, bar)
            if reason is None:
                continue
            failures = 1 if _length(file) > most else failures + 1
            most = max(most, _length(file))
            if failures >= TRIES:
                raise UserError(
                    f"{url} cannot be downloaded: {reason}. Run the command again to "
                    "go on from there, or give a copy you have with --source."
                )
            wait(2.0 ** (failures - 1))


def _attempt(url: str, file: BinaryIO, size: int, bar: tqdm) -> str | None:
    """Ask once for what is missing; return why it did not all come, or None."""
    have = _length(file)
    headers = {"Range": f"bytes={have}-"} if have else {}
    request = urllib.request.Request(url, headers=headers)
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:
            file.truncate(0)  # the part is longer than the server's file
        elif error.code < 500 and error.code not in (408, 429):
            raise UserError(
                f"{url} cannot be downloaded: the server answers {error.code} "
                f"{error.reason}. Try another --url, or --source with a copy."
            ) from error
        return f"the server answers {error.code}"
    except (OSError, http.client.HTTPException) as error:
        return str(getattr(error, "reason", error))
    with response:
        answer = response.headers.get("Content-Range", "")
        total = response.headers.get("Content-Length")
        if response.status == 206:
            total = answer.rpartition("/")[2]
        if total and total.isdecimal() and int(total) != size:
            file.truncate(0)
            raise UserError(
                f"{url} is not the official archive: it has {total} bytes, not "
                f"{size}. Try another --url, or --source with a copy."
            )
        if response.status == 206 and not answer.startswith(f"bytes {have}-"):
            file.truncate(0)
            return "the server sent another part than was asked for"
        if response.status != 206:
            file.truncate(0)  # it sends the whole file, whatever it was asked for
        return _copy(response, file, size, bar)


def _copy(response, file: BinaryIO, size: int, bar: tqdm) -> str | None:
    """Append what the server sends; return why it is not all, or None."""
    bar.n = _length(file)
    while True:
        try:
            data = response.read1(BLOCK)
        except (OSError, http.client.HTTPException) as error:
            return str(error)
        if not data:
            return None if _length(file) == size else "the connection broke off"
        file.write(data)
        file.flush()
        bar.update(len(data))
        if _length(file) > size:
            file.truncate(0)
            raise UserError(
                f"{response.url} is not the official archive: it has more than {size} "
                "bytes. It was deleted; try another --url."
            )


def _length(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _digest(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
