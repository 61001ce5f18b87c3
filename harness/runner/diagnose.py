"""Why a launch gave no measurement: a status and one line, from what it left. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass

from harness.record import Status
from harness.runner.causes import cause_of, known_cause, whole_message
from harness.runner.hanging import STALL_SHUTDOWN, awaited, named, places, stalled, unanswered_s
from harness.runner.launcher import Ending
from harness.runner.logs import Logs, RankLog
from harness.runner.srun_log import failed_node, first_failed, never_started

# The last line of a Python traceback, as a name with at least one capital: "ValueError: ...".
_EXCEPTION = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?_*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b.*")
_TRACEBACK = "Traceback (most recent call last):"
# How horovodrun ("[1]<stderr>:") and mpirun ("[1,0]<stderr>:") mark a rank's line in their own log.
_TAG = re.compile(r"^\[(?:\d+,)?(\d+)\]<std(?:out|err)>:\s?")
# A launcher's exception about its ranks, which says less than theirs.
_LAUNCHERS_OWN = re.compile(r"Horovod detected that one or more processes|ChildFailedError")
_NOT_FOUND = re.compile(
    r"(?:^|[:\s])([^\s:]+): (?:command )?not found$"  # shells
    r"|env: .?([^\s:'’]+).?: No such file or directory"
)
# Said at the end of many a killed program, about something else.
_NOISE = re.compile(r"resource_tracker|^\s*warnings\.warn\(|\w*Warning: ")
_OWN_ERROR = re.compile(
    r"^(?:hvdscale: (?:error: )?|(?:harness\.errors|workloads\.api)\.\w+Error: )(.*)"
)
# What a rank says because another one failed first. By the same error Horovod's coordinator tells
# all ranks what is wrong with what they hand in (``controller.cc``).
_CONSEQUENCE = re.compile(
    r"HorovodInternalError(?!: (?:Mismatched|Requested to|Process-set rank) )"
    r"|Connection reset by peer|Connection closed by peer|Broken pipe"
    r"|has been shut down|shutdown in progress|SignalException|ChildFailedError"
)
_SIGNAL_NAMES = {number.value: number.name for number in signal.Signals}
_FATAL_SIGNAL = re.compile(
    r"rank (\d+) with PID \d+ on node \S+ exited on signal (\d+)"  # Open MPI
    r"|rank\s*: (\d+) \(local_rank: \d+\)\s+exitcode\s*: -(\d+)"  # torchrun
)
_EXIT_CODE = re.compile(
    r"Process name: (?:\[[^\],]*,)?(\d+)\]?\s+Exit code:\s+(\d+)"  # Open MPI, horovodrun
    r"|rank\s*: (\d+) \(local_rank: \d+\)\s+exitcode\s*: (\d+)"  # torchrun
    r"|Process (\d+) exit with status code (\d+)"  # horovodrun's workers
)
_COMMAND_NOT_FOUND = 127  # as shells, env and posix_spawn have it
_LEFT_EARLY = re.compile(r"process rank (\d+) with PID \d+ on node \S+ exiting improperly")
_ROOT_CAUSE = "Root Cause (first observed failure)"  # torchrun: what follows is the first failure


@dataclass(frozen=True)
class Verdict:
    """A status other than ok, and the likely cause in one line."""

    status: Status
    cause: str


INTERRUPTED = Verdict("cancelled", "interrupted by the user")


def diagnose(
    ending: Ending,
    logs: Logs,
    timeout_s: float,
    world_size: int,
    interrupted: Verdict = INTERRUPTED,
) -> Verdict:
    """Say what became of a launch that has no record, or that failed in spite of one.

    ``interrupted`` is what to say of one that was ended because we were asked to end.
    """
    if ending.interrupted:
        down = failed_node(logs.launcher)
        why = f"{interrupted.cause} (node {down} failed)" if down else interrupted.cause
        return Verdict(interrupted.status, why)
    if ending.start_error:
        return Verdict("failed", f"could not be started: {ending.start_error}")
    everything = [line for log in logs.ranks for line in log.tail] + list(logs.launcher)
    if any(STALL_SHUTDOWN in line for line in everything):
        return Verdict("stalled", stalled(everything))
    if ending.timed_out:
        return Verdict("timeout", _timed_out(ending, logs, timeout_s, world_size, everything))
    if (mute := _mute(logs, world_size)) is not None:
        return Verdict("stalled", mute)
    killed = ending.exit_code is not None and ending.exit_code < 0
    found = _from_memory(ending, logs) or _from_ranks(logs, killed) or _not_started(logs)
    cause = (
        found or _from_words(logs) or _from_launcher(logs) or _from_exit(ending, logs, world_size)
    )
    if ending.survivors:
        left = ", ".join(f"{process.pid} (state {process.state})" for process in ending.survivors)
        cause += f"; processes {left} could not be ended"
    return Verdict("failed", cause)


def exit_name(code: int) -> str:
    """Return an exit code as words: a signal's name where a signal ended the process."""
    number = -code if code < 0 else code - 128
    name = _SIGNAL_NAMES.get(number) if code < 0 or code > 128 else None
    return f"signal {name}" if name else f"exit code {code}"


