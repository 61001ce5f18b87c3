"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.bounded import UnfitError
from harness.errors import StoreError

# What file systems without locks answer; the checksums then still find what a race mixed up.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
# What file systems without hard links answer; EMLINK where a file may have one name and no more.
NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV)

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")
LEFTOVER_S = 24 * 3600.0  # nobody writes one file for as long


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


def write_new(path: Path, data: bytes, lock: Path) -> bool:
    """Write ``data`` to ``path`` where nothing has that name; return False where something has.

    Of many processes on many hosts exactly one gets True: the name is given by a hard link of the
    whole, synced file, which no file system makes over another. Where there are no hard links the
    look and a rename are under ``lock``. Permissions and errors are as of ``write_atomic``.
    """
    try:
        with _temporary(path, data) as temporary:
            won = _named(temporary, path, lock)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    sync_folder(path.parent)
    return won


def put_back(source: Path, path: Path, lock: Path) -> bool:
    """Give a whole file the name ``path`` where nothing has that, as ``write_new`` does.

    What it was called before is gone then; without success nothing is changed. OSError where the
    folder refuses.
    """
    if not _named(source, path, lock):
        return False
    with suppress(FileNotFoundError):  # without hard links it was renamed
        source.unlink()
    sync_folder(path.parent)
    return True


def _named(source: Path, path: Path, lock: Path) -> bool:
    """Let ``path`` name a file as well, unless it names something; of many processes one can."""
    try:
        os.link(source, path)
    except FileExistsError:
        # NFS repeats a request whose answer was lost, and is then told of its own first success.
        with suppress(FileNotFoundError):
            return os.path.samefile(source, path)
        return False  # it was there, and is moved away by now
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        with locked(lock):
            if os.path.lexists(path):
                return False
            _replace(source, path)
    return True


def _write_and_rename(path: Path, data: bytes) -> None:
    with _temporary(path, data) as temporary:
        _replace(temporary, path)


def _replace(source: Path, target: Path) -> None:
    """Rename a file that nobody else renames."""
    facts = os.lstat(source)
    try:
        os.replace(source, target)
    except FileNotFoundError:
        # As of a link: the first request was carried out, and to the second one it is gone.
        if not _is(target, facts):
            raise


def _is(path: Path, facts: os.stat_result) -> bool:
    """Say whether a name is that of the file with ``facts``, as the server has it now."""
    try:  # what a network file system opens it asks for, where a mere look may be of before
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.path.samestat(os.fstat(descriptor), facts)
    finally:
        os.close(descriptor)


@contextmanager
def _temporary(path: Path, data: bytes) -> Iterator[Path]:
    """Make a whole and synced file beside ``path``; what has this name at the end is removed."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        with suppress(OSError):
            temporary.unlink()


def remove_leftovers(folder: Path, now_s: float) -> None:
    """Remove the temporary files of writers that were killed long ago, such as by the end of a job.

    ``now_s`` is the time by the clock of the folder's file system, which is not this host's. A
    writer that was stopped for so long finds its file gone: it fails, and has lost nothing.
    """
    with os.scandir(folder) as entries:
        old = [entry for entry in entries if _TEMPORARY.fullmatch(entry.name)]
    for entry in old:
        with suppress(OSError):  # another process was faster, or it stays: it is in nobody's way
            if now_s - entry.stat(follow_symlinks=False).st_mtime > LEFTOVER_S:
                os.unlink(entry.path)


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
            claim = _claim(name, path.is_dir())
        except FileExistsError:
            continue
        try:
            os.replace(path, name)
        except OSError as error:
            # As in ``_replace``: where the name is not the claim any more, it was moved.
            moved = isinstance(error, FileNotFoundError) and not _is(name, claim)
            if not moved:
                _give_back(name, claim)
                raise
        return name
    raise FileExistsError(errno.EEXIST, "no free number", str(target))


def _claim(name: Path, folder: bool) -> os.stat_result:
    if folder:  # only an empty folder lets another be renamed over it
        name.mkdir()
        return os.lstat(name)
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def _give_back(name: Path, claim: os.stat_result) -> None:
    """Remove a claimed name, which is empty; never what was moved there."""
    if _is(name, claim):
        with suppress(FileNotFoundError):
            name.rmdir() if name.is_dir() else name.unlink()


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
    """Turn an OSError or UnfitError inside into a StoreError of one line that names the path."""
    try:
        yield
    except UnfitError as error:
        raise StoreError(f"{path}: cannot be {doing}: {error}; remove it") from None
    except OSError as error:
        place = error.filename if isinstance(error.filename, str) else str(path)
        reason = error.strerror or str(error)
        raise StoreError(
            f"{place}: cannot be {doing}: {reason}; free it, or choose another --results"
        ) from error
