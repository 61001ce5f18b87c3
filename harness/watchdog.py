"""No rank outlives its launch: a thread that ends this process when nobody waits for it any more.

The runner kills what it started, but it can be killed itself, and on another node it reaches only
what the launcher reaches.
"""

from __future__ import annotations

import os
import threading
import time

RUNNER_PID = "HVDSCALE_RUNNER_PID"
GRACE_S = 30.0  # the runner's own time limit comes first
PERIOD_S = 1.0
EXIT_CODE = 124


def start(timeout_s: float) -> None:
    """Watch the deadline, and the runner where it is a process of this host."""
    deadline = time.monotonic() + timeout_s + GRACE_S
    runner = os.environ.get(RUNNER_PID, "")
    pid = int(runner) if runner.isdigit() else 0
    born = _start_time(pid) if pid else None
    threading.Thread(target=_watch, args=(deadline, pid, born), daemon=True).start()


def _watch(deadline: float, pid: int, born: str | None) -> None:
    while time.monotonic() < deadline:
        time.sleep(PERIOD_S)
        if born is not None and _start_time(pid) != born:
            _leave("the process that started this launch is gone")
    _leave("the launch's time limit is over")


def _leave(why: str) -> None:
    os.write(2, f"hvdscale: {why}; this rank ends\n".encode())
    os._exit(EXIT_CODE)


def _start_time(pid: int) -> str | None:
    """Return when a process started, in the kernel's ticks, so that a reused pid is no match."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            # The name, in brackets, may hold spaces; field 22 counts from after it.
            return stat.read().rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        return None
