"""A file of tokens: written once, whole or not at all, and mapped by every rank.

Layout, little-endian: a page of 4096 bytes (magic, length and CRC-32 of a JSON text, the text),
then the tokens, uint8 where the vocabulary has at most 256 of them, else int32. The JSON text
holds what the tokens are made of, their number, and the CRC-32 of the first and of the last
mebibyte, which are checked whenever the file is opened: a truncated file or one with holes at its
end is found, at a cost of milliseconds. The rest is settled by how the file comes about: under
another name, synced, and renamed.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import secrets
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from workloads.api import WorkloadError

_log = logging.getLogger(__name__)

MAGIC = b"hvdslm\x00\x01"
PAGE = 4096
_PREFIX_BYTES = 16
_PROBE_BYTES = 1 << 20
_STALE_S = 3600.0
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class UnusableFile(Exception):
    """A file is not the whole, undamaged set of tokens that its name says; says why."""


@dataclass(frozen=True)
class TokenFile:
    """Where some tokens are, and what they are made of: ``made_of`` decides every one of them."""

    path: Path
    made_of: Mapping[str, Any]
    vocabulary: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """The tokens' type: the smallest that both frameworks take indices of."""
        return np.dtype("u1" if self.vocabulary <= 256 else "<i4")

    def ensure(self, tokens: Callable[[], Iterable[NDArray[Any]]]) -> None:
        """Write ``tokens()`` where there is no good file; safe when many processes call it.

        WorkloadError where the folder cannot be written or is full.
        """
        if self._fault() is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _lock(self.path):
                fault = self._fault()  # once more: who held the lock has made it, most likely
                if fault is None:
                    return
                if self.path.exists():
                    _log.warning("%s is not usable (%s) and is made anew", self.path, fault)
                self._remove_stale()
                self._write(tokens())
        except OSError as error:
            raise WorkloadError(
                f"workload lstm: tokens cannot be written to {self.path.parent}: "
                f"{error.strerror or error}; make room, or choose another data folder"
            ) from error

    def open(self) -> NDArray[Any]:
        """Return the tokens, memory-mapped and read-only; WorkloadError where there are none."""
        try:
            with self.path.open("rb") as file:
                count = self._check(file)
                # The very file that was checked is mapped, whatever its name stands for by now.
                tokens = np.memmap(file, self.dtype, "r", PAGE, (count,))
        except (OSError, UnusableFile) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise WorkloadError(
                f"workload lstm: tokens {self.path} cannot be used: {why}; prepare them first"
            ) from error
        return np.asarray(tokens)

    def _fault(self) -> str | None:
        """Say why there is no good file, None where there is one."""
        try:
            with self.path.open("rb") as file:
                self._check(file)
        except (OSError, UnusableFile) as error:
            return (isinstance(error, OSError) and error.strerror) or str(error)
        return None

    def _check(self, file: BinaryIO) -> int:
        """Return the number of tokens; UnusableFile unless the file is whole and what it should be.

        ``made_of`` must be equal; what else the header says was found while the tokens were made.
        """
        header = _read_header(os.pread(file.fileno(), PAGE, 0))
        if header.get("made_of") != self.made_of or header.get("dtype") != self.dtype.str:
            raise UnusableFile("its header describes other tokens")
        count = int(header["count"])
        size = os.fstat(file.fileno()).st_size
        wanted = PAGE + count * self.dtype.itemsize
        if size != wanted:
            raise UnusableFile(f"it has {size} bytes instead of {wanted}")
        if header["probes"] != _probes(file.fileno(), size):
            raise UnusableFile("its checksum is wrong")
        return count

    def _remove_stale(self) -> None:
        """Remove what killed processes left half-written; a live one's grows all the time."""
        for temporary in self.path.parent.glob(f"{self.path.name}.*.tmp"):
            try:
                if time.time() - temporary.stat().st_mtime > _STALE_S:
                    temporary.unlink()
            except FileNotFoundError:
                continue  # another process was faster

    def _write(self, chunks: Iterable[NDArray[Any]]) -> None:
        """Write all tokens beside the file and rename it there; on any failure leave nothing."""
        temporary = self.path.with_name(f"{self.path.name}.{secrets.token_hex(8)}.tmp")
        try:
            with temporary.open("x+b") as file:
                file.seek(PAGE)
                count = 0
                for chunk in chunks:
                    file.write(np.ascontiguousarray(chunk, self.dtype).data)
                    count += len(chunk)
                file.flush()
                size = PAGE + count * self.dtype.itemsize
                header = {
                    "made_of": dict(self.made_of),
                    "dtype": self.dtype.str,
                    "count": count,
                    "probes": _probes(file.fileno(), size),
                }
                file.seek(0)
                file.write(_header_page(header))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        fd = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _header_page(header: Mapping[str, Any]) -> bytes:
    text = json.dumps(header, sort_keys=True).encode()
    if len(text) > PAGE - _PREFIX_BYTES:
        raise ValueError(f"a header of {len(text)} bytes")
    prefix = np.array([len(text), zlib.crc32(text)], "<u4").tobytes()
    return (MAGIC + prefix + text).ljust(PAGE, b"\x00")


def _read_header(page: bytes) -> dict[str, Any]:
    if page[:8] != MAGIC:
        raise UnusableFile("it does not begin as such a file does")
    length, crc = (int(value) for value in np.frombuffer(page[8:_PREFIX_BYTES], "<u4"))
    text = page[_PREFIX_BYTES : _PREFIX_BYTES + length]
    if len(text) != length or zlib.crc32(text) != crc:
        raise UnusableFile("its header is damaged")
    header: dict[str, Any] = json.loads(text)
    return header


def _probes(fd: int, size: int) -> list[int]:
    """Return the CRC-32 of the first and of the last mebibyte of the tokens."""
    last = max(PAGE, size - _PROBE_BYTES)
    return [zlib.crc32(os.pread(fd, _PROBE_BYTES, start)) for start in (PAGE, last)]


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Keep processes from making the same tokens twice; without file locks they do, to no harm."""
    # The lock file stays: to remove it would let two processes hold locks on two files of one name.
    fd = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            _log.warning("%s: no file locks here; each process may write it", path.parent)
        yield
    finally:
        os.close(fd)
