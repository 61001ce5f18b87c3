"""A data file that is made once, whole or not at all, whoever else is at it.

The file is written under another name, synced, and renamed. Only ``rename`` has to be atomic within
a folder, as POSIX says. The lock (``flock``) merely keeps processes from making the same data
twice: on a file system without it, or with locks of one node alone, each makes its own temporary
file (so the room for several is needed) and the last rename wins, with the same bytes.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from workloads.api import WorkloadError

_log = logging.getLogger(__name__)

_STALE_TEMPORARY_S = 3600.0
_ABSENT = "it is not there"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class UnusableFile(Exception):
    """A file is not the whole, undamaged data that its name says; the message says why."""


@dataclass(frozen=True)
class MadeFile:
    """A file, and how it comes about.

    ``write(fd)`` fills an empty file; the same bytes every time. ``check(fd)`` raises UnusableFile
    unless the file is whole. ``size_bytes`` is None where it is not known before. For messages:
    ``what`` names the data, ``fewer`` says how to do with less room ("set fewer samples"), and
    ``put`` what is done with the data in its folder.
    """

    path: Path
    size_bytes: int | None
    write: Callable[[int], None]
    check: Callable[[int], object]
    what: str
    fewer: str
    put: str = "made in"

    def ensure(self) -> None:
        """Make the file where there is no good one; safe when many processes call it at once.

        A file that is partial, damaged or foreign is replaced, with a warning. Raises WorkloadError
        where the folder cannot be written or is full.
        """
        if self._fault() is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _lock(self.path) as locked:
                fault = self._fault()  # once more: who held the lock has made it, most likely
                if fault is not None:
                    if fault != _ABSENT:
                        _log.warning("%s is not usable (%s) and is made anew", self.path, fault)
                    _remove_stale(self.path, locked)
                    self._make()
        except OSError as error:
            raise self._as_workload_error(error) from error

    def _fault(self) -> str | None:
        """Say why there is no good file, None where there is one; if it cannot be read, raise."""
        try:
            with self.path.open("rb") as file:
                self.check(file.fileno())
        except (FileNotFoundError, NotADirectoryError):
            return _ABSENT
        except UnusableFile as error:
            return str(error)
        except OSError as error:
            raise WorkloadError(
                f"{self.what} {self.path} cannot be read: {reason(error)}; "
                "move it away or choose another data folder"
            ) from error
        return None

    def _make(self) -> None:
        """Write the file beside its place and rename it there; on any failure leave nothing."""
        if (self.size_bytes or 0) > shutil.disk_usage(self.path.parent).free:
            # Said before the work, not at the end of it.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        name = f"{self.path.name}.{_kernel()}-{secrets.token_hex(4)}.tmp"
        temporary = self.path.with_name(name)
        try:
            fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                self.write(fd)
                os.fsync(fd)
            finally:
                os.close(fd)
            temporary.replace(self.path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(self.path.parent)

    def _as_workload_error(self, error: OSError) -> WorkloadError:
        """Say what a file system's refusal means for the user."""
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            need = f"it needs {self.size_bytes / 1e9:.2f} GB there; " if self.size_bytes else ""
            todo = f"{need}make room or {self.fewer}"
        else:
            todo = "choose another data folder, one that can be written"
        return WorkloadError(
            f"{self.what} cannot be {self.put} {self.path.parent}: {reason(error)}; {todo}"
        )


def pwrite(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of ``data``; one call may write fewer, at 2 GiB or as the disk fills."""
    left = memoryview(data)
    while left:
        written = os.pwrite(fd, left, offset)
        left, offset = left[written:], offset + written


def reason(error: Exception) -> str:
    """Return an error's cause in words."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


@contextmanager
def _lock(path: Path) -> Iterator[bool]:
    """Hold the lock of a file, waiting for whoever holds it; False where there are no locks."""
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
