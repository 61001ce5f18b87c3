"""The data set's file: made once, whole or not at all, and memory-mapped by every rank.

Layout, little-endian::

    0            8 bytes   magic
    8            uint32    length of the JSON text
    12           uint32    CRC-32 of the JSON text
    16           JSON      format, generator, count, shape, seed, noise; CRC-32 of the table
    4096         uint32    table: CRC-32 of each chunk's inputs, then of each chunk's labels
    (4096 * k)   float32   inputs (n, 3, 200), C order
    behind it    float32   labels (n, 2), C order

The content is checked by the chunk (``CHUNK`` curves): all chunks on demand, eight spread over the
file whenever it is opened, which costs milliseconds. The rest is settled by how a file is made: it
is written under another name, its header last, synced, and renamed. Only ``rename`` has to be
atomic within a folder, as POSIX says. The lock (``flock``) merely keeps processes from making the
same data twice: on a file system without it, or with locks of one node alone, each makes its own
temporary file and the last rename wins, with the same bytes.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import secrets
import shutil
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from workloads.api import WorkloadError
from workloads.stress_strain.curves import (
    CHANNELS,
    GENERATOR_VERSION,
    LABELS,
    POINTS,
    CurveSpec,
    Float,
    make_curves,
)

_log = logging.getLogger(__name__)

MAGIC = b"hvdsscv\x01"
CHUNK = 2048  # curves a chunk: 4.9 MB, the unit of work and of checksums
_PAGE = 4096
_PREFIX_BYTES = 16
_PROBES = 8  # chunks looked at when a file is opened
_MAX_WORKERS = 8  # beyond it the disk decides
_STALE_TEMPORARY_S = 3600.0
_INPUT_BYTES = CHANNELS * POINTS * 4  # a curve
_LABEL_BYTES = LABELS * 4


@dataclass(frozen=True)
class DataSpec:
    """Everything that decides the bytes of a data set."""

    count: int
    curves: CurveSpec

    def header(self) -> dict[str, object]:
        """Return what the file's header must say, less the checksum of its table."""
        return {
            "format": "hvdscale stress_strain",
            "generator": GENERATOR_VERSION,
            "count": self.count,
            "shape": [CHANNELS, POINTS],
            "labels": LABELS,
            "dtype": "<f4",
            "chunk": CHUNK,
            **asdict(self.curves),
        }

    def path(self, folder: Path) -> Path:
        """Return the file of this data set; unlike data sets have unlike names."""
        text = json.dumps(self.header(), sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        return folder / f"stress_strain-{self.count}-{digest}.f32"

    @property
    def chunks(self) -> int:
        """The number of chunks, the last of which may be short."""
        return -(-self.count // CHUNK)

    @property
    def inputs_offset(self) -> int:
        """Where the inputs begin, in bytes."""
        return _PAGE + -(-self.chunks * 8 // _PAGE) * _PAGE

    @property
    def labels_offset(self) -> int:
        """Where the labels begin, in bytes."""
        return self.inputs_offset + self.count * _INPUT_BYTES

    @property
    def file_bytes(self) -> int:
        """The exact size of the file."""
        return self.labels_offset + self.count * _LABEL_BYTES

    def span(self, chunk: int) -> tuple[int, int]:
        """Return the first curve of a chunk and the one behind its last."""
        return chunk * CHUNK, min((chunk + 1) * CHUNK, self.count)


@dataclass(frozen=True)
class DataSet:
    """A checked, read-only, memory-mapped data set."""

    inputs: Float  # (n, 3, 200)
    labels: Float  # (n, 2)


class UnusableFile(Exception):
    """A file is not the whole, undamaged data set that its name says; the message says why."""


def ensure(spec: DataSpec, folder: Path) -> Path:
    """Make the data set where there is no good file of it; return its path.

    Safe when many processes call it at once. A file that is partial, damaged or foreign is
    replaced, with a warning. Raises WorkloadError where the folder cannot be written or is full.
    """
    path = spec.path(folder)
    if _is_good(spec, path):
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _lock(path):
            if not _is_good(spec, path):
                if path.exists():
                    _log.warning("%s is not usable and is made anew", path)
                _remove_stale(path)
                _make(spec, path)
    except OSError as error:
        raise _as_workload_error(error, spec, folder) from error
    return path


def open_data(spec: DataSpec, folder: Path, every_chunk: bool = False) -> DataSet:
    """Check the file and map it, read-only; raise WorkloadError where there is no good one."""
    path = spec.path(folder)
    try:
        with path.open("rb") as file:
            _check(spec, file, every_chunk)
            # The very file that was checked is mapped, even if its name has been given away since.
            inputs = np.memmap(
                file, "<f4", "r", spec.inputs_offset, (spec.count, CHANNELS, POINTS), "C"
            )
            labels = np.memmap(file, "<f4", "r", spec.labels_offset, (spec.count, LABELS), "C")
    except (OSError, UnusableFile) as error:
        raise WorkloadError(
            f"stress_strain data {path} cannot be used: {_reason(error)}; prepare it first"
        ) from error
    return DataSet(np.asarray(inputs), np.asarray(labels))


def _is_good(spec: DataSpec, path: Path) -> bool:
    """Say whether ``path`` is a good file; one that is there but cannot be read is an error."""
    try:
        with path.open("rb") as file:
            _check(spec, file)
    except FileNotFoundError:
        return False
    except UnusableFile as error:
        _log.info("%s: %s", path, error)
        return False
    except OSError as error:
        raise WorkloadError(
            f"stress_strain data {path} cannot be read: {_reason(error)}; move it away or choose "
            "another data folder"
        ) from error
    return True


def _check(spec: DataSpec, file: BinaryIO, every_chunk: bool = False) -> None:
    """Raise UnusableFile unless ``file`` is the whole data set ``spec``."""
    fd = file.fileno()
    size = os.fstat(fd).st_size
    if size != spec.file_bytes:
        raise UnusableFile(f"it has {size} bytes instead of {spec.file_bytes}")
    header = _read_header(os.pread(fd, _PAGE, 0))
    table = os.pread(fd, spec.chunks * 8, _PAGE)
    if header.pop("table_crc32", None) != zlib.crc32(table):
        raise UnusableFile("its table of checksums is damaged")
    if header != spec.header():
        raise UnusableFile("its header describes other data")
    sums = np.frombuffer(table, "<u4").reshape(2, spec.chunks)
    probes = spec.chunks if every_chunk else min(_PROBES, spec.chunks)
    for chunk in np.linspace(0, spec.chunks - 1, probes).astype(int).tolist():
        if _chunk_sums(spec, fd, chunk) != (int(sums[0, chunk]), int(sums[1, chunk])):
            raise UnusableFile(f"the checksum of its chunk {chunk} is wrong")


def _read_header(page: bytes) -> dict[str, object]:
    """Return the header's JSON object, checked against its own checksum."""
    if page[:8] != MAGIC:
        raise UnusableFile("it does not begin as such a file does")
    length, crc = (int(value) for value in np.frombuffer(page[8:_PREFIX_BYTES], "<u4"))
    text = page[_PREFIX_BYTES : _PREFIX_BYTES + length]
    if len(text) != length or zlib.crc32(text) != crc:
        raise UnusableFile("its header is damaged")
    header: dict[str, object] = json.loads(text)
    return header


def _chunk_sums(spec: DataSpec, fd: int, chunk: int) -> tuple[int, int]:
    """Return the CRC-32 of a chunk's inputs and labels as they are on disk."""
    start, stop = spec.span(chunk)
    inputs = os.pread(fd, (stop - start) * _INPUT_BYTES, spec.inputs_offset + start * _INPUT_BYTES)
    labels = os.pread(fd, (stop - start) * _LABEL_BYTES, spec.labels_offset + start * _LABEL_BYTES)
    return zlib.crc32(inputs), zlib.crc32(labels)


def _make(spec: DataSpec, path: Path) -> None:
    """Write the data set beside ``path`` and rename it there; on any failure leave nothing."""
    free = shutil.disk_usage(path.parent).free
    if free < spec.file_bytes:  # said before the work, not at the end of it
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            _write_all(spec, fd)
            os.fsync(fd)
        finally:
            os.close(fd)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _write_all(spec: DataSpec, fd: int) -> None:
    """Write all chunks, by threads (NumPy and zlib let go of the interpreter), then the header."""
    sums = np.zeros((2, spec.chunks), "<u4")

    def write_chunk(chunk: int) -> None:
        start, stop = spec.span(chunk)
        inputs, labels = (
            array.astype("<f4", copy=False).data.cast("B")
            for array in make_curves(spec.curves, start, stop)
        )
        sums[:, chunk] = zlib.crc32(inputs), zlib.crc32(labels)
        _pwrite(fd, inputs, spec.inputs_offset + start * _INPUT_BYTES)
        _pwrite(fd, labels, spec.labels_offset + start * _LABEL_BYTES)

    workers = min(len(os.sched_getaffinity(0)), _MAX_WORKERS, spec.chunks)
    pool = ThreadPoolExecutor(workers)
    try:
        for _ in pool.map(write_chunk, range(spec.chunks)):
            pass
    finally:
        pool.shutdown(cancel_futures=True)
    table = sums.tobytes()
    text = json.dumps({**spec.header(), "table_crc32": zlib.crc32(table)}, sort_keys=True).encode()
    lengths = np.array([len(text), zlib.crc32(text)], "<u4").tobytes()
    _pwrite(fd, memoryview(table), _PAGE)
    _pwrite(fd, memoryview(MAGIC + lengths + text), 0)


def _pwrite(fd: int, left: memoryview, offset: int) -> None:
    """Write all of the bytes ``left``; one call may write fewer, at 2 GiB or as the disk fills."""
    while left:
        written = os.pwrite(fd, left, offset)
        left, offset = left[written:], offset + written


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold the lock of a data set, where the file system has locks; wait for whoever holds it."""
    # The lock file stays: to remove it would let two processes hold locks on two files of one name.
    fd = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            _log.warning("%s: no file locks here; processes may each make the data", path.parent)
        yield
    finally:
        os.close(fd)


def _remove_stale(path: Path) -> None:
    """Remove temporary files that a killed process left; a live one writes more often than that."""
    for temporary in path.parent.glob(f"{path.name}.*.tmp"):
        try:
            if time.time() - temporary.stat().st_mtime > _STALE_TEMPORARY_S:
                temporary.unlink()
        except FileNotFoundError:
            continue  # another process was faster


def _sync_folder(folder: Path) -> None:
    """Make the rename last through a crash of the machine."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _reason(error: Exception) -> str:
    """Return an error's cause in words."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _as_workload_error(error: OSError, spec: DataSpec, folder: Path) -> WorkloadError:
    """Say what a file system's refusal means for the user."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        todo = f"it needs {spec.file_bytes / 1e9:.2f} GB there; make room or set fewer samples"
    else:
        todo = "choose a data folder that can be written"
    return WorkloadError(f"stress_strain data cannot be made in {folder}: {_reason(error)}; {todo}")
