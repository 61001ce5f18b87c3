"""The kernel's file cache: how much of some files it holds, and having it drop them. Linux only.

``posix_fadvise(DONTNEED)`` drops neither pages that were not written to the disk yet nor pages that
any process has mapped. So files are synchronised first, and every process lets go of the pages of
its own maps (``release_maps``) before one of them asks the kernel to drop the files. A file system
whose files are only in memory (tmpfs) keeps them; ``cached_share`` tells.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

#: Of more files, so many evenly spread ones are looked at.
_LOOKED_AT = 2000
_MADV_DONTNEED = 4


@dataclass(frozen=True)
class _Map:
    """A shared map of a file, as /proc/PID/maps has it."""

    start: int
    stop: int
    path: str


def drop(files: Sequence[Path], limit_s: float) -> None:
    """Ask the kernel to drop ``files`` from its cache; after ``limit_s`` the rest is left.

    Whether it did is asked of ``cached_share``. OSError where a file cannot be opened.
    """
    until_s = time.monotonic() + limit_s
    for path in files:
        if time.monotonic() > until_s:
            return
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def release_maps(files: Sequence[Path], maps: Path = Path("/proc/self/maps")) -> int:
    """Let this process's shared maps of ``files`` go of their pages; return the bytes mapped.

    The maps stay valid: what is read again comes from the cache, or the disk. Private maps are left
    alone, as this would undo what was written into them.
    """
    if len(files) > _LOOKED_AT:
        return 0  # so many are read one by one; resolving their names could take minutes
    # Not by inode: on some file systems (btrfs, overlays) maps show another device than stat.
    names = {os.path.realpath(path) for path in files}
    found = [one for one in _shared_maps(maps) if one.path in names]
    for one in found:
        size = one.stop - one.start
        if _libc().madvise(ctypes.c_void_p(one.start), ctypes.c_size_t(size), _MADV_DONTNEED):
            raise OSError(ctypes.get_errno(), "madvise(MADV_DONTNEED) of a map")
    return sum(one.stop - one.start for one in found)


def total_bytes(files: Sequence[Path]) -> int:
    """Return the bytes of ``files``; of very many it is estimated from some."""
    some = _some(files)
    found = sum(path.stat().st_size for path in some)
    return found * len(files) // len(some) if some else 0


def cached_share(files: Sequence[Path]) -> float | None:
    """Return which share of the pages of ``files`` the kernel's cache holds, 0 to 1.

    None where it does not tell: since Linux 5.2 ``mincore`` says "all" of files that the caller
    neither owns nor may write. Of very many files some are looked at.
    """
    held = pages = 0
    for path in _some(files):
        one = _cached_pages(path)
        if one is None:
            return None
        held += one[0]
        pages += one[1]
    return held / pages if pages else 0.0


def _some(files: Sequence[Path]) -> Sequence[Path]:
    return files[:: max(1, len(files) // _LOOKED_AT)]


def _cached_pages(path: Path) -> tuple[int, int] | None:
    """Return (pages in the cache, pages) of a file."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if os.geteuid() not in (0, status.st_uid) and not os.access(path, os.W_OK):
            return None
        if not status.st_size:
            return 0, 0
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            return _resident(mapped)


def _resident(mapped: mmap.mmap) -> tuple[int, int]:
    pages = -(-len(mapped) // mmap.PAGESIZE)
    answer = np.zeros(pages, dtype=np.uint8)
    view = np.frombuffer(mapped, dtype=np.uint8)  # of the address; touches no page
    failed = _libc().mincore(
        ctypes.c_void_p(view.ctypes.data),
        ctypes.c_size_t(len(mapped)),
        ctypes.c_void_p(answer.ctypes.data),
    )
    del view  # else the map could not be closed
    if failed:
        raise OSError(ctypes.get_errno(), "mincore of a file's map")
    return int((answer & 1).sum()), pages


def _shared_maps(maps: Path) -> Iterator[_Map]:
    for line in maps.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        addresses, mode, _, _, _, *path = line.split(maxsplit=5)
        if mode.endswith("s") and path:
            start, stop = (int(address, 16) for address in addresses.split("-"))
            yield _Map(start, stop, path[0])


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
