"""Processes of a launch: found whole, and ended whole.

A launch's processes are those whose environment carries its marker, those in the launcher's session
and those that descend from any of these, so a rank that made itself a daemon is found too. Only the
standard library, because this file is also a program of its own: the guard, which ends a launch
whose runner was killed before it could.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

MARKER = "HVDSCALE_LAUNCH_ID"
GRACE_S = 5.0
KILL_S = 30.0  # how long the kernel may take: gigabytes and a core dump, on a machine that is busy
_POLL_S = 0.02


@dataclass(frozen=True)
class Process:
    """One process as /proc shows it; ``started`` tells it from a later one of the same pid.

    ``state`` is /proc's letter: R running, S asleep, D in the kernel, T stopped, Z ended.
    """

    pid: int
    parent: int
    session: int
    state: str
    started: int  # clock ticks since boot


def launch_processes(
    launch_id: str, session: int | None = None, known: Iterable[Process] = ()
) -> list[Process]:
    """Return the live processes of a launch, without this one and without zombies.

    ``session`` is the pid of the launcher, which started a session of its own. ``known`` were found
    before: whoever was found by its parent alone is nobody's once that has ended.
    """
    everything = {process.pid: process for process in _all_processes()}
    marker = f"{MARKER}={launch_id}".encode()
    found = {
        pid
        for pid, process in everything.items()
        if (session is not None and process.session == session) or _carries(pid, marker)
    }
    found |= {p.pid for p in known if _is_same(everything.get(p.pid), p)}
    children: dict[int, list[int]] = {}
    for process in everything.values():
        children.setdefault(process.parent, []).append(process.pid)
    queue = [*found, *([session] if session is not None else [])]
    while queue:
        for child in children.get(queue.pop(), []):
            if child not in found:
                found.add(child)
                queue.append(child)
    found.discard(os.getpid())
    return [everything[pid] for pid in sorted(found) if everything[pid].state not in "ZX"]


def end_launch(
    launch_id: str,
    session: int | None = None,
    grace_s: float = GRACE_S,
    hurry: Callable[[], bool] = lambda: False,
) -> list[Process]:
    """End every process of a launch: TERM, a time of grace, KILL. Return what would not go.

    Nothing is returned but processes that the kernel cannot end (stuck in a driver or a file
    system). ``hurry`` is asked meanwhile; once it is true the grace is over.
    """
    told: set[tuple[int, int]] = set()
    seen: dict[tuple[int, int], Process] = {}

    def find() -> list[Process]:
        found = launch_processes(launch_id, session, seen.values())
        seen.update({(p.pid, p.started): p for p in found})
        return found

    deadline = time.monotonic() + grace_s
    while live := find():
        if hurry() or time.monotonic() >= deadline:
            break
        fresh = [p for p in live if (p.pid, p.started) not in told]
        told |= {(p.pid, p.started) for p in fresh}
        # A stopped process takes its TERM only when it goes on.
        _send(fresh, signal.SIGTERM)
        _send(fresh, signal.SIGCONT)
        time.sleep(_POLL_S)
    deadline = time.monotonic() + KILL_S
    while live and time.monotonic() < deadline:
        _send(live, signal.SIGKILL)
        time.sleep(_POLL_S)
        live = find()
    return live


def _all_processes() -> Iterable[Process]:
    for name in os.listdir("/proc"):
        if name.isdigit() and (process := read_process(int(name))) is not None:
            yield process


def read_process(pid: int) -> Process | None:
    """Return a process as it is now, None where it is gone; a zombie is there, in state Z."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name, in brackets, may hold anything; the fields after it are numbered from 3.
            fields = file.read().rpartition(b")")[2].split()
        return Process(
            pid=pid,
            parent=int(fields[1]),
            session=int(fields[3]),
            state=fields[0].decode(),
            started=int(fields[19]),
        )
    except (OSError, IndexError):
        return None  # gone while we looked


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with; {} where it is gone, or another's."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            text = os.fsdecode(file.read())
    except OSError:
        return {}
    return dict(part.partition("=")[::2] for part in text.split("\0") if part)


def _is_same(now: Process | None, before: Process) -> bool:
    return now is not None and now.started == before.started


def _carries(pid: int, marker: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return marker in file.read().split(b"\0")
    except OSError:
        return False  # gone, or another user's


def _send(processes: Iterable[Process], number: signal.Signals) -> None:
    for process in processes:
        now = read_process(process.pid)
        if now is not None and now.started == process.started:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, number)


def _guard() -> None:
    """Read "+ID SESSION" and "-ID" lines; at the end of input, end the launches still open.

    The input ends when the runner does, whatever ended it. The runner's signals are not for us.
    """
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    open_launches: dict[str, int | None] = {}
    for line in sys.stdin:
        word, _, session = line.strip().partition(" ")
        if word.startswith("+"):
            open_launches[word[1:]] = int(session) if session else None
        elif word.startswith("-"):
            open_launches.pop(word[1:], None)
    for launch_id, session in open_launches.items():
        end_launch(launch_id, session)


if __name__ == "__main__":
    _guard()
