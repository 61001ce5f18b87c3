"""Predictions as text: the table first, then what it rests on, then the models."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from harness.analysis.models.api import Parameter
from harness.analysis.models.prediction import CurvePrediction, Prediction, Tried
from harness.analysis.texts import (
    BOUNDLESS,
    NONE,
    WIDE,
    digits_text,
    grid_text,
    rate_text,
    ratio_text,
    seconds_text,
)
from harness.stats import Interval

_HEAD = ("N", "placement", "beyond", "samples/s", "S", "E", "epoch", "model")


def render_predictions(found: Sequence[CurvePrediction]) -> str:
    """Return the text of ``predict``, one part a curve; curves without any are named at the end."""
    parts = ["\n".join(_curve(one)) for one in found if not one.refused]
    refused = [f"{one.label}: nothing is predicted: {one.refused}" for one in found if one.refused]
    return "\n\n".join([*parts, *(["\n".join(refused)] if refused else [])])


def _curve(one: CurvePrediction) -> Iterator[str]:
    yield f"{one.label}: {one.title}"
    yield f"  {_measured(one)}"
    shown = [row for row in one.predictions if not row.refused]
    if shown:
        rows = [_HEAD, *(_cells(row) for row in shown)]
        drop = {4, 5} if one.base is None else set()
        kept = [[cell for i, cell in enumerate(row) if i not in drop] for row in rows]
        yield from (f"  {line}" for line in grid_text(kept))
        if any(WIDE in cell for row in rows for cell in row):
            yield f"  {WIDE}: ends more than {BOUNDLESS:.0f} times apart"
        if any(row.extrapolated for row in shown):
            every = all(row.extrapolated for row in shown)
            which = "all of these rows" if every else "rows that have it"
            yield f"  beyond: N / the largest measured N; {which} are extrapolated"
    yield from (f"  - {text}" for text in refusals(one))
    yield from _rests_on(one, shown)
    yield from _chosen(one)
    yield from (f"  - {note}" for note in one.notes)
    yield from _models(one)


def refusals(one: CurvePrediction) -> list[str]:
    """Return why counts could not be predicted, each reason once with its counts."""
    found: dict[str, list[str]] = {}
    for row in one.predictions:
        if row.refused:
            found.setdefault(row.refused, []).append(str(row.world_size))
    return [f"N = {', '.join(counts)}: {why}" for why, counts in found.items()]


def _measured(one: CurvePrediction) -> str:
    counts = ", ".join(dict.fromkeys(str(point.world_size) for point in one.measured))
    level = one.measured[0].throughput_samples_per_s.level
    base = f"; speedup S and efficiency E: base {one.base}" if one.base else ""
    return f"measured at N = {counts}; {100 * level:.0f} % intervals{base}"


def _cells(row: Prediction) -> tuple[str, ...]:
    assert row.throughput_samples_per_s is not None  # refused rows are not shown
    return (
        str(row.world_size),
        row.placement,
        _beyond(row),
        rate_text(row.throughput_samples_per_s),
        ratio_text(row.speedup),
        ratio_text(row.efficiency),
        _span(row.epoch_s),
        row.model or NONE,
    )


def _beyond(row: Prediction) -> str:
    if row.times_largest > 1:
        return f"{row.times_largest:.3g}×"
    return "other place" if row.extrapolated else NONE


def _span(interval: Interval | None) -> str:
    """Return a time and the ends of its interval: ``518 µs [500 µs, 530 µs]``."""
    if interval is None:
        return NONE
    text = seconds_text(interval.estimate)
    if interval.low is None or interval.high is None:
        return text
    if not interval.low * BOUNDLESS > interval.high:
        return f"{text} {WIDE}"
    low, high = seconds_text(interval.low), seconds_text(interval.high)
    unit = text.rpartition(" ")[2]
    if low.endswith(f" {unit}"):
        low = low.removesuffix(f" {unit}")
    return f"{text} [{low}, {high}]"


def _rests_on(one: CurvePrediction, shown: Sequence[Prediction]) -> Iterator[str]:
    """Yield each dominating assumption once, with the counts that rest on it."""
    groups: dict[tuple[str, str], list[int]] = {}
    for row in shown:
        if row.term and row.assumption and row.extrapolated:
            groups.setdefault((row.term, row.assumption), []).append(row.world_size)
    for (term, assumption), counts in groups.items():
        at = "" if len(groups) == 1 else f" at N = {', '.join(map(str, counts))}"
        yield (f"  rests most{at} on: {assumption} ({term} changes most from N = {one.held_out})")


def _chosen(one: CurvePrediction) -> Iterator[str]:
    best = one.models[0]
    if not best.tests:
        yield f"  chosen: {best.name}, the only kind there is; not tested: {best.untested}"
        return
    others = len(one.models) - 1
    why = (
        f"of {others + 1} models it errs least at N = {one.held_out}, which none had seen"
        if others
        else f"the only model; without N = {one.held_out} it predicts that point"
    )
    yield f"  chosen: {best.name} ({why}: {_errors(best)})"
    for name in dict.fromkeys(row.model for row in one.predictions if row.model):
        if name != best.name:
            at = ", ".join(str(row.world_size) for row in one.predictions if row.model == name)
            yield f"  at N = {at}: {name}, the best of those that can speak of that place"
    if one.alike:
        yield (
            f"  not told from it by that point: {', '.join(one.alike)}; "
            "the intervals hold how far these are from it"
        )


def _errors(one: Tried) -> str:
    return ", ".join(f"{100 * test.error:+.1f} %".replace("-", "−") for test in one.tests)


def _models(one: CurvePrediction) -> Iterator[str]:
    rows = [("model", f"error at N = {one.held_out}", "in its interval", "misfit")]
    for tried in one.models:
        rows.append(
            (
                tried.name,
                _errors(tried) if tried.tests else "untested",
                _inside(tried),
                f"{100 * tried.misfit:.1f} %",
            )
        )
    width = max(len(row[0]) for row in rows)
    yield from (
        f"  {line}" for line in grid_text([(row[0].ljust(width), *row[1:]) for row in rows])
    )
    for tried in one.models:
        yield f"  {tried.name}: {tried.formula}; {', '.join(map(_parameter, tried.parameters))}"
        for note in tried.notes:
            yield f"    - {note}"
        if tried.untested and tried is not one.models[0]:
            yield f"    - not tested: {tried.untested}"
    for reason, names in _left_out(one).items():
        yield f"  without {', '.join(names)}: {reason}"


def _left_out(one: CurvePrediction) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for left in one.left_out:
        found.setdefault(left.reason, []).append(left.name)
    return found


def _inside(one: Tried) -> str:
    words = {True: "yes", False: "no", None: NONE}
    return ", ".join(words[test.inside] for test in one.tests) or NONE


def _parameter(one: Parameter) -> str:
    if one.unit == "s":
        return f"{one.symbol} = {_span(one.interval)}"
    unit = f" {one.unit}" if one.unit else ""
    found = one.interval
    text = digits_text(found.estimate) if abs(found.estimate) < 999.5 else f"{found.estimate:,.0f}"
    if abs(found.estimate) < 1e-3:
        text = f"{found.estimate:.3g}"
    if found.low is None or found.high is None:
        return f"{one.symbol} = {text}{unit}"
    low, high = (_number(end) for end in (found.low, found.high))
    return f"{one.symbol} = {text} [{low}, {high}]{unit}"


def _number(value: float) -> str:
    if value == 0:
        return "0"
    if math.isinf(value):
        return "∞"  # an end that there is not, as of a peak where throughput may never turn
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"
