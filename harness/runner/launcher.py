"""One launch as a process: started, waited for within a time limit, and ended whole."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from harness import processes
from harness.errors import LaunchError
from harness.ranks import find_place, without_place
from harness.runner.interrupts import Interrupts


@dataclass(frozen=True)
class Ending:
    """How a launch ended."""

    exit_code: int | None  # negative: the signal that ended the launcher; None: it was ended by us
    wall_s: float
    timed_out: bool = False
    interrupted: bool = False
    start_error: str = ""  # the launcher could not be started at all
    survivors: tuple[processes.Process, ...] = ()  # that even SIGKILL did not end
    stopped: tuple[str, ...] = ()  # "rank 1 (process 77)", those stopped when the time was up
    out_of_memory: int = 0  # processes that the kernel ended for memory meanwhile, in our cgroup
    signal: signal.Signals | None = None  # that this process was asked to end by


class Guard:
    """A process that ends the open launches if this one is killed before it can.

    It is started once a sweep, sleeps on a pipe meanwhile, and is gone when the sweep is. Without
    one no launch may go on: LaunchError where no process can be started.
    """

    def __init__(self) -> None:
        self._open: list[str] = []
        self._process = self._start()

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None  # a pipe, see _start
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()

    def begin(self, launch_id: str, session: int | None = None) -> None:
        """Make the guard answer for a launch; again with its session once that is known."""
        self._open = [launch_id, *([str(session)] if session is not None else [])]
        self._tell("+" + " ".join(self._open))

    def end(self, launch_id: str) -> None:
        """Take a launch from the guard, because no process of it is left."""
        self._open = []
        self._tell(f"-{launch_id}")

    def _tell(self, line: str) -> None:
        try:
            self._write(line)
        except BrokenPipeError:  # somebody killed the guard: without one no launch may go on
            self._process.wait()
            self._process = self._start()
            if self._open:
                self._write("+" + " ".join(self._open))

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    @staticmethod
    def _start() -> subprocess.Popen[str]:
        try:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", processes.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )
        except OSError as error:
            raise LaunchError(
                f"no process can be started here: {error.strerror}; raise the limit of processes "
                "(ulimit -u, or the container's) or of open files (ulimit -n), and run again"
            ) from error


def new_launch_id() -> str:
    """Return an id that no other process carries by chance."""
    return secrets.token_hex(16)


def run_launch(
    argv: Sequence[str],
    env: Mapping[str, str],
    launch_id: str,
    log: Path,
    timeout_s: float,
    guard: Guard,
    interrupts: Interrupts,
    *,
    signalled_s: float = 0.0,
) -> Ending:
    """Start a launch, wait for it, and leave no process of it; its output goes to ``log``.

    ``env`` is added to this process's own, without a place that another launcher gave it. Never
    raises for what the launch does. ``signalled_s`` is for jobs of a batch system, which sends its
    signal to the ranks as to us: those may end of it first, so that a launch that failed waits so
    long for the signal that would explain it.
    """
    started, killed_before = time.monotonic(), _oom_kills()
    guard.begin(launch_id)  # before the start: there is no moment in which nobody knows of it
    process: subprocess.Popen[bytes] | None = None
    problem, timed_out = "", False
    try:
        everything = {**without_place(os.environ), **env, processes.MARKER: launch_id}
        process = _start(argv, everything, log)
        guard.begin(launch_id, process.pid)
        timed_out = _wait(process, timeout_s, interrupts)
    except OSError as error:
        # The launcher's log, too, may be what cannot be opened.
        problem = f"{error.filename or argv[0]}: {error.strerror or error}"
    finally:
        code, session = (process.poll(), process.pid) if process is not None else (None, None)
        stopped = _stopped(processes.launch_processes(launch_id, session)) if timed_out else ()
        left = processes.end_launch(launch_id, session, hurry=lambda: interrupts.hurry)
        if process is not None and not any(p.pid == process.pid for p in left):
            process.wait()
        guard.end(launch_id)
    shared = signalled_s > 0 and code != 0
    if shared:
        interrupts.linger(signalled_s)
    return Ending(
        exit_code=code,
        wall_s=time.monotonic() - started,
        timed_out=timed_out,
        interrupted=interrupts.asked and (code is None or shared),
        signal=interrupts.first,
        start_error=problem,
        survivors=tuple(left),
        stopped=stopped,
        out_of_memory=max(0, _oom_kills() - killed_before),
    )


def _start(argv: Sequence[str], env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            list(argv),
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait(process: subprocess.Popen[bytes], timeout_s: float, interrupts: Interrupts) -> bool:
    """Wait for the launcher; return whether the time limit ended the wait."""
    deadline = time.monotonic() + timeout_s
    while process.poll() is None and not interrupts.asked:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return True
        interrupts.wait_for(process.pid, left_s)
    return False


def _stopped(live: Sequence[processes.Process]) -> tuple[str, ...]:
    """Name those of a launch's processes that are stopped, by rank where they have one."""
    found = []
    for process in live:
        if process.state == "T":
            place = find_place(processes.environment_of(process.pid))
            name = f"process {process.pid}"
            found.append(f"rank {place.rank} ({name})" if place is not None else name)
    return tuple(found)


def _oom_kills() -> int:
    """Return how many processes of our cgroup the kernel ended for memory; 0 if it won't say.

    Version 2 of cgroups has one hierarchy, of no name; in version 1 memory has one of its own.
    """
    try:
        groups = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    count = 0
    for _, controllers, own in (line.split(":", 2) for line in groups):
        if not controllers:
            count += _oom_kills_in(Path(f"/sys/fs/cgroup{own}/memory.events"))
        elif "memory" in controllers.split(","):
            count += _oom_kills_in(Path(f"/sys/fs/cgroup/memory{own}/memory.oom_control"))
    return count


def _oom_kills_in(file: Path) -> int:
    try:
        text = file.read_text(encoding="ascii")
    except OSError:
        return 0
    return int(dict(line.split() for line in text.splitlines()).get("oom_kill", 0))