def _timed_out(
    ending: Ending, logs: Logs, timeout_s: float, world_size: int, lines: list[str]
) -> str:
    cause = f"not done after {timeout_s:g} s (measure.timeout_s)"
    if ending.stopped:
        who = ", ".join(ending.stopped)
        return f"{cause}; {who} was stopped (SIGSTOP, or a debugger)"
    absent = _absent(logs, world_size)
    if missing := awaited(lines):
        return f"{cause}; Horovod was waiting for rank {missing}"
    # A launcher may hang though its ranks have ended, and it has said why.
    if said := _not_started(logs) or known_cause(logs.launcher):
        return f"{cause}; {said}"
    if absent:
        return f"{cause}; rank {named(absent)} never started its log"
    return f"{cause}; {where}" if (where := places(logs)) else cause


def _absent(logs: Logs, world_size: int) -> list[int]:
    """Return the ranks that have no log."""
    return sorted(set(range(world_size)) - {log.rank for log in logs.ranks})


def _mute(logs: Logs, world_size: int) -> str | None:
    """Name the ranks that said nothing where the others, over Gloo, waited for them in vain."""
    waited = {r.rank: s for r in logs.ranks if (s := unanswered_s(r.tail)) is not None}
    errors = {log.rank: _last_error(log.tail) for log in logs.ranks}
    silent = [rank for rank, error in errors.items() if error is None and rank not in waited]
    absent = _absent(logs, world_size)
    own = any(error is not None and not _CONSEQUENCE.search(error) for error in errors.values())
    if not waited or own or not (silent or absent):
        return None
    longest = f"{max(waited.values()):g} s"
    if absent:
        return f"rank {named(absent)} never started its log; the others waited {longest} for it"
    return (
        f"rank {named(silent)} did not answer for {longest}: stopped, stuck in a driver or a file "
        "system, or cut off from the others"
    )


def _not_started(logs: Logs) -> str | None:
    why = None if logs.ranks else never_started(logs.launcher)
    return f"Slurm never started the step: {why}" if why else None


def _from_memory(ending: Ending, logs: Logs) -> str | None:
    if not ending.out_of_memory:
        return None
    rank, code = _fatal(logs) or ("", 0)
    who = f" (rank {rank})" if code in (-signal.SIGKILL, 128 + signal.SIGKILL) else ""
    return (
        f"out of memory: the kernel ended {ending.out_of_memory} of our processes{who}; "
        "ask for more memory, or use a smaller batch"
    )


def _from_ranks(logs: Logs, launcher_killed: bool) -> str | None:
    """Return the exception of the rank that failed first, leaving out those that failed with it."""
    found: list[tuple[bool, float, RankLog, str]] = []
    for log in logs.ranks:
        line = _last_error(log.tail)
        if line is not None:
            said = whole_message(line, log.tail)
            found.append((bool(_CONSEQUENCE.search(said)), log.written_at, log, line))
    if not found:
        return None
    consequence, _, log, line = min(found, key=lambda item: item[:2])
    together = len(found) == len(logs.ranks) > 1 and len({one[3] for one in found}) == 1
    if consequence and (launcher_killed or _fatal(logs) is not None):
        return None  # a rank that left no words took the others with it: the launcher knows which
    who = "all ranks" if together and not consequence else f"rank {log.rank}"
    return f"{who}: {cause_of(line, log.tail) or whole_message(line, log.tail)}"


def _last_error(lines: tuple[str, ...]) -> str | None:
    """Return the last exception's line, or error of ours: by its form, or after a traceback."""
    last, inside = None, False
    for line in lines:
        inside = inside or line.startswith(_TRACEBACK)
        if match := _OWN_ERROR.match(line):
            last = match[1]
        elif _EXCEPTION.match(line) or (inside and _ends_traceback(line)):
            last, inside = line, False
    return last


def _ends_traceback(line: str) -> bool:
    return bool(line) and (line[0].isalpha() or line[0] == "_") and not line.startswith(_TRACEBACK)


def _from_tagged(logs: Logs) -> str | None:
    """Return the exception of a rank that fell before it had a log of its own."""
    for rank, lines in _by_tag(logs.launcher).items():
        kept = _without_launchers_own(lines)
        error = _last_error(kept)
        if error is not None and not _CONSEQUENCE.search(error := whole_message(error, kept)):
            return f"rank {rank}: {error}" if rank else error
    return None


def _without_launchers_own(lines: Iterable[str]) -> tuple[str, ...]:
    """Leave out what a launcher raises because a rank failed, and the traceback that it ends."""
    kept: list[str] = []
    for line in lines:
        if not _LAUNCHERS_OWN.search(line):
            kept.append(line)
        elif line and not line[0].isspace():  # one that is indented is of the program's text
            began = [at for at, told in enumerate(kept) if told.startswith(_TRACEBACK)]
            del kept[began[-1] if began else len(kept) :]
    return tuple(kept)


