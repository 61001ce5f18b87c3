"""Makes the data set's file: once, whole or not at all, whoever else is at it.

The file is written under another name, its header last, synced, and renamed. Only ``rename`` has
to be atomic within a folder, as POSIX says. The lock (``flock``) merely keeps processes from making
the same data twice: on a file system without it, or with locks of one node alone, each makes its
own temporary file (so the room for several is needed) and the last rename wins, with the same
curves.
"""

from __future__ import annotations

import errno
import fcntl
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
from functools import cache
from pathlib import Path

import numpy as np

from workloads.api import WorkloadError
from workloads.stress_strain import store
from workloads.stress_strain.curves import make_curves

_log = logging.getLogger(__name__)

_MAX_WORKERS = 8  # beyond it the disk decides
_STALE_TEMPORARY_S = 3600.0
_ABSENT = "it is not there"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def ensure(spec: store.DataSpec, folder: Path) -> Path:
    """Make the data set where there is no good file of it; return its path.

    Safe when many processes call it at once. A file that is partial, damaged or foreign is
    replaced, with a warning. Raises WorkloadError where the folder cannot be written or is full.
    """
    path = spec.path(folder)
    if _fault(spec, path) is None:
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _lock(path) as locked:
            fault = _fault(spec, path)  # once more: who held the lock has made it, most likely
            if fault is not None:
                if fault != _ABSENT:
                    _log.warning("%s is not usable (%s) and is made anew", path, fault)
                _remove_stale(path, locked)
                _make(spec, path)
    except OSError as error:
        raise _as_workload_error(error, spec, folder) from error
    return path


def _fault(spec: store.DataSpec, path: Path) -> str | None:
    """Say why ``path`` is no good file, None where it is one; if it cannot be read, raise."""
    try:
        with path.open("rb") as file:
            store.check(spec, file)
    except FileNotFoundError:
        return _ABSENT
    except store.UnusableFile as error:
        return str(error)
    except OSError as error:
        raise WorkloadError(
            f"stress_strain data {path} cannot be read: {store.reason(error)}; "
            "move it away or choose another data folder"
        ) from error
    return None


def _make(spec: store.DataSpec, path: Path) -> None:
    """Write the data set beside ``path`` and rename it there; on any failure leave nothing."""
    free = shutil.disk_usage(path.parent).free
    if free < spec.file_bytes:  # said before the work, not at the end of it
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    temporary = path.with_name(f"{path.name}.{_kernel()}-{secrets.token_hex(4)}.tmp")
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


def _write_all(spec: store.DataSpec, fd: int) -> None:
    """Write all chunks, by threads (NumPy and zlib let go of the interpreter), then the header."""
    sums = np.zeros((2, spec.chunks), "<u4")

    def write_chunk(chunk: int) -> None:
        start, stop = spec.span(chunk)
        inputs, labels = (
            array.astype("<f4", copy=False).data.cast("B")
            for array in make_curves(spec.curves, start, stop)
        )
        sums[:, chunk] = zlib.crc32(inputs), zlib.crc32(labels)
        _pwrite(fd, inputs, spec.inputs_offset + start * store.INPUT_BYTES)
        _pwrite(fd, labels, spec.labels_offset + start * store.LABEL_BYTES)

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
    _pwrite(fd, memoryview(table), store.PAGE)
    _pwrite(fd, memoryview(store.MAGIC + lengths + text), 0)


def _pwrite(fd: int, left: memoryview, offset: int) -> None:
    """Write all of the bytes ``left``; one call may write fewer, at 2 GiB or as the disk fills."""
    while left:
        written = os.pwrite(fd, left, offset)
        left, offset = left[written:], offset + written


@contextmanager
def _lock(path: Path) -> Iterator[bool]:
    """Hold the lock of a data set, waiting for whoever holds it; False where there are no locks."""
    # The lock file stays: to remove it would let two processes hold locks on two files of one name.
    fd = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o666)
    try:
        locked = True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            locked = False
            _log.warning("%s: no file locks here; processes may each make the data", path.parent)
        yield locked
    finally:
        os.close(fd)


def _remove_stale(path: Path, locked: bool) -> None:
    """Remove the temporary files of processes that were killed.

    Under the lock, nobody else on this kernel is writing. A file of another node, where the lock
    may not reach, is stale when it has not changed for long: a live one grows all the time.
    """
    for temporary in path.parent.glob(f"{path.name}.*.tmp"):
        try:
            ours = locked and temporary.name.startswith(f"{path.name}.{_kernel()}-")
            if ours or time.time() - temporary.stat().st_mtime > _STALE_TEMPORARY_S:
                temporary.unlink()
        except FileNotFoundError:
            continue  # another process was faster


@cache
def _kernel() -> str:
    """Return a name of the running kernel, which all processes that share its locks agree on."""
    try:
        return _BOOT_ID.read_text().strip().replace("-", "")
    except FileNotFoundError:  # a sandbox without it: then age alone tells a stale file
        return secrets.token_hex(16)


def _sync_folder(folder: Path) -> None:
    """Make the rename last through a crash of the machine."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _as_workload_error(error: OSError, spec: store.DataSpec, folder: Path) -> WorkloadError:
    """Say what a file system's refusal means for the user."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        todo = f"it needs {spec.file_bytes / 1e9:.2f} GB there; make room or set fewer samples"
    else:
        todo = "choose a data folder that can be written"
    return WorkloadError(
        f"stress_strain data cannot be made in {folder}: {store.reason(error)}; {todo}"
    )
