"""The scalars of a run for TensorBoard."""

import os
import pathlib
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

from attn_cnn_jax.growing_file import GrowingFile


class Events:
    """A file of scalars for TensorBoard, of a step on; it hides those of other files.

    It is a TFRecord file: length and content of each event, a checksum behind both.
    """

    def __init__(self, folder: pathlib.Path, first_step: int) -> None:
        from tensorboardX.proto import event_pb2

        folder.mkdir(exist_ok=True)
        now = time.time_ns()
        host = socket.gethostname()
        name = f"events.out.tfevents.{now // 10**9}.{host}.{os.getpid()}.{now}"
        self._file = GrowingFile(folder / name)
        self._messages: Any = event_pb2
        begin = self._messages.SessionLog(status=self._messages.SessionLog.START)
        self._write(file_version="brain.Event:2")
        self._write(step=first_step, session_log=begin)

    def write(self, step: int, split: str, values: Mapping[str, int | float]) -> None:
        """Write the values as the scalars split/name."""
        from tensorboardX.summary import scalar

        for name, value in values.items():
            self._write(step=step, summary=scalar(f"{split}/{name}", value))

    def _write(self, **fields: Any) -> None:
        from tensorboardX.record_writer import masked_crc32c

        event = self._messages.Event(wall_time=time.time(), **fields)
        content = event.SerializeToString()
        length = struct.pack("<Q", len(content))
        checks = (struct.pack("<I", masked_crc32c(part)) for part in (length, content))
        self._file.write(length + next(checks) + content + next(checks))

    def sync(self) -> None:
        """Bring all to the disk."""
        self._file.sync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
