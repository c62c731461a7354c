"""Writes files beside runs, in `.vario` of the folder that they are in. Folders are opened without following links."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vario.core.errors import RunError

FOLDER = ".vario"
LOCK = "lock"
_OPENED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def beside(folder: Path) -> Iterator[int]:
    """Open `.vario` of a folder, made if it is missing, for one writer at a time."""
    try:
        with opened(folder) as above, inner(above, FOLDER) as found:
            lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=found)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield found
            finally:
                os.close(lock)
    except OSError as error:
        raise RunError(f"{folder / FOLDER}: cannot be written: {error.strerror}") from error


def replace_file(descriptor: int, name: str, content: bytes) -> None:
    """Write a file of an opened folder, whole or not at all."""
    unfinished = f"{name}.tmp"
    with suppress(FileNotFoundError):
        os.unlink(unfinished, dir_fd=descriptor)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(unfinished, flags, 0o666, dir_fd=descriptor)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(file, left) :]
    finally:
        os.close(file)
    os.replace(unfinished, name, src_dir_fd=descriptor, dst_dir_fd=descriptor)


@contextmanager
def opened(folder: Path) -> Iterator[int]:
    """Open a folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def inner(above: int, name: str) -> Iterator[int]:
    """Open a folder in an opened one, made if it is missing."""
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=above)
    descriptor = os.open(name, _OPENED, dir_fd=above)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
