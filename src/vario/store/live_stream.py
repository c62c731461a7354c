"""A file that grows by whole pieces or not at all."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from pathlib import Path


class LiveStream:
    """Appends pieces to one file and keeps those the disk would not take, in order, for the next try.

    `opening` returns the first bytes of a new file if this one vanishes (its folder was deleted), from the `mark` of
    the last piece that was kept.
    """

    def __init__(self, path: Path, opening: Callable[[int], bytes]) -> None:
        self.path = path
        self.size = 0
        self.pending_bytes = 0
        self._opening = opening
        self._pending: deque[tuple[bytes, int]] = deque()
        self._mark: int | None = None
        self._descriptor: int | None = None

    def append(self, piece: bytes, mark: int) -> None:
        """Queue one piece; `flush` hands it to the kernel."""
        self._pending.append((piece, mark))
        self.pending_bytes += len(piece)

    def flush(self) -> None:
        """Hand everything queued to the kernel; on an OSError the file still ends with a whole piece."""
        if not self._pending:
            return
        descriptor = self._open()
        while self._pending:
            piece, mark = self._pending[0]
            self._write_whole(descriptor, piece)
            self._pending.popleft()
            self.pending_bytes -= len(piece)
            self._mark = mark

    def rename(self, path: Path) -> None:
        """Close the file under another name."""
        os.rename(self.path, path)
        self.close()

    def close(self) -> None:
        """Close the descriptor; nothing is buffered here, so nothing is lost."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        if self._descriptor is not None:
            if os.fstat(self._descriptor).st_nlink:
                return self._descriptor
            # Someone deleted the file: further writes would succeed and keep nothing.
            self.close()
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self.size = 0
        if self._mark is not None:
            self._pending.appendleft((self._opening(self._mark), self._mark))
            self.pending_bytes += len(self._pending[0][0])
            # Queued like any piece from here on: losing the file again must not queue it twice.
            self._mark = None
        return self._descriptor

    def _write_whole(self, descriptor: int, piece: bytes) -> None:
        # Explicit offsets: if truncating the tail below fails too, the next try overwrites it.
        written = 0
        view = memoryview(piece)
        try:
            while written < len(piece):
                written += os.pwrite(descriptor, view[written:], self.size + written)
        except OSError:
            if written:
                os.ftruncate(descriptor, self.size)
            raise
        self.size += len(piece)
