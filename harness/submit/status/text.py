"""The status of a sweep for people. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, tzinfo

from harness.submit.status.types import (
    STATES,
    Cause,
    JobStatus,
    PointStatus,
    State,
    SweepStatus,
)

ROWS = 40  # of points; beyond, those that are alike share a row
JOBS = 10  # that run; the others are counted
_INDENT = "  "
_HEADINGS: dict[State, str] = {
    "queued": "queued",
    "held": "held",
    "never": "can never start",
    "submitted": "submitted",
    "failed": "failed",
    "missing": "missing",
}


def render(status: SweepStatus, *, verbose: bool = False, zone: tzinfo | None = None) -> str:
    """Return the status in lines; ``zone`` is that of its times (default: this machine's).

    With ``verbose`` every point has a row, and every launch that is not done.
    """
    return "\n".join(
        [
            headline(status),
            *_table(status.points, verbose),
            *_running(status.jobs, verbose, zone),
            *_reasons(status.causes, zone),
            *([f"collect and report: {status.collect}"] if status.collect else []),
            *_advice(status),
            *([f"collected: {', '.join(status.written)}"] if status.written else []),
            *status.notes,
        ]
    )


def headline(status: SweepStatus) -> str:
    """Return the sums in a line."""
    counts = status.counts()
    total = sum(counts.values())
    parts = [f"{counts['done']}/{total} done"]
    parts += [f"{counts[state]} {state}" for state in STATES[1:] if counts[state]]
    points = _count(sum(bool(point.launches) for point in status.points), "point")
    return f"{status.name}: {points}, {_count(total, 'launch', 'launches')}: {', '.join(parts)}"


def _table(points: Sequence[PointStatus], verbose: bool) -> list[str]:
    shown = [state for state in STATES[1:] if any(point.counts()[state] for point in points)]
    planned = [point for point in points if point.launches]
    rows: list[tuple[str, ...]] = [("point", "done", *shown)]
    after: dict[int, list[str]] = {}  # row → lines below it
    for label, point in _rows(planned, verbose):
        counts = point.counts()
        done = f"{counts['done']}/{len(point.launches)}"
        rows.append((label, done, *(str(counts[state] or ".") for state in shown)))
        after[len(rows) - 1] = list(_launches(point)) if verbose else []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for number, row in enumerate(rows if planned else ()):
        first, *others = (
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines += [_INDENT + "  ".join([first, *others]), *after.get(number, [])]
    return [*lines, *(_base(point) for point in points if point.in_jobs is not None)]


def _rows(points: Iterable[PointStatus], verbose: bool) -> list[tuple[str, PointStatus]]:
    """Return labels and points; of many, one for all that have the same counts."""
    every = list(points)
    if verbose or len(every) <= ROWS:
        return [(_label(point), point) for point in every]
    alike: dict[tuple[tuple[State, int], ...], list[PointStatus]] = {}
    for point in every:
        alike.setdefault(tuple(sorted(point.counts().items())), []).append(point)
    return [
        (
            f"{_label(group[0])}" + (f", and {len(group) - 1} more" if len(group) > 1 else ""),
            group[0],
        )
        for group in alike.values()
    ]


def _label(point: PointStatus) -> str:
    return f"{point.label} (base)" if point.base else point.label


def _base(point: PointStatus) -> str:
    assert point.in_jobs is not None  # asked before
    failed = f", {point.in_jobs.failed} failed" if point.in_jobs.failed else ""
    return f"{_INDENT}{point.label}: base, measured in each job: {point.in_jobs.done} done{failed}"


def _launches(point: PointStatus) -> Iterator[str]:
    for one in point.launches:
        if one.state != "done":
            job = f" job {one.job}" if one.job else ""
            why = "its job is at it now" if one.now else one.why
            yield f"{_INDENT * 2}repeat {one.repeat + 1} ({one.run_id}): {one.state}{job}: {why}"


def _running(jobs: Sequence[JobStatus], verbose: bool, zone: tzinfo | None) -> list[str]:
    if not jobs:
        return []
    shown = jobs if verbose else jobs[:JOBS]
    lines = [f"running: {_count(len(jobs), 'job')}", *(_job(job, zone) for job in shown)]
    if len(shown) < len(jobs):
        lines.append(f"{_INDENT}and {len(jobs) - len(shown)} more (--verbose)")
    return lines


def _job(job: JobStatus, zone: tzinfo | None) -> str:
    state = f" ({job.state})" if job.state not in ("RUNNING", "") else ""
    since = f" since {_time(job.since, zone)}" if job.since else ""
    line = f"{_INDENT}{job.job}{state} on {job.nodes}{since}: "
    if job.done is None:
        return f"{line}{_count(job.asked, 'launch', 'launches')}, none begun"
    failed = f", {job.failed} failed" if job.failed else ""
    line += f"{job.done} of {_count(job.asked, 'launch', 'launches')} done{failed}"
    at = f" since {_time(job.launch_since, zone)}" if job.launch_since else ""
    return f"{line}; now {job.label}{at}" if job.label else line


def _reasons(causes: Iterable[Cause], zone: tzinfo | None) -> Iterator[str]:
    last = None
    for cause in sorted(causes, key=lambda one: STATES.index(one.state)):
        if cause.state != last:
            yield f"{_HEADINGS[cause.state]}:"
            last = cause.state
        of = f" (of {_count(cause.points, 'point')})" if cause.count > 1 else ""
        expected = f"; expected start {_time(cause.expected, zone)}" if cause.expected else ""
        likely = f"; likely: {cause.likely}" if cause.likely else ""
        yield f"{_INDENT}{cause.count}{of}  {cause.why}{expected}{likely}"
        if cause.log:
            yield f"{_INDENT * 3}{'one of them: ' if cause.count > 1 else ''}{cause.log}"
        yield from (f"{_INDENT * 3}| {line}" for line in cause.tail)


def _advice(status: SweepStatus) -> list[str]:
    counts = status.counts()
    if not counts["failed"] + counts["missing"]:
        return []
    return [
        "No submitted job is to do what failed or is missing, and what `hvdscale run` is at now is "
        "not seen here: submit the sweep again (or run it), and that alone is done"
    ]


def _time(text: str, zone: tzinfo | None) -> str:
    try:
        return f"{datetime.fromisoformat(text).astimezone(zone):%Y-%m-%d %H:%M}"
    except ValueError:
        return text  # not as we write it: as it is


def _count(number: int, one: str, more: str = "") -> str:
    return f"{number} {one if number == 1 else more or one + 's'}"
