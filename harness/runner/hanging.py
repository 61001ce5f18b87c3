"""Who kept a launch from going on, by what its ranks left in their logs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePath

from harness.runner.logs import Logs

#: Horovod 0.28.1, ``stall_inspector.cc``: it ends the job after this line.
STALL_SHUTDOWN = "is stalled for longer than"
_STALL_WAIT = re.compile(r"waiting for remainder of ranks")
_STALL_LIMIT = re.compile(rf"{STALL_SHUTDOWN} (\d+) seconds")
# "1!: [barrier.noname]": a rank that is marked is why the job is ended.
_MISSING_RANK = re.compile(r"^\s*([0-9]{1,9})(!?): \[")
# As the watchdog writes it, and each frame as Python does.
_STACK = re.compile(r"hvdscale: the time limit is near; thread MainThread is at$")
_FRAME = re.compile(r'^  File "([^"]+)", line (\d+), in (\S+)$')
# Gloo's ``unbound_buffer.cc``, of a peer that neither answers nor is gone, and Horovod's
# ``http_store.cc``, of one that does not come to where the ranks meet.
_GAVE_UP = re.compile(
    r"Timed out waiting (\d+)ms for (?:send|recv) operation"
    r"|Wait timeout after (\d+) seconds for key\(s\)"
)
_MOST_PLACES = 4
_MOST_RANKS = 5


def stalled(lines: Iterable[str]) -> str:
    """Say that Horovod's stall inspector ended a launch, after how long, and whom it missed."""
    lines = list(lines)
    limit = next((m[1] for line in lines if (m := _STALL_LIMIT.search(line))), None)
    waited = f"longer than {limit} s" if limit else "too long"
    missing = _missing(lines)
    who = f"; missing: rank {named(missing)}" if missing else ""
    return f"Horovod ended it: some ranks waited {waited} for the others{who}"


def awaited(lines: Iterable[str]) -> str | None:
    """Return the ranks that Horovod said last that it waited for; None where it said nothing."""
    missing = _missing(lines)
    return named(missing) if missing else None


def unanswered_s(lines: Iterable[str]) -> float | None:
    """Return how long a rank's Gloo waited for another one before it gave up; None if it didn't."""
    for line in lines:
        if match := _GAVE_UP.search(line):
            return int(match[1]) / 1000 if match[1] else float(match[2])
    return None


def _missing(lines: Iterable[str]) -> list[int]:
    """Return the missing ranks of Horovod's last message of them: who was late once may have come.

    Of a message that marks ranks, those.
    """
    found: list[tuple[int, bool]] = []
    inside = False
    for line in lines:
        if _STALL_WAIT.search(line):
            found, inside = [], True
        elif inside and (match := _MISSING_RANK.match(line)):
            found.append((int(match[1]), bool(match[2])))
    marked = [rank for rank, is_marked in found if is_marked]
    return sorted(set(marked or [rank for rank, _ in found]))


def places(logs: Logs) -> str | None:
    """Say where each rank's main thread was when its time was nearly over, as its log has it.

    None where no log has it. The place of the fewest ranks is the first.
    """
    found: dict[str, list[int]] = {}
    for log in logs.ranks:
        if (place := _innermost(log.tail)) is not None:
            found.setdefault(place, []).append(log.rank)
    if not found:
        return None
    ordered = sorted(found.items(), key=lambda item: len(item[1]))[:_MOST_PLACES]
    said = [f"rank {named(ranks)} was in {place}" for place, ranks in ordered]
    return ", ".join(said) + (", …" if len(found) > _MOST_PLACES else "")


def _innermost(lines: tuple[str, ...]) -> str | None:
    """Return "function (file:line)" of the main thread's innermost frame."""
    place, inside = None, False
    for line in lines:
        if _STACK.search(line):
            inside = True
        elif inside and (match := _FRAME.match(line)):
            file, number, function = match.groups()
            place = f"{function} ({PurePath(file).name}:{number})"
        elif not line.startswith("  "):
            inside = False
    return place


def named(ranks: list[int]) -> str:
    """Return ranks as words, of many the first few."""
    more = f" and {len(ranks) - _MOST_RANKS} more" if len(ranks) > _MOST_RANKS else ""
    return ", ".join(map(str, ranks[:_MOST_RANKS])) + more
