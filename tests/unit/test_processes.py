from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from harness.processes import MARKER, end_launch, launch_processes, read_process

DAEMON = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('ready', flush=True); time.sleep(300)"
)
PARENT = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", {DAEMON!r}], stdout=subprocess.PIPE,
                         start_new_session=True, env={{}})
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(300)
"""


def test_who_was_found_by_descent_is_ended_though_its_parent_goes_first(tmp_path: Path) -> None:
    """It has neither marker nor session, and does not take TERM, of which its parent ends."""
    parent = subprocess.Popen(
        [sys.executable, "-S", "-c", PARENT],
        stdout=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, MARKER: "0123"},
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        assert {p.pid for p in launch_processes("0123", parent.pid)} == {parent.pid, child}
        assert end_launch("0123", parent.pid, grace_s=0.5) == []
        left = read_process(child)
        assert left is None or left.state in "ZX"
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        parent.kill()
        parent.wait()
        parent.stdout.close()
