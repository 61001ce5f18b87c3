"""A rank ends itself when its runner is gone, or when its time is long over: real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from harness import watchdog
from harness.processes import MARKER

ROOT = Path(__file__).parents[2]

#: A rank that would run for ten minutes: ``start`` with quick periods, then say its pid and sleep.
RANK = """
import os, sys, time
from harness import watchdog
watchdog.PERIOD_S, watchdog.GRACE_S = 0.05, 0.0
watchdog.start(float(sys.argv[1]))
print(os.getpid(), flush=True)
time.sleep(600)
"""
#: A runner that starts a rank through a launcher of its own, tells the exit code, and lingers.
RUNNER = """
import os, subprocess, sys, time
os.environ["HVDSCALE_RUNNER_PID"] = str(os.getpid())
rank = [sys.executable, "-c", sys.argv[1], "600"]
launcher = "import subprocess, sys; sys.exit(print(subprocess.call(sys.argv[1:]), flush=True))"
subprocess.Popen([sys.executable, "-c", launcher, *rank], stderr=subprocess.DEVNULL)
time.sleep(600)
"""


def start(*argv: str, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", *argv],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_runner_dies_and_the_rank_ends_with_124() -> None:
    runner = start(RUNNER, RANK)
    assert runner.stdout is not None
    rank = int(runner.stdout.readline())
    os.kill(rank, 0)  # it runs
    # SIGKILL, and nobody waits for it yet: a zombie is gone, too.
    runner.send_signal(signal.SIGKILL)
    try:
        assert runner.stdout.readline().strip() == str(watchdog.EXIT_CODE)
    finally:
        runner.communicate(timeout=120)


def test_the_deadline_ends_the_rank() -> None:
    rank = start(RANK, "0.3")
    _, said = rank.communicate(timeout=120)
    assert rank.returncode == watchdog.EXIT_CODE == 124
    assert said.endswith("hvdscale: the launch's time limit is over; this rank ends\n")


def test_before_the_deadline_every_threads_stack_is_told_once() -> None:
    rank = start(RANK, "3")  # it tells them once half of this is over, if it has begun by then
    _, said = rank.communicate(timeout=120)
    assert said.count("the time limit is near; thread MainThread is at") == 1
    assert 'File "<string>"' in said


def test_it_ends_a_rank_whose_main_thread_is_stuck() -> None:
    stuck = RANK.replace("time.sleep(600)", "import threading; threading.Event().wait()")
    rank = start(stuck, "0.3")
    rank.communicate(timeout=120)
    assert rank.returncode == 124


#: What a rank may have done to what it writes to, and to its descriptors.
CLOSED = "os.close(2)"
FULL = "os.dup2(os.open('/dev/full', os.O_WRONLY), 2)"
NO_DESCRIPTORS = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))"


@pytest.mark.parametrize("before", [CLOSED, FULL])
def test_a_rank_that_cannot_say_so_ends_all_the_same(before: str) -> None:
    rank = start(RANK.replace("time.sleep", f"{before}; time.sleep"), "0.3")
    try:
        rank.wait(timeout=120)
    finally:
        rank.kill()
        rank.communicate()
    assert rank.returncode == watchdog.EXIT_CODE


@pytest.mark.parametrize("before", ["pass", NO_DESCRIPTORS])
def test_a_runner_that_lives_is_no_reason(before: str) -> None:
    program = RANK.replace("time.sleep", f"{before}; time.sleep")
    rank = start(program, "60", **{watchdog.RUNNER_PID: str(os.getpid())})
    try:
        assert rank.stdout is not None
        rank.stdout.readline()
        time.sleep(0.5)
        assert rank.poll() is None
    finally:
        rank.kill()
        rank.communicate()


def test_a_stranger_with_the_runners_number_is_not_watched() -> None:
    """On another node the number is somebody else's, and its end means nothing."""
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    rank = start(RANK, "60", **{watchdog.RUNNER_PID: str(stranger.pid)})
    try:
        assert rank.stdout is not None
        rank.stdout.readline()
        stranger.kill()
        stranger.wait()
        time.sleep(0.5)
        assert rank.poll() is None
    finally:
        for process in (stranger, rank):
            process.kill()
            process.wait()
        rank.communicate()


def test_a_reused_pid_is_no_match() -> None:
    own = watchdog._start_time(os.getpid())
    assert own is not None
    assert own == watchdog._start_time(os.getpid())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert watchdog._start_time(child.pid) not in (None, own)
        child.kill()
    assert watchdog._start_time(child.pid) is None


#: A launcher that starts a rank and says its pid; nothing of it is this process's child.
LAUNCHER = """
import subprocess, sys, time
rank = subprocess.Popen([sys.executable, "-c", sys.argv[1], "600"], stdout=subprocess.PIPE)
print(rank.stdout.readline().decode(), flush=True)
time.sleep(600)
"""


@contextmanager
def launched(**environ: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Give a launcher and the pid of its rank, whose watchdog is set; neither stays."""
    launcher = start(LAUNCHER, RANK, **environ)
    assert launcher.stdout is not None
    rank = int(launcher.stdout.readline())
    try:
        yield launcher, rank
    finally:
        launcher.kill()
        with suppress(ProcessLookupError):
            os.kill(rank, signal.SIGKILL)
        launcher.communicate()


def ends(pid: int, within_s: float) -> bool:
    """Wait until a process has ended; a zombie has."""
    deadline = time.monotonic() + within_s
    while watchdog._start_time(pid) is not None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize("stopped", [False, True])
def test_the_launchers_daemon_dies_and_the_rank_ends(stopped: bool) -> None:
    """Also a rank that cannot look itself: on another node nobody else would end it."""
    with launched(**{MARKER: "a launch"}) as (launcher, rank):
        if stopped:
            os.kill(rank, signal.SIGSTOP)
        launcher.kill()
        assert ends(rank, 120.0)


def test_what_no_runner_started_may_outlive_its_shell() -> None:
    with launched(**{MARKER: ""}) as (launcher, rank):
        launcher.kill()
        launcher.wait()
        assert not ends(rank, 0.5)


def test_slurms_own_daemon_ends_its_ranks_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "_command", {os.getppid(): "slurmstepd"}.__getitem__)
    assert watchdog._hang_on_parent() == 0
