"""No rank outlives its launch: it ends when nobody waits for it any more.

The runner kills what it started, but it can be killed itself, and on another node it reaches only
what the launcher reaches. There a rank hangs on the process that started it: the launcher's daemon,
or the shell or the sshd of a connection, which end when the launcher is gone.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress

from harness.digits import whole
from harness.processes import MARKER, read_process

RUNNER_PID = "HVDSCALE_RUNNER_PID"  # set by the runner where it is on the ranks' host
#: Before the last tenth of its time a rank's stacks are written to the log: so much earlier as a
#: rank may have started later than its launch.
STACKS_S = 5.0
GRACE_S = 30.0  # the runner's own time limit comes first
PERIOD_S = 1.0
EXIT_CODE = 124
_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>


def start(timeout_s: float) -> None:
    """Watch the deadline, and the runner where this process descends from it, else its parent.

    The number of a runner on another node names a stranger here, whose end means nothing. A program
    that no runner started (it has no launch's marker) may outlive the shell that started it.
    """
    now = time.monotonic()
    deadline = now + timeout_s + GRACE_S
    stacks_at = now + max(0.9 * timeout_s - STACKS_S, timeout_s / 2)
    runner = os.environ.get(RUNNER_PID, "")
    pid = whole(runner) or 0
    if pid not in _ancestors():
        pid = 0
    if not pid and os.environ.get(MARKER):
        pid = _hang_on_parent()
    born = _start_time(pid) if pid else None
    threading.Thread(target=_watch, args=(deadline, stacks_at, pid, born), daemon=True).start()


def _hang_on_parent() -> int:
    """Have the kernel end this process with its parent, whose pid is returned; 0 under srun.

    The thread alone is not enough: a process that is stopped, or stuck in a driver that holds the
    interpreter, has no thread that could look.
    """
    parent = os.getppid()
    if _command(parent) == "slurmstepd":  # it ends its ranks itself, whatever state they are in
        return 0
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        _leave("the process that started this rank is gone")
    return parent


def _watch(deadline: float, stacks_at: float, pid: int, born: int | None) -> None:
    told = False
    while time.monotonic() < deadline:
        time.sleep(PERIOD_S)
        if not told and time.monotonic() >= stacks_at:
            told = True
            _tell_stacks()
        if born is not None and _is_gone(pid, born):
            _leave("the process that started this launch is gone")
    _leave("the launch's time limit is over")


def _tell_stacks() -> None:
    """Write where every other thread is: where a rank hangs is what its log should end with.

    Under the interpreter's lock: ``faulthandler`` needs none, and crashes a process whose threads
    go on meanwhile. A thread that holds the lock for ever leaves no stacks.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        if ident != threading.get_ident():
            stack = "".join(traceback.format_stack(frame))
            text = (
                f"hvdscale: the time limit is near; thread {names.get(ident, ident)} is at\n{stack}"
            )
            _say(text)


def _leave(why: str) -> None:
    _say(f"hvdscale: {why}; this rank ends\n")
    os._exit(EXIT_CODE)


def _say(text: str) -> None:
    with suppress(OSError):  # closed, or on a full disk: this thread goes on all the same
        os.write(2, text.encode(errors="replace"))


def _command(pid: int) -> str:
    """Return the name of a process's program, "" where it is gone or out of sight."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _ancestors() -> set[int]:
    found: set[int] = set()
    pid = os.getppid()
    while pid > 0 and pid not in found:
        found.add(pid)
        process = read_process(pid)
        pid = process.parent if process is not None else 0
    return found


def _is_gone(pid: int, born: int) -> bool:
    """Say whether the process that was ``born`` then has ended.

    A rank that has run out of file descriptors cannot look into /proc, and asks the kernel.
    """
    process = read_process(pid)
    if process is not None:
        return process.started != born or process.state in "ZX"
    try:
        os.kill(pid, 0)
    except OSError:  # there is none, or one of somebody else's
        return True
    return False


def _start_time(pid: int) -> int | None:
    """Return when a process started, in the kernel's ticks, so that a reused pid is no match.

    None where it has ended, also if nobody has waited for it yet (a container without an init).
    """
    process = read_process(pid)
    return process.started if process is not None and process.state not in "ZX" else None
