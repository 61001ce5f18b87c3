"""What a command makes of hostile input, in a process of little memory that is given little time.

The processes are forked from a server that has imported what they need, so one costs milliseconds.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import resource
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

#: More than any command needs for input that is all right, and far less than a bomb asks for.
MEMORY_BYTES = 768 << 20
#: A hang is one that a minute does not end; on busy cores the slowest case takes ten seconds.
DEADLINE_S = 100.0
_PRELOADED = [
    "harness.cli.app",
    "harness.cli.sweeps",
    "harness.cli.timeline",
    "harness.config",
    "harness.store",
    "harness.submit.submit",
    "harness.timeline",
    "harness.validate",
    "tests.faults.hostile_commands",
]


@dataclass(frozen=True)
class Outcome:
    """How it ended: ``code`` is the exit code, None where there was a traceback, or no end."""

    code: int | None
    stdout: str = ""
    stderr: str = ""
    fault: str = ""  # a traceback, or how the process ended

    @property
    def is_refusal(self) -> bool:
        """Say whether it is one line of an error, and the exit code of a usage error."""
        line = self.stderr.removesuffix("\n")
        return self.code == 2 and line.startswith("hvdscale: error: ") and "\n" not in line


def command(*argv: str, **limits: float) -> Outcome:
    """Run ``hvdscale ARGV`` as ``main`` does, within the limits."""
    return bounded(_main, argv, **limits)


def bounded(
    function: Callable[..., Any],
    arguments: Sequence[Any] = (),
    *,
    memory_bytes: float = MEMORY_BYTES,
    deadline_s: float = DEADLINE_S,
) -> Outcome:
    """Call a function of a module; an int that it returns is the exit code, else that is 0."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(
        target=_run, args=(theirs, int(memory_bytes), function, tuple(arguments)), daemon=True
    )
    process.start()
    theirs.close()
    try:
        if not mine.poll(deadline_s):
            return Outcome(None, fault=f"no end within {deadline_s:g} s")
        found: Outcome = mine.recv()
        return found
    except EOFError:
        process.join(10)
        return Outcome(None, fault=f"ended with {process.exitcode}")
    finally:
        process.kill()
        process.join()
        mine.close()


def _main(*argv: str) -> int:
    from harness.cli import main

    return main(list(argv))


def _run(
    answer: Connection, memory_bytes: int, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    limit = _mapped_bytes() + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    out, err = io.StringIO(), io.StringIO()
    code: int | None = None
    fault = ""
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            result = function(*arguments)
            code = result if isinstance(result, int) else 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:  # noqa: BLE001 told to the test, which fails with it
            fault = traceback.format_exc(limit=-6)
    answer.send(Outcome(code, out.getvalue()[-20_000:], err.getvalue()[-20_000:], fault[-6_000:]))


def _mapped_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize()
