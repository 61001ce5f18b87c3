"""Child processes that never outlive this one's interest in them."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

KILL_AFTER_S = 5.0


@contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into ``KeyboardInterrupt``, so that clean-up runs for them too."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _start(
    argv: list[str], env: Mapping[str, str], cwd: Path | None = None
) -> subprocess.Popen[str]:
    """Start a command whose output, errors included, is one stream of text.

    In a session of its own: a terminal's Ctrl-C does not reach it, and it ends with its children.
    """
    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=dict(env),
        cwd=cwd,
        start_new_session=True,
    )


def end_group(process: subprocess.Popen[str]) -> None:
    """End a process started in a session of its own, with all its children."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(KILL_AFTER_S)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def run_logged(
    argv: list[str],
    log: Path,
    env: Mapping[str, str],
    cwd: Path | None = None,
    on_line: Callable[[str], None] | None = None,
) -> int:
    """Run a command to its end, its output appended to ``log``; return its exit status.

    Interrupted, it ends the command and all its children first.
    """
    with log.open("a", encoding="utf-8", errors="replace") as file:
        process = _start(argv, env, cwd)
        try:
            assert process.stdout is not None
            for line in process.stdout:
                file.write(line)
                if on_line is not None:
                    on_line(line)
            return process.wait()
        except BaseException:
            end_group(process)
            raise


def run_for(argv: list[str], env: Mapping[str, str], timeout_s: float) -> tuple[int | None, str]:
    """Run a command; return (exit status or None after ``timeout_s``, its whole output)."""
    process = _start(argv, env)
    try:
        output, _ = process.communicate(timeout=timeout_s)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        end_group(process)
        output, _ = process.communicate()  # what it had printed by then is not lost
        return None, output
    except BaseException:
        end_group(process)
        raise


def run_uninterrupted(argv: list[str], env: Mapping[str, str]) -> tuple[int, str]:
    """Run a short command that an interrupt must not cut in half; the interrupt is raised after."""
    process = _start(argv, env)
    interrupted = False
    while True:
        try:
            output, _ = process.communicate()
            break
        except KeyboardInterrupt:
            interrupted = True
    if interrupted:
        raise KeyboardInterrupt
    return process.returncode, output


def pip_reason(output: str) -> str:
    """Return the line in which pip says why it failed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    return (errors or lines or ["no reason given"])[-1]
