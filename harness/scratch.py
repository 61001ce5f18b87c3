"""Node-local scratch: one copy of a workload's files on each node, for all ranks on it.

``HVDSCALE_SCRATCH`` names a folder of each node's own, such as ``$TMPDIR`` or ``/local/$USER``; the
variables in it are those of the ranks on that node. Below it a job has a folder, marked as ours::

    <scratch>/hvdscale-<job id, or user>/data/...      copies, by the names below the data folder

Local rank 0 of a node copies what is not there yet, and the others wait for it. ``python -m
harness.scratch clean`` removes the job's folder on the node that it runs on.
"""

from __future__ import annotations

import errno
import os
import pwd
import re
import secrets
import shutil
import socket
import stat
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from string import Template

from harness.errors import HarnessError, LaunchError
from harness.store.files import locked

VARIABLE = "HVDSCALE_SCRATCH"
MARK = ".hvdscale-scratch"
DATA = "data"
_LOCK = ".lock"
_NOT_OURS = "not a folder of this user's; choose another scratch folder"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Copied:
    """What was copied to one node."""

    folder: Path  # where the files are now, by their names below the data folder
    bytes: int  # 0: good copies were there
    wall_s: float


def asked_for(environ: Mapping[str, str]) -> str | None:
    """Return a job's folder in the scratch that ``environ`` names, variables left in; else None."""
    root = environ.get(VARIABLE)
    return f"{root.rstrip('/')}/hvdscale-{_owner(environ)}" if root else None


def _owner(environ: Mapping[str, str]) -> str:
    """Return who cleans up: a job, or where there is none the user."""
    name = environ.get("SLURM_JOB_ID", "")
    if not name:
        try:
            name = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            name = str(os.getuid())
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)


def folder_here(scratch: str, environ: Mapping[str, str]) -> Path:
    """Return what ``asked_for`` is on this node; LaunchError where a variable is not set here."""
    there = {name: value for name, value in environ.items() if value}  # "" would lead elsewhere
    try:
        folder = Path(Template(scratch).substitute(there))
    except KeyError as error:
        raise _error(
            scratch, f"{error.args[0]} is not set there; set it, or {VARIABLE} to another folder"
        ) from None
    except ValueError:
        raise _error(scratch, "a $ with no name after it; write $NAME or ${NAME}") from None
    if not folder.is_absolute():
        raise _error(scratch, f"{folder} is no absolute path; set {VARIABLE} to one")
    return folder


def copy_data(files: Sequence[Path], data_dir: Path, folder: Path) -> Copied:
    """Copy ``files``, all below ``data_dir``, into a job's ``folder`` where they are not there yet.

    A copy is good that has its original's size and time of change, and appears when it is whole.
    Of several launches on a node one copies, and the others wait for it. Raises LaunchError, which
    names the node and the folder: not writable, not ours, too little room.
    """
    started_s = time.perf_counter()
    pairs = [(file, folder / DATA / file.relative_to(data_dir)) for file in files]
    try:
        _claim(folder)
        copied = _copy_missing(pairs, folder) if _missing(pairs) else 0
    except OSError as error:
        raise _os_error(folder, error) from error
    return Copied(folder / DATA, copied, time.perf_counter() - started_s)


def remove_scratch(folder: Path) -> bool:
    """Remove a job's folder on this node; False where there is none.

    Only what this module makes is removed, and only from a folder that it has marked: LaunchError
    where it is somebody else's, or something else is in it.
    """
    try:
        _check_ours(folder)
        with _opened(folder) as inside:
            if not _is_marked(folder, inside):
                raise _error(folder, "not made by hvdscale, so it stays; remove it by hand")
            with suppress(FileNotFoundError):
                shutil.rmtree(DATA, dir_fd=inside)  # refuses a symbolic link
            for name in (_LOCK, MARK):  # the mark last: a crash's rest can be cleaned again
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=inside)
        folder.rmdir()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _os_error(folder, error) from error
    return True


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """Open a folder, so that what is removed lies in the very one that was looked at.

    Where others may write to what it lies in, its name can lead elsewhere a moment later.
    """
    inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(inside).st_uid != os.geteuid():
            raise _error(folder, _NOT_OURS)
        yield inside
    finally:
        os.close(inside)


