"""The last lines of a launch's logs, fit for a record and for a terminal."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

TAIL_LINES = 20  # kept in a record
_READ_LINES = 200  # looked at for the cause: Open MPI's message alone has 25
_TAIL_BYTES = 64 * 1024
_LINE_CHARS = 500
_RANK_LOG = re.compile(r"rank-(\d{1,7})\.log")


@dataclass(frozen=True)
class RankLog:
    """What one rank left."""

    rank: int
    tail: tuple[str, ...]
    written_at: float  # seconds since the epoch, of the last write


@dataclass(frozen=True)
class Logs:
    """What a launch left, ranks in their order."""

    ranks: tuple[RankLog, ...]
    launcher: tuple[str, ...]

    def rank_tails(self) -> dict[str, tuple[str, ...]]:
        """Return the last lines by rank, as a record holds them."""
        return {str(log.rank): log.tail[-TAIL_LINES:] for log in self.ranks}

    def launcher_tail(self) -> tuple[str, ...]:
        """Return the launcher's last lines, as a record holds them."""
        return self.launcher[-TAIL_LINES:]


def read_logs(folder: Path) -> Logs:
    """Read the tails of ``rank-K.log`` and ``launcher.log``; a missing file has no lines."""
    ranks = []
    for path in folder.iterdir() if folder.is_dir() else ():
        if match := _RANK_LOG.fullmatch(path.name):
            ranks.append(RankLog(int(match[1]), read_tail(path), path.stat().st_mtime))
    return Logs(
        ranks=tuple(sorted(ranks, key=lambda log: log.rank)),
        launcher=read_tail(folder / "launcher.log"),
    )


def read_tail(path: Path, lines: int = _READ_LINES) -> tuple[str, ...]:
    """Return the last lines of a file that may hold anything: long lines cut, controls escaped.

    A file that is not there has none.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            data = file.read(_TAIL_BYTES)
    except FileNotFoundError:
        return ()
    text = data.decode("utf-8", errors="replace").replace("\r\n", "\n")
    found = [escaped(line.rpartition("\r")[2]) for line in text.split("\n")]
    while found and not found[-1]:
        found.pop()
    return tuple(found[-lines:])


def escaped(line: str) -> str:
    """Return a line without control characters, so that printing it can do a terminal no harm."""
    kept = "".join(c if c.isprintable() or c == "\t" else _escape(c) for c in line.rstrip())
    return kept if len(kept) <= _LINE_CHARS else kept[: _LINE_CHARS - 1] + "…"


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