def _by_tag(lines: tuple[str, ...]) -> dict[str, list[str]]:
    """Return rank → its lines in a launcher's log, "" being nobody's, and last."""
    found: dict[str, list[str]] = {}
    untagged: list[str] = []
    for line in lines:
        match = _TAG.match(line)
        (found.setdefault(match[1], []) if match else untagged).append(_TAG.sub("", line))
    return found | {"": untagged}


def _from_missing_command(lines: Iterable[str]) -> str | None:
    for line in lines:
        if match := _NOT_FOUND.search(line):
            return f"command not found: {match[1] or match[2]}"
    return None


def _from_words(logs: Logs) -> str | None:
    """Return known trouble that is no exception: said while a process fell, or by a launcher."""
    for log in logs.ranks:
        if known := known_cause(log.tail):
            return f"rank {log.rank}: {known}"
    return known_cause(logs.launcher)


def _fatal(logs: Logs) -> tuple[str, int] | None:
    """Return (rank, exit code) of the rank that failed first; a negative code is a signal."""
    if (task := first_failed(logs.launcher)) is not None:
        return task.rank, task.code
    text = _flat(logs.launcher)
    root = text.partition(_ROOT_CAUSE)[2] or text
    # What torchrun observed first can be the rank that only lost its peer: a signal that did not
    # come from the launcher is the better cause, wherever in the list it stands.
    for where in (root, text):
        for match in _FATAL_SIGNAL.finditer(where):
            rank, number = (value for value in match.groups() if value is not None)
            if where is root or int(number) != signal.SIGTERM:
                return rank, -int(number)
    return next(((str(rank), code) for rank, code in _exit_codes(root).items()), None)


def _from_launcher(logs: Logs) -> str | None:
    if match := _LEFT_EARLY.search(" ".join(logs.launcher)):  # Open MPI breaks its lines anywhere
        return f"rank {match[1]} left before its time, without finishing MPI"
    fatal = _fatal(logs)
    if fatal is not None:
        rank, code = fatal
        if code == _COMMAND_NOT_FOUND and (missing := _from_missing_command(logs.launcher)):
            return f"rank {rank}: {missing}"
        if code > 0 and (silent := _silent(logs, rank)) is not None:
            own = _exit_codes(_flat(logs.launcher)).get(silent)
            if own and exit_name(own).startswith("exit"):  # a signal can be the launcher's own
                return f"rank {silent} ended with {exit_name(own)}"
            return (
                f"rank {silent} ended without a word (killed from outside, a crash in native code, "
                f"or it left with exit code 0), and rank {rank} lost its connection to it"
            )
        if code > 0 and exit_name(code).startswith("exit") and (error := _from_tagged(logs)):
            return error
        task = first_failed(logs.launcher)
        where = f" on {task.node}" if task is not None else ""
        return f"rank {rank}{where} ended with {exit_name(code)}{_hint(code)}"
    return _from_tagged(logs)


def _flat(lines: Iterable[str]) -> str:
    """Return lines as one: Open MPI breaks its own anywhere."""
    return re.sub(r"\s+", " ", "\n".join(lines))


def _exit_codes(text: str) -> dict[int, int]:
    """Return rank → the first exit code that a launcher told of it, in the order it told them."""
    found: dict[int, int] = {}
    for match in _EXIT_CODE.finditer(text):
        rank, code = (int(value) for value in match.groups() if value is not None)
        found.setdefault(rank, code)
    return found


def _silent(logs: Logs, first: str) -> int | None:
    """Return the one rank without an error of its own where ``first`` only lost its peer.

    horovodrun may notice the rank that lost its peer before the peer itself, whose signal it then
    never tells.
    """
    errors = {log.rank: _last_error(log.tail) for log in logs.ranks}
    said = next((error for rank, error in errors.items() if str(rank) == first), None)
    if said is None or not _CONSEQUENCE.search(said):
        return None
    without = [rank for rank, error in errors.items() if error is None]
    return without[0] if len(without) == 1 else None


def _hint(code: int) -> str:
    number = -code if code < 0 else code - 128
    if number == signal.SIGKILL:
        return ": killed from outside, often for memory"
    if number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGABRT):
        return ": a crash in native code"
    return ""


def _from_exit(ending: Ending, logs: Logs, world_size: int) -> str:
    absent = _absent(logs, world_size)
    started = "" if not absent else f"; rank {named(absent)} never started its log"
    if ending.exit_code == 0:
        return f"ended with exit code 0, but wrote no record{started}"
    code = ending.exit_code if ending.exit_code is not None else 1
    if code == _COMMAND_NOT_FOUND and (missing := _from_missing_command(logs.launcher)):
        return missing
    telling = (x for x in reversed(logs.launcher) if x.strip(" -=") and not _NOISE.search(x))
    last = "" if code < 0 else next(telling, "")  # a killed program's last line is about its work
    if code > 0 and not exit_name(code).startswith("exit"):  # handed on from a rank
        said = f"{_hint(code)}; the launcher does not say which" + (f": {last}" if last else "")
        return f"a rank ended with {exit_name(code)}{said}{started}"
    said = f": {last}" if last else _hint(code)
    return f"the launcher ended with {exit_name(code)}{said}{started}"
