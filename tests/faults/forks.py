"""A process that has imported everything and forks runners: hundreds of them cost little.

Started once by a test module, it calls functions of ``tests.faults`` and answers with what they
return, as JSON. It has one thread and no test framework in it, so that a fork of it is as good as
a fresh process.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
#: So many times as many moments are tried, and others.
FACTOR = int(os.environ.get("HVDSCALE_TEST_FAULTS_FACTOR", "1"))
SEED = int(os.environ.get("HVDSCALE_TEST_SEED", "20261128"))


class Server:
    """The process, as a test sees it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.forks"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def call(self, name: str, **arguments: Any) -> Any:
        """Call "module:function" there; what it raises is an AssertionError here."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = json.dumps({"name": name, "arguments": arguments}, default=str)
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline() or '{"error": "it is gone"}')
        if "error" in answer:
            raise AssertionError(f"{name}({arguments}):\n{answer['error']}")
        return answer["result"]

    def close(self) -> None:
        """End it, and whatever it may have left."""
        self._process.stdin and self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@contextmanager
def served() -> Iterator[Server]:
    server = Server()
    try:
        yield server
    finally:
        server.close()


def fork(work: Callable[[], int], log: Path) -> int:
    """Start ``work`` in a process of its own, whose exit code it returns; what it says to ``log``.

    The signals are those of a fresh interpreter. Return its pid.
    """
    # A Ctrl-C that comes before the fork can take it must not make a second server of it.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        return pid
    code = 70
    try:
        code = _worked(work, log)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        sys.stdout.flush()
        sys.stderr.flush()
    except KeyboardInterrupt:
        code = 130
    finally:
        os._exit(code)


def _worked(work: Callable[[], int], log: Path) -> int:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        return work()
    except KeyboardInterrupt:
        return 130  # as of the command line
    except BaseException:  # noqa: BLE001 nothing goes on in a fork of its parent
        traceback.print_exc()
        return 70


def wait(pid: int) -> int:
    """Return the exit code of a child, negative the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def forked(work: Callable[[], int], log: Path) -> int:
    """Run ``work`` as ``fork`` does, to its end; return as ``wait``."""
    return wait(fork(work, log))


def _answer(line: str) -> dict[str, Any]:
    request = json.loads(line)
    module, _, name = request["name"].partition(":")
    try:
        return {"result": getattr(importlib.import_module(module), name)(**request["arguments"])}
    except BaseException:  # noqa: BLE001 it is raised where it was asked for
        return {"error": traceback.format_exc()}


def prepare() -> None:
    """Make this process fit to be forked; nothing asks the disk to keep what tests write."""
    from tests.faults import disturbed

    disturbed.warm()
    disturbed.put_in(os, "fsync", lambda descriptor: None)


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is printed is not the answer
    prepare()
    for line in sys.stdin:
        out.write(json.dumps(_answer(line)) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
