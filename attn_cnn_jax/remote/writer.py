"""The thread that writes a local copy to its store while a training fills it."""

import sys
import threading
import time

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.remote.lease import Lease
from attn_cnn_jax.remote.local_copy import LocalCopy
from attn_cnn_jax.remote.store import StoreError

_SECONDS_BETWEEN_LOOKS = 0.5  # for a checkpoint that is complete
_SECONDS_BETWEEN_PUSHES = 30.0  # of records between two checkpoints
_SECONDS_BETWEEN_TRIES = 5.0
_SECONDS_OF_PATIENCE = 60.0  # with a store that is away when a training ends


class Writer:
    """Writes a copy to its store: checkpoints at once, records every half minute.

    A training does not wait for it. A store that is away is told of once, and tried
    again until it is back.
    """

    def __init__(self, copy: LocalCopy, lease: Lease) -> None:
        self._copy, self._lease = copy, lease
        self._ending = threading.Event()
        self._failed: Exception | None = None
        self._deadline = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait until all is in the store; raises a `UserError` if that fails."""
        begin = time.monotonic()
        self._deadline = begin + _SECONDS_OF_PATIENCE
        self._ending.set()
        told = False
        while self._thread.is_alive():
            self._thread.join(1.0)
            if not told and time.monotonic() > begin + 5:
                told = True
                print(f"writing the last to {self._copy.store.url} ...", flush=True)
        if self._failed is not None:
            raise UserError(str(self._failed)) from self._failed

    def _run(self) -> None:
        due = 0.0
        while True:
            ending = self._ending.wait(_SECONDS_BETWEEN_LOOKS)
            soon = self._failed is None and self._copy.has_new_checkpoint()
            if not (ending or soon or time.monotonic() > due):
                continue
            self._push()
            if self._lease.lost or (ending and self._failed is None):
                return
            if ending and time.monotonic() > self._deadline:
                return
            pause = _SECONDS_BETWEEN_PUSHES
            if self._failed is not None:
                pause = _SECONDS_BETWEEN_TRIES
                time.sleep(1 if ending else 0)
            due = time.monotonic() + pause

    def _push(self) -> None:
        url, before = self._copy.store.url, self._failed
        try:
            if not self._lease.is_held():
                raise StoreError(
                    f"{url} was taken over by another process, as this one could not "
                    "be heard of; its steps since are not kept."
                )
            self._copy.push()
            self._failed = None
        except Exception as error:
            self._failed = error
        if self._failed is not None and before is None:
            _warn(f"{self._failed}; training goes on, and it is tried again.")
        elif self._failed is None and before is not None:
            _warn(f"{url} is written again.")


def _warn(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr, flush=True)
