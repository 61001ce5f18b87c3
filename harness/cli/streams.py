"""The standard streams, whatever the shell made of them: closed, full, or of a narrow encoding."""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress

_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_STRICT = ("strict", "surrogateescape")  # both fail on a character that the encoding lacks


def prepare_streams() -> None:
    """Let stdout and stderr take any character, and be there even where the shell closed them.

    What an encoding lacks becomes ``?``. What goes to a closed stream goes nowhere, as in Python.
    """
    _occupy_descriptors()
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 until the end
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in _STRICT:
            stream.reconfigure(errors="replace")


def is_of_output(error: OSError) -> bool:
    """Say whether an error is that of a print: a stream has no file's name, all else here has."""
    return error.filename is None and error.errno in _NOT_WRITTEN


def give_up_stdout() -> None:
    """Send stdout's buffer nowhere; otherwise the interpreter complains once more at its end."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
    with suppress(OSError):
        sys.stdout.flush()


def _occupy_descriptors() -> None:
    """Open nothing as 0, 1 and 2 where they are closed.

    The next file to be opened, a record for instance, would get the number, and what a library
    prints would go into it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
