"""A file that a training appends to, and that no full disk tears."""

import contextlib
import os
import pathlib
import warnings


class GrowingFile:
    """A file that is appended to; what could not be written (the disk is full) is kept.

    It is tried again with the next write, at its own place, so that nothing is torn.
    No failure raises; a warning tells the first.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path, self._failing = path, False
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._size = os.fstat(self._file).st_size
        self._unwritten = b""

    def write(self, content: bytes) -> None:
        """Append the content, behind what could not be written before."""
        self._unwritten += content
        try:
            while self._unwritten:
                count = os.pwrite(self._file, self._unwritten, self._size)
                self._size += count
                self._unwritten = self._unwritten[count:]
            self._failing = False
        except OSError as error:
            self._tell(error)

    def sync(self) -> None:
        """Bring all to the disk, where a loss of power does not reach it."""
        self.write(b"")
        try:
            os.fsync(self._file)
        except OSError as error:
            self._tell(error)

    def _tell(self, error: OSError) -> None:
        """Warn once, until it works again."""
        if not self._failing:
            warnings.warn(
                f"{self._path} cannot be written ({error}); training goes on, and it "
                "is tried again.",
                stacklevel=4,
            )
        self._failing = True

    def close(self) -> None:
        """Close the file; a warning says what could not be written."""
        self.sync()
        with contextlib.suppress(OSError):
            os.close(self._file)
        if self._unwritten:
            warnings.warn(
                f"the last {len(self._unwritten)} bytes of {self._path} could not be "
                "written.",
                stacklevel=4,
            )
