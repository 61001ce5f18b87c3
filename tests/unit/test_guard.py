"""The guard of launches outlives whatever signal a batch system sends to all of a job."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from harness.errors import LaunchError
from harness.runner.interrupts import SIGNALS
from harness.runner.launcher import Guard


@pytest.mark.parametrize("number", SIGNALS)
def test_the_runners_signals_do_not_end_the_guard(number: signal.Signals) -> None:
    """``scancel --full --signal=USR1``, for one, reaches every process of a job."""
    with Guard() as guard:
        process = guard._process
        _wait_until_it_ignores(process.pid, signal.SIGTERM)
        process.send_signal(number)
    assert process.returncode == 0


def test_where_no_process_can_be_started_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", refused)
    with pytest.raises(LaunchError, match="no process can be started here: Resource temporarily"):
        Guard()


def _wait_until_it_ignores(pid: int, number: signal.Signals) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        status = Path(f"/proc/{pid}/status").read_text()
        ignored = next(line for line in status.splitlines() if line.startswith("SigIgn:"))
        if int(ignored.split()[1], 16) >> (number - 1) & 1:
            return
        time.sleep(0.02)
    pytest.fail("the guard never ignored it")
