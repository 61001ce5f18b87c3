"""A launch without ranks, started as ``stub_launch.py BEHAVIOUR RUN_FILE``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.record import RunRecord
    from harness.spec import RunSpec


def main(how: str, run_file: Path) -> int:
    spec = json.loads(run_file.read_text())
    rank_log = Path(spec["log_dir"]) / "rank-0.log"
    print("launcher speaking")
    if how.startswith("ok"):
        commit(run_file)
        if how == "ok-then-hang":
            rank_log.write_text("done\n")
            time.sleep(300)
        return {"ok": 0, "ok-then-3": 3}[how]
    if how == "beaten":
        commit(run_file, attempt=99)  # a runner on another host
        commit(run_file)
    if how == "raise":
        rank_log.write_text(
            'Traceback (most recent call last):\n  File "x"\nValueError: too much\n'
        )
        return 1
    if how == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "nothing":
        return 0
    if how == "garbage":
        sys.stdout.buffer.write(bytes(range(256)) * 40 + b"\n\x1b[31mred\x1b[0m\rend\xff\n")
        sys.stdout.flush()
        return 5
    if how in ("hang", "hang-deaf", "hang-stopped"):
        if how == "hang-deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        rank_log.write_text("waiting\n")
        if how == "hang-stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(300)
    if how == "daemon":
        leave_daemon(run_file)
        commit(run_file)
        return 0
    if how == "daemon-without-marker":
        leave_daemon(run_file, env={})
        rank_log.write_text("it is there\n")
        time.sleep(300)
    return 9


def commit(run_file: Path, attempt: int | None = None) -> None:
    from harness.spec import RunSpec
    from harness.store import Store

    spec = RunSpec.read(run_file)
    Store.open(spec.results).commit(record_of(spec, attempt or spec.attempt), None)


def record_of(spec: RunSpec, attempt: int) -> RunRecord:
    """Return the record of a launch that went well."""
    from harness.record import RunRecord

    return RunRecord(
        run_id=spec.run_id,
        attempt=attempt,
        status="ok",
        sweep=spec.sweep,
        block=spec.block,
        config=spec.config,
        resolved=spec.resolved,
        started_at="2026-01-02T03:04:05Z",
        ended_at="2026-01-02T03:04:06Z",
    )


def leave_daemon(run_file: Path, env: dict[str, str] | None = None) -> None:
    """Leave a process in a session of its own that is nobody's child and does not take TERM.

    Its command line has ``run_file``, so that a test can tell it from those of other tests.
    """
    code = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('ready', flush=True)\n"
        "time.sleep(300)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", code, str(run_file)],
        stdout=subprocess.PIPE,
        start_new_session=True,
        env=env,
    )
    assert child.stdout is not None
    child.stdout.readline()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
