"""What the data files of all workloads begin with, and the chunks that two of them are made of.

Layout, little-endian: 8 bytes of magic, the length and the CRC-32 of the header (uint32 each), the
header (JSON), all within the first page. A file of chunks has, from the second page on, a table of
checksums: one row a kind of content, one column a chunk (uint32).
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workloads.made_once import UnusableFile, pwrite

PAGE = 4096
PREFIX_BYTES = 16
_MAX_WORKERS = 8  # beyond it the disk decides

#: Where a piece lies in its file: (offset, bytes).
Piece = tuple[int, int]


def header_bytes(magic: bytes, header: Mapping[str, Any]) -> bytes:
    """Return what a file with ``header`` begins with; ValueError where a page does not hold it."""
    text = json.dumps(header, sort_keys=True).encode()
    if len(text) > PAGE - PREFIX_BYTES:
        raise ValueError(f"a header of {len(text)} bytes")
    return magic + np.array([len(text), zlib.crc32(text)], "<u4").tobytes() + text


def read_header(magic: bytes, fd: int) -> dict[str, Any]:
    """Return the header's JSON object, checked against its own checksum; or UnusableFile."""
    page = os.pread(fd, PAGE, 0)
    if page[:8] != magic:
        raise UnusableFile("it does not begin as such a file does")
    length, crc = (int(value) for value in np.frombuffer(page[8:PREFIX_BYTES], "<u4"))
    text = page[PREFIX_BYTES : PREFIX_BYTES + length]
    if len(text) != length or zlib.crc32(text) != crc:
        raise UnusableFile("its header is damaged")
    header: dict[str, Any] = json.loads(text)
    return header


def table_end(chunks: int) -> int:
    """Return where the page behind a table of two rows begins, in bytes."""
    return PAGE + -(-chunks * 8 // PAGE) * PAGE


def check_chunks(
    fd: int,
    magic: bytes,
    header: Mapping[str, object],
    size_bytes: int,
    chunks: int,
    pieces: Callable[[int], Sequence[Piece]],
    probes: int,
) -> None:
    """Raise UnusableFile unless the file is whole: size, header, table, and ``probes`` chunks.

    ``pieces(chunk)`` says where the two pieces of a chunk lie, in the order of the table's rows.
    """
    size = os.fstat(fd).st_size
    if size != size_bytes:
        raise UnusableFile(f"it has {size} bytes instead of {size_bytes}")
    found = read_header(magic, fd)
    table = os.pread(fd, chunks * 8, PAGE)
    if found.pop("table_crc32", None) != zlib.crc32(table):
        raise UnusableFile("its table of checksums is damaged")
    if found != header:
        raise UnusableFile("its header describes other data")
    sums = np.frombuffer(table, "<u4").reshape(2, chunks)
    for chunk in np.linspace(0, chunks - 1, min(probes, chunks)).astype(int).tolist():
        seen = [zlib.crc32(os.pread(fd, count, offset)) for offset, count in pieces(chunk)]
        if seen != sums[:, chunk].tolist():
            raise UnusableFile(f"the checksum of its chunk {chunk} is wrong")


def write_chunks(
    fd: int,
    magic: bytes,
    header: Mapping[str, object],
    chunks: int,
    pieces: Callable[[int], Sequence[Piece]],
    make: Callable[[int], Sequence[NDArray[Any]]],
) -> None:
    """Write all chunks, by threads (NumPy and zlib let go of the interpreter), then the header.

    ``make(chunk)`` returns the two arrays that lie at ``pieces(chunk)``.
    """
    sums = np.zeros((2, chunks), "<u4")

    def write_chunk(chunk: int) -> None:
        for row, (array, (offset, _)) in enumerate(zip(make(chunk), pieces(chunk), strict=True)):
            data = array.data.cast("B")
            sums[row, chunk] = zlib.crc32(data)
            pwrite(fd, data, offset)

    pool = ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), _MAX_WORKERS, chunks))
    try:
        for _ in pool.map(write_chunk, range(chunks)):
            pass
    finally:
        pool.shutdown(cancel_futures=True)
    table = sums.tobytes()
    pwrite(fd, table, PAGE)
    pwrite(fd, header_bytes(magic, {**header, "table_crc32": zlib.crc32(table)}), 0)
