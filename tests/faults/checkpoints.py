"""The file operations of a process, counted one by one, and one of them gone wrong.

Each operation below the watched folder is two checkpoints, before and after it; a write is three,
because half of the data is written at one of them. Reads count for themselves.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

#: What the second request of a repeated one is told, its first reply being lost: NFS over UDP, or
#: a server that was started again and has forgotten what it answered.
REPEATED = {
    "link": errno.EEXIST,
    "replace": errno.ENOENT,
    "rename": errno.ENOENT,
    "unlink": errno.ENOENT,
    "mkdir": errno.EEXIST,
    "rmdir": errno.ENOENT,
}


_READS = os.O_NOCTTY  # what ``harness.bounded`` opens, to read it, and nobody else


@dataclass
class Checkpoints:
    """Counts; ``kill`` ends the process at the checkpoint ``at``, other plans change an operation.

    ``fail`` lets operation ``at`` fail with ``number``, ``full`` all from there on that take room;
    ``lost`` carries it out and answers as if it was asked for twice; ``stale`` fails one read.
    """

    folder: Path
    plan: str = ""
    at: int = -1
    number: int = 0  # a signal, or an errno
    points: int = 0
    operations: int = 0
    reads: int = 0
    done: list[str] = field(default_factory=list)  # operations
    labels: list[str] = field(default_factory=list)  # of the checkpoints

    def install(self) -> Checkpoints:
        """Put this between the process and its files, for good."""
        for name in ("open", "link", "replace", "rename", "unlink", "mkdir", "rmdir"):
            mock.patch.object(os, name, self._wrapped(name, getattr(os, name))).start()
        self._fdopen = os.fdopen
        for name, mine in {"fsync": self._sync, "fdopen": self._opened}.items():
            mock.patch.object(os, name, mine).start()
        return self

    def _watched(self, path: Any) -> bool:
        return isinstance(path, (str, Path)) and str(path).startswith(str(self.folder))

    def _point(self, what: str) -> None:
        self.points += 1
        self.labels.append(what)
        if self.plan == "kill" and self.points == self.at:
            os.write(2, f"killed at checkpoint {self.at}: {what}\n".encode())
            os.kill(os.getpid(), self.number)

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(path: Any, *rest: Any, **more: Any) -> Any:
            takes_room = name != "open" or bool(rest and rest[0] & os.O_CREAT)
            if not self._watched(path) or not takes_room:
                if name == "open" and self._watched(path) and rest[0] & _READS:
                    self._read(path)
                return real(path, *rest, **more)
            return self._carry_out(name, lambda: real(path, *rest, **more), path)

        return operation

    def _carry_out(self, name: str, real: Callable[[], Any], path: Any) -> Any:
        self._point(f"before {name} {path}")
        self.operations += 1
        self.done.append(name)
        if self._fails(name):
            raise OSError(self.number, os.strerror(self.number), str(path))
        result = real()
        self._point(f"after {name} {path}")
        if self.plan == "lost" and self.operations == self.at and name in REPEATED:
            raise OSError(REPEATED[name], os.strerror(REPEATED[name]), str(path))
        return result

    def _fails(self, name: str) -> bool:
        if self.plan == "full":  # a file that goes gives room, and a rename takes none
            return self.operations >= self.at and name in ("open", "write", "mkdir", "fsync")
        return self.plan == "fail" and self.operations == self.at

    def _sync(self, descriptor: int) -> None:
        # Nothing is asked of the disk: no power fails here, and there are thousands of them.
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if self._watched(path):
            self._carry_out("fsync", lambda: None, path)

    def _opened(self, descriptor: int, mode: str = "r", *rest: Any, **more: Any) -> Any:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        file = self._fdopen(descriptor, mode, *rest, **more)
        return _Torn(file, self, path) if self._watched(path) and "w" in mode else file

    def _read(self, path: Any) -> None:
        self.reads += 1
        if self.plan == "stale" and self.reads == self.at:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))


class _Torn:
    """A file whose writes have a middle."""

    def __init__(self, file: Any, points: Checkpoints, path: str) -> None:
        self._file = file
        self._points = points
        self._path = path

    def __enter__(self) -> _Torn:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: bytes) -> int:
        half = len(data) // 2
        self._file.write(data[:half])
        self._file.flush()

        def rest() -> None:
            self._file.write(data[half:])
            self._file.flush()

        self._points._carry_out("write", rest, self._path)
        return len(data)
