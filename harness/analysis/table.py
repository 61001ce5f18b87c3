"""The table of a sweep for a terminal: plain text, the same on a screen and in a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from harness.analysis.collecting import load_arrow
from harness.analysis.facets import Facet, facets, is_base_point
from harness.analysis.flags import curve_flags, listed, percent
from harness.analysis.scaling import Curve, Failure, Point, curves, failures
from harness.stats import Interval

_HEAD = ("N", "placement", "samples/s", "S", "E", "exposed sync", "transfer", "wait", "all-reduce")
_INTERFERENCE = "interference"  # a column only where it was measured
_NONE = "–"
_CAUSE_CHARS = 160
#: Beyond this half width the interval of a geometric mean is too lopsided for one "±".
_LOPSIDED = 0.25


def render_table(sweep_dir: Path | str, *, base: str | None = None, mixed: bool = False) -> str:
    """Collect a sweep and return its table: every point, then every launch that failed.

    S and E with their intervals against the named base; exposed sync, transfer and wait a step;
    all-reduce is the gradient's bytes reduced with nothing else running; interference is what
    communication costs besides waiting for it. Below a curve: the phases' sum against the window's
    step, checks, and what makes a point less trustworthy. Errors as of ``curves``.
    """
    table = load_arrow(sweep_dir)
    found = curves(table, base=base, mixed=mixed)
    parts = ["\n".join(_facet(facet)) for facet in facets(found)]
    if not parts:
        parts = ["no measurements yet"]
    failed = failures(table)
    if failed:
        parts.append("\n".join(_failed(failed)))
    return "\n\n".join(parts)


def _facet(facet: Facet) -> Iterator[str]:
    yield f"{facet.title}, {facet.batch_text}"
    yield f"speedup S and efficiency E: {facet.base_text}; {facet.interval_text}"
    measured = any(point.interference_s for curve in facet.curves for point in curve.points)
    head = (*_HEAD, _INTERFERENCE) if measured else _HEAD
    grids = [
        [_cells(curve, point)[: len(head)] for point in curve.points] for curve in facet.curves
    ]
    every = [head, *(row for grid in grids for row in grid)]
    widths = [max(len(row[i]) for row in every) for i in range(len(head))]
    yield "  " + _line(head, widths)
    for curve, grid in zip(facet.curves, grids, strict=True):
        yield _heading(curve)
        for row in grid:
            yield "  " + _line(row, widths)
        for text in (*_remarks(curve), *curve_flags(curve)):
            yield f"  - {text}"


def _heading(curve: Curve) -> str:
    words = [curve.label]
    if curve.slope:
        words.append(f"fitted slope of S against N {_ratio(curve.slope)}")
    if curve.note:
        words.append(curve.note)
    unpaired = sum(point.unpaired for point in curve.points) if curve.base else 0
    if unpaired:
        launches = "launch has" if unpaired == 1 else "launches have"
        words.append(f"{unpaired} {launches} no base in the block and no part in S")
    return "; ".join(words)


def _cells(curve: Curve, point: Point) -> tuple[str, ...]:
    base = is_base_point(curve, point)
    return (
        str(point.world_size),
        point.placement,
        _rate(point.throughput_samples_per_s),
        "1 (base)" if base else _ratio(point.speedup),
        "1 (base)" if base else _ratio(point.efficiency),
        _time(point.exposed_sync_s),
        _time(point.transfer_s),
        _time(point.wait_s),
        _time(point.allreduce_p50_s),
        _with_error(point.interference_s, point.interference_error_s),
    )


def _remarks(curve: Curve) -> Iterator[str]:
    """Yield what stands below a curve besides its flags, each where something was measured."""
    texts = {
        "phases sum to / the window's step: {}": _phase_sum,
        f"signed-rank check of {'S' if curve.base else 'samples/s'}: {{}}": _check,
        "arrivals on one clock: {}": _clocks,
        "timeline, a step: {}": _timeline,
    }
    for text, text_of in texts.items():
        found = listed(curve, partial(text_of, curve))
        if found:
            yield text.format(found)


def _phase_sum(_: Curve, point: Point) -> str | None:
    if point.phase_sum_s is None or point.phases_minus_step is None:
        return None
    total, step = seconds_text(point.phase_sum_s.estimate), seconds_text(point.step_s.estimate)
    return f"{total} / {step} ({percent(point.phases_minus_step)})"


def _check(curve: Curve, point: Point) -> str | None:
    check = point.check
    if check is None or check.low is None or check.high is None or is_base_point(curve, point):
        return None
    ends = (f"{check.low:,.0f}", f"{check.high:,.0f}")
    if point.speedup:
        ends = (_digits(check.low), _digits(check.high))
    return f"[{', '.join(ends)}] ({100 * check.level:.1f} %)"


def _clocks(_: Curve, point: Point) -> str | None:
    if point.skew_s is None:
        return None
    total = len(point.launches)
    unresolved = (
        f", below the clocks' error in {point.skew_unresolved} of {total} launches"
        if point.skew_unresolved
        else ""
    )
    return f"skew {_time(point.skew_s)}, wait {_time(point.clock_wait_s)}{unresolved}"


_TIMELINE_WORDS = {
    "timeline_negotiation_s": "negotiation",
    "timeline_queue_s": "queue",
    "timeline_copy_in_s": "copy in",
    "timeline_allreduce_s": "all-reduce",
    "timeline_copy_out_s": "copy out",
}


def _timeline(_: Curve, point: Point) -> str | None:
    found = point.timeline
    if found is None:
        return None
    times = [
        f"{word} {seconds_text(found[key])}"
        for key, word in _TIMELINE_WORDS.items()
        if key in found
    ]
    tensors, fused = found["timeline_tensors"], found["timeline_allreduces"]
    return ", ".join([*times, f"{tensors:.3g} tensors in {fused:.3g} all-reduces"])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _rate(interval: Interval) -> str:
    half = interval.relative_half_width
    if half is None or interval.low is None or interval.high is None:
        return f"{interval.estimate:,.0f}"
    if half > _LOPSIDED:
        return f"{interval.estimate:,.0f} [{interval.low:,.0f}, {interval.high:,.0f}]"
    return f"{interval.estimate:,.0f} ±{100 * half:.1f} %"


def _ratio(interval: Interval | None) -> str:
    if interval is None:
        return _NONE
    if interval.low is None or interval.high is None:
        return _digits(interval.estimate)
    return f"{_digits(interval.estimate)} [{_digits(interval.low)}, {_digits(interval.high)}]"


def _digits(value: float) -> str:
    """Three digits, zeros included, so that a column of them says how much is known."""
    return f"{value:#.3g}".removesuffix(".")


def _time(interval: Interval | None) -> str:
    return _NONE if interval is None else seconds_text(interval.estimate)


def _with_error(interval: Interval | None, error_s: float | None) -> str:
    if interval is None or error_s is None:
        return _time(interval)
    return f"{_time(interval)} ±{seconds_text(error_s)}"


def seconds_text(seconds: float) -> str:
    """Return a time with three digits and the unit that fits, e.g. ``518 µs``."""
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms")):
        # 999.6 µs would print as 1e+03 µs.
        if abs(seconds) < limit * 0.9995:
            return f"{_digits(seconds * factor)} {unit}"
    return f"{_digits(seconds)} s" if abs(seconds) < 999.5 else f"{seconds:,.0f} s"


def _failed(found: Sequence[Failure]) -> Iterator[str]:
    launches = "launch" if len(found) == 1 else "launches"
    yield f"{len(found)} {launches} without a measurement:"
    for failure in found:
        attempt = "" if failure.attempt is None else f" attempt {failure.attempt}"
        mended = " (measured by a later attempt)" if failure.repaired else ""
        what = f" {failure.what}:" if failure.what else ""
        cause = " ".join(failure.cause.split())
        if len(cause) > _CAUSE_CHARS:
            cause = cause[: _CAUSE_CHARS - 1] + "…"
        yield f"  {failure.run_id}{attempt} {failure.status}:{what} {cause}{mended}"
