"""The last lines of a launch's logs, fit for a record and for a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from harness.bounded import UnfitError, read_end

TAIL_LINES = 20  # kept in a record
_READ_LINES = 200  # looked at for the cause: Open MPI's message alone has 25
_TAIL_BYTES = 64 * 1024
_LONG_TAIL_BYTES = 8 << 20  # where lines are so long that the others hold hardly one
_FEW_LINES = 25
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
    ranks = [RankLog(rank, read_tail(path), _written_at(path)) for rank, path in _rank_logs(folder)]
    return Logs(
        ranks=tuple(sorted(ranks, key=lambda log: log.rank)),
        launcher=read_tail(folder / "launcher.log"),
    )


def read_tail(path: Path, lines: int = _READ_LINES) -> tuple[str, ...]:
    """Return the last lines of a file that may hold anything: long lines cut, controls escaped.

    A file that is not there has none. One that cannot be read, or is none, has a line that says so:
    a launch that failed is recorded whatever became of its logs.
    """
    try:
        data = _end_of(path)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        return (f"(this log cannot be read: {error.strerror})",)
    except UnfitError as error:
        return (f"(this log cannot be read: {error})",)
    text = data.decode("utf-8", errors="replace").replace("\r\n", "\n")
    found = [escaped(line.rpartition("\r")[2]) for line in text.split("\n")]
    while found and not found[-1]:
        found.pop()
    return tuple(found[-lines:])


def _end_of(path: Path) -> bytes:
    data = read_end(path, _TAIL_BYTES)
    if len(data) < _TAIL_BYTES or data.count(b"\n") >= _FEW_LINES:
        return data
    return read_end(path, _LONG_TAIL_BYTES)


def _rank_logs(folder: Path) -> Iterator[tuple[int, Path]]:
    with suppress(OSError):  # a folder that is gone, or refuses, has none
        for path in folder.iterdir():
            if match := _RANK_LOG.fullmatch(path.name):
                yield int(match[1]), path


def _written_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def escaped(line: str) -> str:
    """Return a line without control characters, so that printing it can do a terminal no harm."""
    start = line.rstrip()[: _LINE_CHARS + 1]  # escaping makes none of them go away
    kept = "".join(c if c.isprintable() or c == "\t" else _escape(c) for c in start)
    return kept if len(kept) <= _LINE_CHARS else kept[: _LINE_CHARS - 1] + "…"


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
