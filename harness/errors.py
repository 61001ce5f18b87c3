"""The one family of errors a user can cause, caught once in ``cli.py``.

Every message is one line: what was found, where, and what to do about it. The exit code is part of
the type, so that the command line needs no table of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

#: Of a message; beyond, its middle is left out.
MAX_CHARS = 4000


class HarnessError(Exception):
    """Something the user can put right; ``str(error)`` is one line for stderr."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        # One error is one line, also where a library's own message had several.
        line = " ".join(message.split())
        if len(line) > MAX_CHARS:  # what was found may be a megabyte; the cure stands at the end
            line = f"{line[: MAX_CHARS // 2]} … {line[-MAX_CHARS // 2 :]}"
        super().__init__(line)


class ConfigError(HarnessError):
    """A configuration file, a flag or a value in it is not usable."""


class ValidationError(HarnessError):
    """A well-formed point cannot run: an illegal combination, or too large for the machine."""


class MissingDependencyError(HarnessError):
    """A library, launcher or device is not here; the message says what to install."""


class StoreError(HarnessError):
    """A results folder cannot be read or written, or was written by a newer version."""


class BuildError(HarnessError):
    """Horovod could not be built; the message names the first cause and the log."""

    exit_code = 1


class LaunchError(HarnessError):
    """A launch failed (crash, hang, wrong backend): a failed record, not the end of a sweep."""

    exit_code = 1


class AnalysisError(HarnessError):
    """Records are there, but not enough of them, or not alike enough, for what was asked."""


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return ``" (did you mean 'x'?)"`` for the closest of ``choices``, or an empty string."""
    near = get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return f" (did you mean '{near[0]}'?)" if near else ""
