"""What ``srun`` says in its own log of a step that failed. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass

# "srun: error: n2: task 1: Killed", "srun: error: n[1-2]: tasks 0-1: Exited with exit code 2"; the
# first of several tasks is named.
_ENDED = re.compile(r"^srun: error: (\S+): tasks? (\d+)[\d,-]*: (.+?)(?: \(core dumped\))?\s*$")
_NODE_FAILURE = re.compile(r"^srun: error: Node failure on (\S+)")
# What is said of a step that waits, and of one that never was; "Step created for" ends a wait.
_WAITS = re.compile(r"^srun: .*\bstep creation (?:temporarily|still) disabled, retrying \((.+)\)")
_CREATED = re.compile(r"^srun: Step created for ")
_CANCELLED = re.compile(r"^srun: (?:error: )?(Cancelled pending (?:job )?step\b.*)")
_REFUSED = re.compile(
    r"^srun: error: ((?:Unable to create step for|Unable to confirm allocation for) job .+)"
)
_EXITED = re.compile(r"Exited with exit code (\d+)")
_SIGNALS = {signal.strsignal(number): -number for number in signal.valid_signals()}


@dataclass(frozen=True)
class TaskEnd:
    """A task that was no success; a task of a step is a rank."""

    rank: str
    node: str  # compressed where several ended alike: "n[1-2]"
    code: int  # negative: the signal that ended it


def first_failed(lines: Iterable[str]) -> TaskEnd | None:
    """Return the task that failed first, as far as ``srun`` names it.

    After the first one ``srun`` ends all others with SIGTERM: those are not told.
    """
    for line in lines:
        match = _ENDED.match(line)
        if match is None:
            continue
        node, rank, how = match.groups()
        exited = _EXITED.fullmatch(how)
        code = int(exited[1]) if exited else _SIGNALS.get(how)
        if code is not None and code != -signal.SIGTERM:
            return TaskEnd(rank, node, code)
    return None


def failed_node(lines: Iterable[str]) -> str | None:
    """Return the node that went down under a step, as ``srun`` names it."""
    return next((match[1] for line in lines if (match := _NODE_FAILURE.match(line))), None)


def never_started(lines: Iterable[str]) -> str | None:
    """Return why Slurm started no step, in its own words; None where it says nothing of the kind.

    ``srun`` that is ended while it waits says that it was, and then something about the job: what
    it waited for is the reason.
    """
    waited, cancelled = None, None
    for line in lines:
        if match := _WAITS.match(line):
            waited = match[1]
        elif _CREATED.match(line):
            waited = None
        elif match := _CANCELLED.match(line):
            cancelled = match[1]
        elif (match := _REFUSED.match(line)) and cancelled is None:
            return match[1]
    return waited or cancelled
