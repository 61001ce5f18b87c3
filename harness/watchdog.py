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
    """Watch the deadline, and the runner where this process descends from it.

    On another node the same number names a stranger, whose end means nothing; under srun ranks are
    children of Slurm's own daemon, which ends them with the step.
    """
    deadline = time.monotonic() + timeout_s + GRACE_S
    runner = os.environ.get(RUNNER_PID, "")
    pid = int(runner) if runner.isdigit() and int(runner) in _ancestors() else 0
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


def _ancestors() -> set[int]:
    found: set[int] = set()
    pid = os.getppid()
    while pid > 0 and pid not in found:
        found.add(pid)
        fields = _stat(pid)
        pid = int(fields[1]) if fields else 0
    return found


def _start_time(pid: int) -> str | None:
    """Return when a process started, in the kernel's ticks, so that a reused pid is no match.

    None where it has ended, also if nobody has waited for it yet (a container without an init).
    """
    fields = _stat(pid)
    return fields[19] if fields and fields[0] not in "ZX" else None


def _stat(pid: int) -> list[str] | None:
    """Return a process's fields of /proc/PID/stat from the third on, None where it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            # The second, the name in brackets, may hold spaces and brackets.
            fields = stat.read().rpartition(b")")[2].decode().split()
    except OSError:
        return None
    return fields if len(fields) > 19 else None
