"""Scaling models and what they predict beyond the measured device counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.analysis.report.document import (
    Block,
    Bullets,
    Cell,
    Column,
    Details,
    Heading,
    Paragraph,
    Table,
    Terms,
    and_text,
    counted,
    number_cell,
    text_cell,
)
from harness.analysis.report.said import plain_text
from harness.analysis.results import Results
from harness.analysis.texts import NONE, digits_text, rate_text, ratio_text, seconds_text

if TYPE_CHECKING:
    from harness.analysis.models.prediction import CurvePrediction, Prediction, Tried

CURVES = 4  # of each a model is fitted twice; more than half a second a curve
_TIMES = (2, 4)  # the largest measured N
_TERMS = (
    ("Beyond", "N / the largest measured N: an extrapolation, which no measurement has checked"),
    ("Model", "a law of a step's time, fitted to the curve without its largest N and chosen by how "
     "well it then predicted that N (held out)"),
    ("Dominated by", "the part of the model that changes most from the largest measured N, with "
     "what it takes for granted"),
)  # fmt: skip
_HEAD = (
    Column("N"), Column("Beyond"), Column("Samples/s"), Column("S"), Column("E"),
    Column("Model", numeric=False), Column("Dominated by", numeric=False),
)  # fmt: skip
_MODELS = (
    Column("Model", numeric=False), Column("Held out: predicted"), Column("Measured"),
    Column("Error"), Column("Formula", numeric=False), Column("Parameters", numeric=False),
)  # fmt: skip


def prediction_blocks(results: Results) -> Iterator[Block]:
    """Yield each curve's predictions at twice and four times its largest measured count.

    A curve with too few device counts for a model has the sentence that says so.
    """
    from harness.analysis.models.predict import predict

    results.require_curves("a prediction")
    able = [curve for curve in results.curves if curve.engine != "none"]
    largest = max((p.world_size for c in able for p in c.points), default=1)
    part = replace(results, curves=tuple(able[:CURVES])) if able else results
    found = predict(part, [times * largest for times in _TIMES])
    if any(not one.refused for one in found):
        yield Terms(_TERMS)
    refused: dict[str, list[str]] = {}
    for one in found:
        if one.refused:
            refused.setdefault(plain_text(one.refused, results), []).append(one.label)
        else:
            yield from _curve(one, results)
    if refused:
        yield Bullets(
            tuple(
                f"Nothing is predicted for {and_text(labels)}: {why}"
                for why, labels in refused.items()
            )
        )
    if len(able) > CURVES:
        more = counted(len(able) - CURVES, "more curve")
        yield Paragraph(f"{more}: hvdscale predict has the models of all of them.")


def _curve(one: CurvePrediction, results: Results) -> Iterator[Block]:
    yield Heading(one.label)
    rows = tuple(_row(each) for each in one.predictions if not each.refused)
    if rows:
        yield Table(f"Predictions for {one.label}", _HEAD, rows)
    why = dict.fromkeys(
        f"N={each.world_size}: {plain_text(each.refused, results)}"
        for each in one.predictions
        if each.refused
    )
    texts = [*why, *one.notes]
    if one.alike:
        texts.append(f"The held-out point cannot tell from the chosen model: {and_text(one.alike)}")
    if texts:
        yield Bullets(tuple(plain_text(text, results) for text in texts))
    if one.models:
        table = Table(
            f"Models of {one.label}, the chosen one first; held out: N={one.held_out}",
            _MODELS,
            tuple(map(_tried, one.models)),
        )
        left = tuple(f"{x.name}: {plain_text(x.reason, results)}" for x in one.left_out)
        notes = tuple(f"{x.name}: {note}" for x in one.models for note in x.notes)
        extra = (Bullets((*left, *notes)),) if left or notes else ()
        yield Details(
            f"{counted(len(one.models), 'model')} with formula, parameters and error on the "
            "held-out point",
            (table, *extra),
        )


def _row(one: Prediction) -> tuple[Cell, ...]:
    rate = one.throughput_samples_per_s
    beyond = f"{one.times_largest:.3g}×" if one.extrapolated else "measured range"
    rests = f"{one.term}: {one.assumption}" if one.term else NONE
    return (
        number_cell(str(one.world_size), one.world_size),
        number_cell(beyond, one.times_largest),
        number_cell(rate_text(rate) if rate else NONE, rate.estimate if rate else None),
        number_cell(ratio_text(one.speedup), one.speedup.estimate if one.speedup else None),
        number_cell(
            ratio_text(one.efficiency), one.efficiency.estimate if one.efficiency else None
        ),
        text_cell(one.model),
        text_cell(rests),
    )


def _tried(one: Tried) -> tuple[Cell, ...]:
    parameters = "; ".join(
        f"{p.symbol} ({p.name}) {_parameter(p.interval.estimate, p.unit)}" for p in one.parameters
    )
    if not one.tests:
        untested = (Cell(NONE), Cell(NONE), Cell(one.untested or NONE))
        return (text_cell(one.name), *untested, text_cell(one.formula), text_cell(parameters))
    test = max(one.tests, key=lambda each: abs(each.error))
    return (
        text_cell(one.name),
        number_cell(f"{test.predicted:,.0f}", test.predicted),
        number_cell(f"{test.measured:,.0f}", test.measured),
        number_cell(f"{100 * test.error:+.1f} %", abs(test.error)),
        text_cell(one.formula),
        text_cell(parameters),
    )


def _parameter(value: float, unit: str) -> str:
    if unit == "s":
        return seconds_text(value)
    return f"{digits_text(value)} {unit}".strip()
