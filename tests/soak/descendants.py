"""The processes that come from this one, however they tried to get away."""

from __future__ import annotations

import ctypes
import os
import time
from contextlib import suppress

from harness.processes import Process, read_process
from tests import proc

_PR_SET_CHILD_SUBREAPER = 36  # of <sys/prctl.h>
_POLL_S = 0.05


def adopt_orphans() -> None:
    """Make orphans below this process its children, as init is everybody's: none gets away."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def descendants() -> list[Process]:
    """Return the live processes below this one; those that ended are reaped."""
    children: dict[int, list[Process]] = {}
    for pid in proc.pids():
        if (process := read_process(pid)) is not None:
            children.setdefault(process.parent, []).append(process)
    found, queue = [], [os.getpid()]
    while queue:
        for child in children.get(queue.pop(), []):
            queue.append(child.pid)
            if child.state in "ZX":
                with suppress(ChildProcessError):
                    os.waitpid(child.pid, os.WNOHANG)
            else:
                found.append(child)
    return found


def wait_for_none(timeout_s: float) -> list[Process]:
    """Wait until no process is left below this one; return those that are there at the end."""
    deadline = time.monotonic() + timeout_s
    while (left := descendants()) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return left


def told(process: Process) -> str:
    """Return a process in words."""
    return f"process {process.pid} ({process.state}): {proc.command_line(process.pid)[:160]}"
