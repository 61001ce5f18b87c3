"""Files read within bounds: no more of them than is meant, and no wait for what never comes.

A path may name anything: a pipe that nobody writes to, an endless device, a file of a gigabyte.
"""

from __future__ import annotations

import errno
import hashlib
import os
import select
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

_Read = TypeVar("_Read")

#: Of a record and the like: room for those of 200,000 ranks.
MAX_JSON_BYTES = 64 << 20
#: Of what lists a sweep's points, of which there are up to 100,000.
MAX_LIST_BYTES = 512 << 20
#: Of a pipe: what makes a config's text (``<(ssh host cat sweep.yaml)``) may take a while.
PIPE_S = 30.0
_PART_BYTES = 1 << 20
_STALE_TRIES = 3  # each is lost only to one more replacement during the reading


class UnfitError(ValueError):
    """What a path names cannot be what is meant; the message says why, and not where."""


def read_file(path: Path | str, limit_bytes: int = MAX_JSON_BYTES) -> bytes:
    """Return what is in a regular file; UnfitError for anything else, and for more than the limit.

    OSError as ``open`` and ``read`` raise it. Where another host replaces the file meanwhile, what
    is read is the newer one.
    """

    def read() -> bytes:
        with _regular(path) as descriptor:
            if os.fstat(descriptor).st_size > limit_bytes:
                raise _too_large(limit_bytes)
            return _read(descriptor, limit_bytes, None)

    return _again_if_stale(read)


def file_sha256(path: Path | str) -> str:
    """Return the checksum of a regular file of any size; errors as ``read_file``."""

    def read() -> str:
        found = hashlib.sha256()
        with _regular(path) as descriptor:
            while part := os.read(descriptor, _PART_BYTES):
                found.update(part)
        return found.hexdigest()

    return _again_if_stale(read)


def read_end(path: Path | str, most_bytes: int) -> bytes:
    """Return the last ``most_bytes`` of a regular file of any size; errors as ``read_file``."""

    def read() -> bytes:
        with _regular(path) as descriptor:
            os.lseek(descriptor, max(0, os.fstat(descriptor).st_size - most_bytes), os.SEEK_SET)
            parts, left = [], most_bytes  # not more of one that somebody still writes to
            while left > 0 and (part := os.read(descriptor, min(left, _PART_BYTES))):
                parts.append(part)
                left -= len(part)
            return b"".join(parts)

    return _again_if_stale(read)


def read_input(path: Path | str, limit_bytes: int, wait_s: float | None = None) -> bytes:
    """Return what is in a file, or comes out of a pipe or a device; UnfitError for too much of it.

    OSError as ``open`` and ``read`` raise it, and where it has not come to its end after ``wait_s``
    (None: PIPE_S).
    """
    descriptor = _open(path)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return _read(descriptor, limit_bytes, None)
        return _read(descriptor, limit_bytes, PIPE_S if wait_s is None else wait_s)
    finally:
        os.close(descriptor)


def _again_if_stale(read: Callable[[], _Read]) -> _Read:
    """Read again, up to three times, where a network file system says that the handle is stale."""
    for _ in range(_STALE_TRIES):
        try:
            return read()
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
    return read()


@contextmanager
def _regular(path: Path | str) -> Iterator[int]:
    descriptor = _open(path)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise UnfitError("no regular file")
        yield descriptor
    finally:
        os.close(descriptor)


def _open(path: Path | str) -> int:
    # Without O_NONBLOCK the opening of a pipe waits for one who writes.
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)


def _read(descriptor: int, limit_bytes: int, wait_s: float | None) -> bytes:
    ends_s = None if wait_s is None else time.monotonic() + wait_s
    parts: list[bytes] = []
    left = limit_bytes + 1
    while left > 0:
        if ends_s is not None:
            _await(descriptor, ends_s, wait_s)
        try:
            part = os.read(descriptor, min(left, _PART_BYTES))
        except BlockingIOError:
            if ends_s is None:
                raise
            continue  # another reader was faster
        if not part:
            return b"".join(parts)
        parts.append(part)
        left -= len(part)
    raise _too_large(limit_bytes)


def _too_large(limit_bytes: int) -> UnfitError:
    size = f"{limit_bytes >> 20} MiB" if limit_bytes >= 1 << 20 else f"{limit_bytes >> 10} KiB"
    return UnfitError(f"larger than {size}")


def _await(descriptor: int, ends_s: float, wait_s: float | None) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if not poll.poll(max(0.0, ends_s - time.monotonic()) * 1e3):
        raise TimeoutError(errno.ETIMEDOUT, f"it has not come to its end in {wait_s:g} s")
