"""The subcommand that sums up a timeline of Horovod, whoever recorded it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import ConfigError

if TYPE_CHECKING:
    from harness.timeline import PhaseTime, Summary

_ROWS = {
    "negotiation": "negotiation",
    "queue": "queue",
    "data": "  its data",
    "stream": "  GPU stream",
    "setup": "  set-up",
    "copy_in": "copy in",
    "allreduce": "all-reduce",
    "copy_out": "copy out",
}
_HEAD = ("", "a step", "of the span", "sum over tensors")


def command_timeline(path: Path, as_json: bool, steps: int | None) -> int:
    """Print where the all-reduces of a timeline spend their time, a step.

    ``steps`` is how many there are in the file; None counts how often a tensor is reduced.
    """
    if steps is not None and steps < 1:
        raise ConfigError(f"--steps {steps}: a file has at least one step")
    from harness.timeline import read_summary

    summary = read_summary(path, steps)
    if as_json:
        print(json.dumps(summary.as_dict(), indent=1))
    else:
        print("\n".join(timeline_lines(summary, path)))
    return 0


def timeline_lines(summary: Summary, path: Path) -> Iterator[str]:
    """Return the summary as a person reads it."""
    ends = "" if summary.complete else ", which is cut off"
    yield f"{path}: Horovod's timeline of {summary.events:,} events{ends}"
    yield f"  {_steps(summary)}"
    fused = f"{summary.allreduces:.4g} all-reduces of {summary.tensors_fused:.4g} tensors"
    yield f"  a step: {summary.tensors:.4g} tensors reduced, in {fused} (means)"
    yield f"  span: {_time(summary.span_s)} a step, from the first request to the last all-reduce"
    if summary.cycles is not None and summary.cycle_s is not None:
        yield f"  cycles: {summary.cycles:.4g} a step, one every {_time(summary.cycle_s)}"
    yield ""
    yield from _table(summary)
    yield ""
    yield "  a step: time in which at least one tensor was in that state; states overlap."


def _steps(summary: Summary) -> str:
    found = f"most tensors are reduced {summary.steps_found} times"
    if summary.uneven:
        found += f", {summary.uneven} more or less often"
    given = summary.steps != summary.steps_found
    return f"steps: {summary.steps} ({'as given; ' if given else ''}{found})"


def _table(summary: Summary) -> Iterator[str]:
    rows = [_HEAD]
    for field, label in _ROWS.items():
        phase: PhaseTime | None = getattr(summary, field)
        if phase is not None:
            share = f"{phase.union_s / summary.span_s:.1%}" if summary.span_s else "–"
            rows.append((label, _time(phase.union_s), share, _time(phase.sum_s)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        yield "  " + "  ".join(cells).rstrip()


def _time(seconds: float) -> str:
    """Horovod counts microseconds, and of a step's mean the next digit says something too."""
    if seconds < 0.99995e-3:
        return f"{seconds * 1e6:.1f} µs"
    return f"{seconds * 1e3:,.3f} ms"
