"""The diagnosis of the worst points: what limits them, by which evidence, and what to turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING

from harness.analysis.report.document import (
    Block,
    Bullets,
    Cell,
    Column,
    Heading,
    Paragraph,
    Table,
    Terms,
    number_cell,
    text_cell,
)
from harness.analysis.report.said import first_line
from harness.analysis.results import Results
from harness.analysis.texts import NONE, time_text

if TYPE_CHECKING:
    from harness.analysis.diagnose import Diagnosis, Finding

#: Gives the diagnosis of the worst points.
Worst = Callable[[], "tuple[Diagnosis, ...]"]

WORST = 3
_OF_LOSS, _OF_STEP = 0.05, 0.02  # a limiter below both stands in the table alone
_TERMS = (
    ("Lost", "step − ideal step; the ideal of weak scaling is the base's step, of strong scaling "
     "its share of it"),
    ("Verdict", "shown: the interval over blocks lies above zero; not shown: it does not; one "
     "block: nothing could be tested"),
)  # fmt: skip
_HEAD = (
    Column("Limiter", numeric=False),
    Column("A step"),
    Column("Of the loss"),
    Column("Of the step"),
    Column("Verdict", numeric=False),
)


def worst_of(results: Results) -> Worst:
    """Return a call that diagnoses once, however often it is made: it reads raw steps."""

    @cache
    def worst() -> tuple[Diagnosis, ...]:
        from harness.analysis.diagnose import diagnose

        return diagnose(results, worst=WORST)

    return worst


def limiter_blocks(worst: Worst) -> Iterator[Block]:
    """Yield the answer of the diagnosis alone: the main limiter."""
    from harness.analysis.diagnose import render_diagnosis

    yield Paragraph(first_line(render_diagnosis(worst())))


def diagnosis_blocks(worst: Worst) -> Iterator[Block]:
    """Yield each of the worst points with its limiters, evidence and knobs."""
    found = worst()
    if found:
        yield Paragraph(f"Worst is judged by: {found[0].ranking.rule}.", muted=True)
        yield Terms(_TERMS)
    for one in found:
        yield from _point(one)


def _point(one: Diagnosis) -> Iterator[Block]:
    place = f" ({one.placement})" if "+" in one.placement else ""
    yield Heading(f"{one.rank}. {one.label}, N={one.world_size}{place}")
    lost = "its loss cannot be told"
    if one.lost_s is not None:
        lost = f"lost {time_text(one.lost_s)}"
    yield Paragraph(f"Step {time_text(one.step_s)}, {lost}.")
    if one.findings:
        caption = f"What limits {one.label}, N={one.world_size}"
        yield Table(caption, _HEAD, tuple(map(_row, one.findings)))
    texts = [_told(each) for each in one.limits if _is_told(each)]
    texts += [f"Caution: {text}" for text in one.cautions]
    texts += [f"Not told: {each.question}; would tell: {each.add}" for each in one.missing]
    if texts:
        yield Bullets(tuple(texts))


def _told(one: Finding) -> str:
    from harness.analysis.diagnose import LIMITERS

    text = (
        f"{one.limiter.capitalize()}, {LIMITERS[one.limiter].meaning}: {'; '.join(one.evidence)}."
    )
    knobs = "; ".join(f"{k.key}: {k.action}" if k.key else k.action for k in one.knobs)
    return f"{text} To turn: {knobs}." if knobs else text


def _is_told(one: Finding) -> bool:
    """Leave out what is too small to be worth turning; the table has it."""
    return (one.share_of_lost or 0.0) >= _OF_LOSS or one.share_of_step >= _OF_STEP


def _row(one: Finding) -> tuple[Cell, ...]:
    return (
        text_cell(one.limiter),
        number_cell(time_text(one.time_s), one.time_s.estimate),
        number_cell(_percent(one.share_of_lost), one.share_of_lost),
        number_cell(_percent(one.share_of_step), one.share_of_step),
        text_cell(one.verdict + (", in the base's step, too" if one.kind == "shared" else "")),
    )


def _percent(share: float | None) -> str:
    return NONE if share is None else f"{100 * share:.1f} %".replace("-", "−")
