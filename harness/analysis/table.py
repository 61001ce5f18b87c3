"""The table of a sweep for a terminal: plain text, the same on a screen and in a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from harness.analysis.apart import apart_text
from harness.analysis.facets import Facet, facets, is_base_point
from harness.analysis.flags import curve_flags, listed, percent, where
from harness.analysis.results import load_results
from harness.analysis.scaling import Curve, Failure, Point
from harness.analysis.texts import (
    BOUNDLESS,
    WIDE,
    digits_text,
    line_text,
    rate_text,
    ratio_text,
    seconds_text,
    slope_text,
    time_text,
)
from harness.analysis.training_table import training_table
from harness.stats import Interval

_HEAD = (
    *("N", "placement", "samples/s", "S", "E", "step", "exposed sync", "transfer", "wait"),
    "isolated",
)
_INTERFERENCE = "interference"  # a column only where it was measured
_CAUSE_CHARS = 160
_ROUNDING = 5e-3  # of a sum: three digits show no more


def render_table(sweep_dir: Path | str, *, base: str | None = None, mixed: bool = False) -> str:
    """Collect a sweep and return its table: every point, then every launch that failed.

    S and E with their intervals against the named base; exposed sync, transfer and wait a step;
    isolated is the gradient's bytes reduced with nothing else running; interference is what
    communication costs besides waiting for it. Below a curve: the phases' sum against the window's
    step, checks, and what makes a point less trustworthy. Then the trainings, as of
    ``training_table``. Errors as of ``curves``.
    """
    found = load_results(sweep_dir, base=base, mixed=mixed)
    parts = ["\n".join(_facet(facet)) for facet in facets(found.curves)]
    parts += ["\n".join(lines) for lines in training_table(found.trainings)]
    if not parts:
        parts = ["no measurements yet"]
    if found.failures:
        parts.append("\n".join(_failed(found.failures)))
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
    if any(WIDE in cell for row in every for cell in row):
        yield f"{WIDE}: ends more than {BOUNDLESS:.0f} times apart; blocks are too few"
    yield "  " + line_text(head, widths)
    for curve, grid in zip(facet.curves, grids, strict=True):
        yield _heading(curve)
        for row in grid:
            yield "  " + line_text(row, widths)
        for text in (*_remarks(curve), *curve_flags(curve)):
            yield f"  - {text}"


def _heading(curve: Curve) -> str:
    words = [curve.label]
    if curve.slope:
        words.append(f"fitted slope of S against N {slope_text(curve.slope)}")
    if curve.note:
        words.append(curve.note)
    unpaired = sum(point.unpaired for point in curve.points) if curve.base else 0
    if unpaired:
        launches = "launch has" if unpaired == 1 else "launches have"
        words.append(f"{unpaired} {launches} no base in the block and no part in S")
    apart = apart_text(curve)
    if apart:
        words.append(apart)
    return "; ".join(words)


def _cells(curve: Curve, point: Point) -> tuple[str, ...]:
    base = is_base_point(curve, point)
    return (
        str(point.world_size),
        point.placement,
        rate_text(point.throughput_samples_per_s),
        "1 (base)" if base else ratio_text(point.speedup),
        "1 (base)" if base else ratio_text(point.efficiency),
        time_text(point.step_s),
        time_text(point.exposed_sync_s),
        time_text(point.transfer_s),
        time_text(point.wait_s),
        time_text(point.allreduce_p50_s),
        _with_error(point.interference_s, point.interference_error_s),
    )


def _remarks(curve: Curve) -> Iterator[str]:
    """Yield what stands below a curve besides its flags, each where something was measured."""
    texts = {
        "without its all-reduce a step is {}": _ablation,
        f"signed-rank check of {'S' if curve.base else 'samples/s'}: {{}}": _check,
        "arrivals on one clock: {}": _clocks,
        "a batch alone: {}": _feed,
        "timeline, a step: {}": _timeline,
        "telemetry: {}": _telemetry,
    }
    for point in curve.points:
        phases = _phase_sum(point)
        if phases:
            yield f"phases at {where(curve, point)}: {phases}"
    for text, text_of in texts.items():
        found = listed(curve, partial(text_of, curve))
        if found:
            yield text.format(found)


_PHASE_WORDS = {
    "data": "data_s",
    "forward": "forward_s",
    "backward": "backward_s",
    "exposed sync": "exposed_sync_s",
    "update": "update_s",
}


def _phase_sum(point: Point) -> str | None:
    if point.phase_sum_s is None or point.phases_minus_step is None:
        return None
    parts = [
        f"{word} {seconds_text(found.estimate)}"
        for word, name in _PHASE_WORDS.items()
        if (found := getattr(point, name)) is not None
    ]
    # Of one rank alone the time between backward and update is in the sum and in no phase.
    named = sum(found.estimate for name in _PHASE_WORDS.values() if (found := getattr(point, name)))
    rest_s = point.phase_sum_s.estimate - named
    if rest_s > _ROUNDING * named:
        parts.insert(len(parts) - 1, f"between backward and update {seconds_text(rest_s)}")
    total, step = seconds_text(point.phase_sum_s.estimate), seconds_text(point.step_s.estimate)
    difference = percent(point.phases_minus_step)
    return f"{' + '.join(parts)} = {total}, the window's step {step} ({difference})"


def _ablation(_: Curve, point: Point) -> str | None:
    found = point.ablation_difference_s
    if found is None:
        return None
    longer = "shorter" if found.estimate >= 0 else "longer"
    return f"{time_text(found).removeprefix('-')} {longer}"


def _telemetry(_: Curve, point: Point) -> str | None:
    found = dict(point.telemetry)
    if "rank_rss_max_bytes" in found:
        found["rank_rss_mb"] = found["rank_rss_max_bytes"] / 1e6
    words = {
        "rank_cpu_cores": "{:.2f} cores a rank",
        "rank_rss_mb": "{:,.0f} MB resident",
        "gpu_utilisation": "GPU {:.0%} busy",
        "gpu_sm_activity": "SM activity {:.1%}",
        "gpu_power_w": "{:.0f} W",
        "energy_per_sample_j": "{:.3g} J a sample",
    }
    parts = [text.format(found[name]) for name, text in words.items() if name in found]
    return ", ".join(parts).replace("%", " %") or None


def _check(curve: Curve, point: Point) -> str | None:
    check = point.check
    if check is None or check.low is None or check.high is None or is_base_point(curve, point):
        return None
    ends = (f"{check.low:,.0f}", f"{check.high:,.0f}")
    if point.speedup:
        ends = (digits_text(check.low), digits_text(check.high))
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
    return f"skew {time_text(point.skew_s)}, wait {time_text(point.clock_wait_s)}{unresolved}"


def _feed(_: Curve, point: Point) -> str | None:
    if point.feed_warm_s is None:
        return None
    cold = point.feed_cold_s
    from_cold = f", {time_text(cold)} from a cold file cache" if cold is not None else ""
    return f"{time_text(point.feed_warm_s)} to the device{from_cold}"


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


def _with_error(interval: Interval | None, error_s: float | None) -> str:
    """Return a time with its interval over launches, or the standard error of a single one."""
    if interval is None or interval.has_interval or error_s is None:
        return time_text(interval).replace("-", "−")
    return f"{seconds_text(interval.estimate)} ±{seconds_text(error_s, digits=2)}".replace("-", "−")


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
