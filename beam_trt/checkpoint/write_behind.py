"""Shards written by a thread of their own, so that the next matrix is quantized meanwhile.

Order and bytes are those of the ShardWriter behind it. Knows nothing about what is written.
"""

import threading
from collections import deque

import torch

from beam_trt.checkpoint.writer import ShardWriter

MAX_WAITING_BYTES = 1 << 28


class WriteBehind:
    """Queue in front of `writer`. Peak memory: MAX_WAITING_BYTES of waiting tensors and the one
    being written; a larger tensor waits alone.

    What goes wrong in the thread is raised by the next `write` or by `commit`. End it with `commit`
    or `abandon`. `writer.on_shard` is called in the thread.
    """

    def __init__(self, writer: ShardWriter) -> None:
        self._writer = writer
        self._waiting: deque[tuple[str, torch.Tensor]] = deque()
        self._waiting_bytes = 0
        self._is_ending = False
        self._error: Exception | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="write-behind", daemon=True)
        self._thread.start()

    def needs(self, name: str) -> bool:
        """See ShardWriter.needs; true for a tensor that was never given to `write`, whatever the
        thread has done so far."""
        return self._writer.needs(name)

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Take one planned tensor; it must not be changed afterwards."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_room(tensor.nbytes) or self._error is not None)
            self._raise_error()
            self._waiting.append((name, tensor))
            self._waiting_bytes += tensor.nbytes
            self._changed.notify_all()

    def commit(self) -> None:
        """Wait for all writes, then write the index; see ShardWriter.commit."""
        self._end()
        self._raise_error()
        self._writer.commit()

    def abandon(self) -> None:
        """Write what waits, so that a stopped run keeps it, and close what is open; nothing to do
        after `commit`. Raises nothing."""
        self._end()
        self._writer.abandon()

    def _has_room(self, nbytes: int) -> bool:
        return not self._waiting or self._waiting_bytes + nbytes <= MAX_WAITING_BYTES

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _end(self) -> None:
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting) or self._is_ending)
                if not self._waiting:
                    return
                name, tensor = self._waiting.popleft()
                self._waiting_bytes -= tensor.nbytes
                self._changed.notify_all()
            try:
                self._writer.write(name, tensor)
            except Exception as error:  # noqa: BLE001  raised again where the caller can see it
                with self._changed:
                    self._error = error
                    self._waiting.clear()
                    self._changed.notify_all()
                return
            # Not held while the next one is waited for.
            del tensor
