"""What /proc tells of processes, by other eyes than the product's; of one that is gone, nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")


def pids() -> Iterator[int]:
    """Yield the processes of this machine, zombies and our own among them."""
    return (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())


def environ(pid: int) -> list[str]:
    """Return what the environment of a process was at its start, ``NAME=value`` each."""
    return _read(pid, "environ").split("\0")


def command_line(pid: int) -> str:
    """Return the words of a process, a blank between them."""
    return _read(pid, "cmdline").rstrip("\0").replace("\0", " ")


def _read(pid: int, name: str) -> str:
    try:
        return (_PROC / str(pid) / name).read_bytes().decode(errors="replace")
    except OSError:  # it has just ended, or is another user's
        return ""
