"""No rank outlives its launch: a thread that ends this process when nobody waits for it any more.

The runner kills what it started, but it can be killed itself, and on another node it reaches only
what the launcher reaches.
"""

from __future__ import annotations

import os
import threading
import time

from harness.processes import read_process

RUNNER_PID = "HVDSCALE_RUNNER_PID"  # set by the runner where it is on the ranks' host
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


def _watch(deadline: float, pid: int, born: int | None) -> None:
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
        process = read_process(pid)
        pid = process.parent if process is not None else 0
    return found


def _start_time(pid: int) -> int | None:
    """Return when a process started, in the kernel's ticks, so that a reused pid is no match.

    None where it has ended, also if nobody has waited for it yet (a container without an init).
    """
    process = read_process(pid)
    return process.started if process is not None and process.state not in "ZX" else None
