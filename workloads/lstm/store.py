"""A file of tokens: written once, whole or not at all, and mapped by every rank.

Layout, little-endian: the header of ``workloads.headed``, filled up to a page of 4096 bytes,
then the tokens, uint8 where the vocabulary has at most 256 of them, else int32. The header
holds what the tokens are made of, their number, and the CRC-32 of the first and of the last
mebibyte, which are checked whenever the file is opened: a truncated file or one with holes at its
end is found, at a cost of milliseconds. The rest is settled by how a file is made
(``workloads.made_once``): it gets its name when it is whole.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workloads.api import WorkloadError
from workloads.headed import PAGE, header_bytes, read_header
from workloads.made_once import MadeFile, UnusableFile, pwrite, reason

MAGIC = b"hvdslm\x00\x01"
_PROBE_BYTES = 1 << 20


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
        MadeFile(
            self.path,
            None,  # a text's words are counted as they are written
            write=lambda fd: self._write(tokens(), fd),
            check=self._check,
            what="workload lstm: tokens",
            fewer="choose another data folder",
            put="written to",
        ).ensure()

    def open(self) -> NDArray[Any]:
        """Return the tokens, memory-mapped and read-only; WorkloadError where there are none."""
        try:
            with self.path.open("rb") as file:
                count = self._check(file.fileno())
                # The very file that was checked is mapped, whatever its name stands for by now.
                tokens = np.memmap(file, self.dtype, "r", PAGE, (count,))
        except (OSError, UnusableFile) as error:
            raise WorkloadError(
                f"workload lstm: tokens {self.path} cannot be used: {reason(error)}; "
                "prepare them first"
            ) from error
        return np.asarray(tokens)

    def _check(self, fd: int) -> int:
        """Return the number of tokens; UnusableFile unless the file is whole and what it should be.

        ``made_of`` must be equal; what else the header says was found while the tokens were made.
        """
        header = read_header(MAGIC, fd)
        if header.get("made_of") != self.made_of or header.get("dtype") != self.dtype.str:
            raise UnusableFile("its header describes other tokens")
        count = int(header["count"])
        size = os.fstat(fd).st_size
        wanted = PAGE + count * self.dtype.itemsize
        if size != wanted:
            raise UnusableFile(f"it has {size} bytes instead of {wanted}")
        if header["probes"] != _probes(fd, size):
            raise UnusableFile("its checksum is wrong")
        return count

    def _write(self, chunks: Iterable[NDArray[Any]], fd: int) -> None:
        """Write all tokens, then the header."""
        size = PAGE
        for chunk in chunks:
            data = np.ascontiguousarray(chunk, self.dtype).view(np.uint8).data
            pwrite(fd, data, size)
            size += data.nbytes
        header = {
            "made_of": dict(self.made_of),
            "dtype": self.dtype.str,
            "count": (size - PAGE) // self.dtype.itemsize,
            "probes": _probes(fd, size),
        }
        pwrite(fd, header_bytes(MAGIC, header).ljust(PAGE, b"\x00"), 0)


def _probes(fd: int, size: int) -> list[int]:
    """Return the CRC-32 of the first and of the last mebibyte of the tokens."""
    last = max(PAGE, size - _PROBE_BYTES)
    return [zlib.crc32(os.pread(fd, _PROBE_BYTES, start)) for start in (PAGE, last)]