def _claim(folder: Path) -> None:
    """Make a job's folder, and mark it; of what is there already, see that it is ours."""
    folder.parent.mkdir(exist_ok=True)  # /local/$USER; not a whole path, which may be mistyped
    folder.mkdir(mode=0o700, exist_ok=True)
    _check_ours(folder)
    if _is_marked(folder):
        return
    # Looked at again: another launch may have made the mark, and more, since the first look.
    if any(entry.name != MARK for entry in os.scandir(folder)) and not _is_marked(folder):
        raise _error(folder, "holds something that hvdscale did not put there; choose another")
    with suppress(FileExistsError):  # another launch has just made it
        os.close(os.open(folder / MARK, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def _check_ours(folder: Path) -> None:
    """Raise LaunchError where another user, who may write to /tmp as well, was there first."""
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
        raise _error(folder, _NOT_OURS)


def _is_marked(folder: Path, inside: int | None = None) -> bool:
    """Say whether a folder, open as ``inside`` where that is given, has the mark."""
    name = folder / MARK if inside is None else MARK
    try:
        facts = os.stat(name, dir_fd=inside, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(facts.st_mode) and facts.st_uid == os.geteuid()


def _missing(pairs: Sequence[tuple[Path, Path]]) -> list[tuple[Path, Path]]:
    return [(source, copy) for source, copy in pairs if not _is_copy(copy, source)]


def _is_copy(copy: Path, source: Path) -> bool:
    original = source.stat()
    try:
        found = copy.stat()
    except FileNotFoundError:
        return False
    return (found.st_size, found.st_mtime_ns) == (original.st_size, original.st_mtime_ns)


def _copy_missing(pairs: Sequence[tuple[Path, Path]], folder: Path) -> int:
    with locked(folder / _LOCK):
        for left in folder.glob(f"{DATA}/**/.*.tmp"):  # of launches that were killed
            left.unlink()
        missing = _missing(pairs)  # once more: who held the lock has copied it, most likely
        need = sum(source.stat().st_size for source, _ in missing)
        free = shutil.disk_usage(folder).free
        if need > free:
            raise _error(
                folder,
                f"too little room: needs {need / 1e9:.2f} GB, has {free / 1e9:.2f} GB; make room, "
                f"set {VARIABLE} to another folder, or leave it out",
            )
        for source, copy in missing:
            copy.parent.mkdir(parents=True, exist_ok=True)
            _copy(source, copy)
    return need


def _copy(source: Path, copy: Path) -> None:
    temporary = copy.with_name(f".{copy.name}.{secrets.token_hex(4)}.tmp")
    try:
        with source.open("rb") as original, temporary.open("xb") as file:
            facts = os.fstat(original.fileno())
            shutil.copyfileobj(original, file, 1 << 22)
            file.flush()
            os.fsync(file.fileno())  # now, and not beside the steps that are timed
            _check_unchanged(source, facts, os.fstat(original.fileno()), file.tell())
        os.utime(temporary, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        temporary.replace(copy)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _check_unchanged(
    source: Path, before: os.stat_result, after: os.stat_result, copied_bytes: int
) -> None:
    """Raise LaunchError where a file is not, from its first byte to its last, the one it was."""
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns) or (
        copied_bytes != before.st_size
    ):
        raise LaunchError(
            f"{source}: changed while it was copied to node {socket.gethostname()}; let what "
            "writes it end, and run again"
        )


def _error(folder: Path | str, what: str) -> LaunchError:
    return LaunchError(f"scratch {folder} on node {socket.gethostname()}: {what}")


def _os_error(folder: Path, error: OSError) -> LaunchError:
    place = error.filename if isinstance(error.filename, str) else str(folder)
    reason = error.strerror or str(error)
    if not place.startswith(str(folder.parent)):
        todo = "the data folder must be one that every node sees"
    elif error.errno in _NO_ROOM:
        todo = f"make room, set {VARIABLE} to another folder, or leave it out"
    else:
        todo = f"set {VARIABLE} to a folder that can be written on every node"
    return _error(folder, f"{place}: {reason}; {todo}")


def main(argv: Sequence[str]) -> int:
    """Remove this job's folder on this node: ``python -m harness.scratch clean``."""
    if list(argv) != ["clean"]:
        print("usage: python -m harness.scratch clean", file=sys.stderr)
        return 2
    scratch = asked_for(os.environ)
    if scratch is None:
        return 0  # none was used
    try:
        folder = folder_here(scratch, os.environ)
        removed = remove_scratch(folder)
    except HarnessError as error:
        print(f"hvdscale: error: {error}", file=sys.stderr)
        return error.exit_code
    if removed:
        print(f"hvdscale: removed {folder} on node {socket.gethostname()}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
