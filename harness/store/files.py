"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.errors import StoreError

# What file systems without locks answer; the checksums then still find what a race mixed up.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


def write_atomic(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` so that a reader, or a crash, sees the old file or the new one.

    The temporary file is in the same folder (a rename is atomic only inside one file system), has a
    name nobody can guess, and gets the permissions that the user's umask gives any file. The file
    is on disk before it has its name, and the name before this returns. Raises OSError, which names
    ``path`` and never the temporary file.
    """
    try:
        _write_and_rename(path, data)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    sync_folder(path.parent)


def _write_and_rename(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def sync_folder(folder: Path) -> None:
    """Put a folder's names on disk, so that a rename in it survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot, and do not need to
            raise
    finally:
        os.close(descriptor)


def move_aside(path: Path, target: Path) -> Path:
    """Move ``path`` to ``target``, or to ``target`` with a free number; never over another file."""
    for number in range(1, 1_000_000):
        name = target if number == 1 else target.with_name(f"{target.stem}.{number}{target.suffix}")
        try:
            # The name is claimed first, so that two movers cannot choose the same one.
            _claim(name, path.is_dir())
        except FileExistsError:
            continue
        try:
            os.replace(path, name)
        except OSError:
            name.rmdir() if name.is_dir() else name.unlink()
            raise
        return name
    raise FileExistsError(errno.EEXIST, "no free number", str(target))


def _claim(name: Path, folder: bool) -> None:
    if folder:  # only an empty folder lets another be renamed over it
        name.mkdir()
    else:
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a lock file; it goes with the process, whatever ends that."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        yield
    finally:
        os.close(descriptor)


@contextmanager
def named_errors(path: Path, doing: str) -> Iterator[None]:
    """Turn an OSError inside into a StoreError of one line that names the path."""
    try:
        yield
    except OSError as error:
        place = error.filename if isinstance(error.filename, str) else str(path)
        reason = error.strerror or str(error)
        raise StoreError(
            f"{place}: cannot be {doing}: {reason}; free it, or choose another --results"
        ) from error
